//! Devices as a configuration names them, and opening what a name stands for.
//!
//! `file:PATH` and `memory:SIZE` with options are emulated controllers ([`EmulatorSpec`]);
//! `vfio:ADDRESS` is a real one, with the option `namespace=N` (its first usable one by default).
//! A controller belongs to one pool with one namespace.

use std::str::FromStr;

use lode_nvme_emu::{EmulatedController, EmulatorError, EmulatorSpec};
use lode_server::PoolManagerError;
use lode_units::NamespaceId;
use lode_vfio::{PciAddress, VfioBus, VfioError};

use crate::any_bus::AnyBus;
use crate::drive::chain;

/// What a device's name says.
#[derive(Clone, Debug)]
pub(crate) enum DeviceSpec {
    /// A controller inside this process.
    Emulated(Box<EmulatorSpec>),
    /// A PCI function bound to `vfio-pci`.
    Vfio {
        /// Where it is.
        address: PciAddress,
        /// Which namespace; the first usable one when absent.
        namespace: Option<NamespaceId>,
    },
}

impl FromStr for DeviceSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix(VFIO) else {
            return text
                .parse()
                .map(|spec| Self::Emulated(Box::new(spec)))
                .map_err(|error: EmulatorError| error.to_string());
        };
        let (address, options) = rest.split_once('?').unwrap_or((rest, ""));
        let address = address
            .parse()
            .map_err(|error: lode_vfio::AddressError| error.to_string())?;
        let mut namespace = None;
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let number = option
                .strip_prefix("namespace=")
                .ok_or_else(|| format!("{option:?}: a vfio device has the option namespace=N"))?;
            let number = number
                .parse()
                .ok()
                .filter(|number| (1..NAMESPACE_BROADCAST).contains(number))
                .ok_or_else(|| format!("{option:?}: a namespace is a number from 1 on"))?;
            namespace = Some(NamespaceId::new(number));
        }
        Ok(Self::Vfio { address, namespace })
    }
}

impl DeviceSpec {
    /// What two names of the same device have in common, whatever their options; `None` where
    /// each device is one of its own (`memory:`) and for names that mean nothing.
    pub(crate) fn identity(name: &str) -> Option<String> {
        let path = name.split('?').next().unwrap_or(name);
        if path.starts_with("file:") {
            return Some(path.to_owned());
        }
        let address: PciAddress = path.strip_prefix(VFIO)?.parse().ok()?;
        Some(format!("{VFIO}{address}"))
    }

    /// Opens the device called `name` in the configuration. Blocks.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(crate) fn open(&self, name: &str) -> Result<AnyBus, PoolManagerError> {
        match self {
            Self::Emulated(spec) => EmulatedController::open(spec)
                .map(|controller| AnyBus::Emulated(Box::new(controller)))
                .map_err(|error| emulator_refused(name, &error)),
            Self::Vfio { address, .. } => {
                let bus = VfioBus::open(*address).map_err(|error| vfio_refused(name, &error))?;
                tracing::info!(device = name, node = %bus.node().display(), "taken from VFIO");
                Ok(AnyBus::Vfio(Box::new(bus)))
            }
        }
    }

    /// The namespace that was asked for, if one was.
    pub(crate) const fn namespace(&self) -> Option<NamespaceId> {
        match self {
            Self::Emulated(_) => None,
            Self::Vfio { namespace, .. } => *namespace,
        }
    }
}

fn emulator_refused(name: &str, error: &EmulatorError) -> PoolManagerError {
    let device = name.to_owned();
    match error {
        EmulatorError::InUse { .. } => PoolManagerError::DeviceInUse { device },
        EmulatorError::Open { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            PoolManagerError::DeviceNotFound { device }
        }
        EmulatorError::Syntax { .. } | EmulatorError::Option { .. } => {
            PoolManagerError::InvalidDevice {
                device,
                message: chain(error),
            }
        }
        _ => PoolManagerError::DeviceFailed {
            device,
            message: chain(error),
        },
    }
}

fn vfio_refused(name: &str, error: &VfioError) -> PoolManagerError {
    let device = name.to_owned();
    match error {
        VfioError::Busy { .. } => PoolManagerError::DeviceInUse { device },
        VfioError::NoDevice { .. } => PoolManagerError::DeviceNotFound { device },
        _ => PoolManagerError::DeviceFailed {
            device,
            message: format!("{} (lodectl doctor names the remedy)", chain(error)),
        },
    }
}

const VFIO: &str = "vfio:";
/// Stands for all namespaces and names none (NVMe Base 2.0 §3.2.1.2).
const NAMESPACE_BROADCAST: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vfio_device_is_an_address_and_perhaps_a_namespace() {
        let spec: DeviceSpec = "vfio:01:00.0?namespace=3".parse().expect("a device");
        assert_eq!(spec.namespace(), Some(NamespaceId::new(3)));
        let spec: DeviceSpec = "vfio:0000:01:00.0".parse().expect("a device");
        assert_eq!(spec.namespace(), None);
        for text in [
            "vfio:",
            "vfio:nvme0",
            "vfio:01:00.0?namespace=0",
            "vfio:01:00.0?namespace=4294967295",
            "vfio:01:00.0?queues=4",
            "tape:/dev/st0",
        ] {
            assert!(text.parse::<DeviceSpec>().is_err(), "{text}");
        }
    }

    #[test]
    fn names_of_one_device_have_one_identity_and_memory_has_none() {
        let same = DeviceSpec::identity("vfio:01:00.0?namespace=2");
        assert_eq!(same, DeviceSpec::identity("vfio:0000:01:00.0"));
        assert_ne!(same, DeviceSpec::identity("vfio:0000:01:00.1"));
        assert_eq!(
            DeviceSpec::identity("file:/a?size=1GiB"),
            DeviceSpec::identity("file:/a")
        );
        assert_eq!(DeviceSpec::identity("memory:1GiB"), None);
    }

    #[test]
    fn a_function_that_is_not_there_is_not_found() {
        let name = "vfio:ffff:ff:1f.7";
        let spec: DeviceSpec = name.parse().expect("a device");
        let error = spec.open(name).expect_err("no machine has this function");
        assert!(
            matches!(
                error,
                PoolManagerError::DeviceNotFound { .. } | PoolManagerError::DeviceFailed { .. }
            ),
            "{error}"
        );
    }
}
