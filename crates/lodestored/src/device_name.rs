//! Devices as a configuration names them, and opening what a name stands for.
//!
//! `file:PATH` and `memory:SIZE` with options are emulated controllers ([`EmulatorSpec`]);
//! `vfio:ADDRESS` is a real one and `vfio-user:/PATH` one that another process serves at a socket,
//! both with the option `namespace=N` (their first usable one by default).
//! A controller belongs to one pool with one namespace.

use std::path::PathBuf;
use std::str::FromStr;

use lode_nvme_emu::{EmulatedController, EmulatorError, EmulatorSpec};
use lode_server::PoolManagerError;
use lode_units::{MonotonicClock, NamespaceId};
use lode_vfio::{PciAddress, VfioBus, VfioError};
use lode_vfio_user::{Patience, VfioUserBus, VfioUserError};

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
    /// A controller that another process serves.
    VfioUser {
        /// Its socket.
        path: PathBuf,
        /// Which namespace; the first usable one when absent.
        namespace: Option<NamespaceId>,
    },
}

impl FromStr for DeviceSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(rest) = text.strip_prefix(VFIO) {
            let (address, namespace) = with_namespace(rest)?;
            let address = address
                .parse()
                .map_err(|error: lode_vfio::AddressError| error.to_string())?;
            return Ok(Self::Vfio { address, namespace });
        }
        if let Some(rest) = text.strip_prefix(VFIO_USER) {
            let (path, namespace) = with_namespace(rest)?;
            // Relative to what would depend on where the daemon was started.
            if !path.starts_with('/') {
                return Err(format!("{path:?}: a socket is named with its whole path"));
            }
            let path = PathBuf::from(path);
            return Ok(Self::VfioUser { path, namespace });
        }
        text.parse()
            .map(|spec| Self::Emulated(Box::new(spec)))
            .map_err(|error: EmulatorError| error.to_string())
    }
}

/// What is before the options, and the one option that controllers outside of this process have.
fn with_namespace(text: &str) -> Result<(&str, Option<NamespaceId>), String> {
    let (device, options) = text.split_once('?').unwrap_or((text, ""));
    let mut namespace = None;
    for option in options.split('&').filter(|option| !option.is_empty()) {
        let number = option
            .strip_prefix("namespace=")
            .ok_or_else(|| format!("{option:?}: such a device has the option namespace=N"))?;
        let number = number
            .parse()
            .ok()
            .filter(|number| (1..NAMESPACE_BROADCAST).contains(number))
            .ok_or_else(|| format!("{option:?}: a namespace is a number from 1 on"))?;
        namespace = Some(NamespaceId::new(number));
    }
    Ok((device, namespace))
}

impl DeviceSpec {
    /// What two names of the same device have in common, whatever their options; `None` where
    /// each device is one of its own (`memory:`) and for names that mean nothing.
    pub(crate) fn identity(name: &str) -> Option<String> {
        let path = name.split('?').next().unwrap_or(name);
        if path.starts_with("file:") || path.starts_with(VFIO_USER) {
            return Some(path.to_owned());
        }
        let address: PciAddress = path.strip_prefix(VFIO)?.parse().ok()?;
        Some(format!("{VFIO}{address}"))
    }

    /// Opens the device called `name` in the configuration. Blocks.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(crate) fn open(
        &self,
        name: &str,
        clock: MonotonicClock,
    ) -> Result<AnyBus, PoolManagerError> {
        match self {
            Self::Emulated(spec) => EmulatedController::open(spec)
                .map(|controller| AnyBus::Emulated(Box::new(controller)))
                .map_err(|error| emulator_refused(name, &error)),
            Self::Vfio { address, .. } => {
                let bus = VfioBus::open(*address).map_err(|error| vfio_refused(name, &error))?;
                tracing::info!(device = name, node = %bus.node().display(), "taken from VFIO");
                Ok(AnyBus::Vfio(Box::new(bus)))
            }
            Self::VfioUser { path, .. } => VfioUserBus::open(path, Patience::default(), clock)
                .map(|bus| AnyBus::VfioUser(Box::new(bus)))
                .map_err(|error| vfio_user_refused(name, &error)),
        }
    }

    /// The namespace that was asked for, if one was.
    pub(crate) const fn namespace(&self) -> Option<NamespaceId> {
        match self {
            Self::Emulated(_) => None,
            Self::Vfio { namespace, .. } | Self::VfioUser { namespace, .. } => *namespace,
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

fn vfio_user_refused(name: &str, error: &VfioUserError) -> PoolManagerError {
    let device = name.to_owned();
    match error {
        VfioUserError::NoSocket { .. } => PoolManagerError::DeviceNotFound { device },
        _ => PoolManagerError::DeviceFailed {
            device,
            message: chain(error),
        },
    }
}

const VFIO: &str = "vfio:";
const VFIO_USER: &str = "vfio-user:";
/// Stands for all namespaces and names none (NVMe Base 2.0 §3.2.1.2).
const NAMESPACE_BROADCAST: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_outside_of_this_process_has_a_place_and_perhaps_a_namespace() {
        let spec: DeviceSpec = "vfio:01:00.0?namespace=3".parse().expect("a device");
        assert_eq!(spec.namespace(), Some(NamespaceId::new(3)));
        let spec: DeviceSpec = "vfio:0000:01:00.0".parse().expect("a device");
        assert_eq!(spec.namespace(), None);
        let spec: DeviceSpec = "vfio-user:/run/nvme?namespace=2".parse().expect("a device");
        assert_eq!(spec.namespace(), Some(NamespaceId::new(2)));
        for text in [
            "vfio:",
            "vfio:nvme0",
            "vfio:01:00.0?namespace=0",
            "vfio:01:00.0?namespace=4294967295",
            "vfio:01:00.0?queues=4",
            "vfio-user:",
            "vfio-user:relative/socket",
            "vfio-user:/run/nvme?queues=4",
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
        assert_eq!(
            DeviceSpec::identity("vfio-user:/a?namespace=1"),
            DeviceSpec::identity("vfio-user:/a")
        );
        assert_eq!(DeviceSpec::identity("memory:1GiB"), None);
    }

    #[test]
    fn a_function_that_is_not_there_is_not_found() {
        let name = "vfio:ffff:ff:1f.7";
        let spec: DeviceSpec = name.parse().expect("a device");
        let error = spec
            .open(name, MonotonicClock::new())
            .expect_err("no machine has this function");
        assert!(
            matches!(
                error,
                PoolManagerError::DeviceNotFound { .. } | PoolManagerError::DeviceFailed { .. }
            ),
            "{error}"
        );
    }

    #[test]
    fn a_socket_that_is_not_there_is_not_found_and_a_file_is_no_server() {
        let folder = std::env::temp_dir();
        let refused = |path: &std::path::Path| {
            let name = format!("vfio-user:{}", path.display());
            let spec: DeviceSpec = name.parse().expect("a device");
            spec.open(&name, MonotonicClock::new())
                .expect_err("nobody serves it")
        };
        let error = refused(&folder.join("lodestore-no-such-socket"));
        assert!(
            matches!(error, PoolManagerError::DeviceNotFound { .. }),
            "{error}"
        );
        let error = refused(&std::env::current_exe().expect("a file"));
        assert!(error.to_string().contains("nobody answers"), "{error}");
    }
}
