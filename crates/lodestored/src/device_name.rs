//! Devices as a configuration names them, and opening what a name stands for.
//!
//! `file:PATH` and `memory:SIZE` with options are emulated controllers ([`EmulatorSpec`]);
//! `vfio:ADDRESS` is a real one and `vfio-user:/PATH` one that another process serves at a socket.
//! Each takes the option `namespace=N` (its first usable one by default): devices of one
//! controller may belong to one pool or to several.

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
    Emulated {
        /// What it is.
        spec: Box<EmulatorSpec>,
        /// Which namespace; the first usable one when absent.
        namespace: Option<NamespaceId>,
    },
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
        let (controller, namespace) = take_namespace(text)?;
        if let Some(address) = controller.strip_prefix(VFIO) {
            let address = without_options(address)?
                .parse()
                .map_err(|error: lode_vfio::AddressError| error.to_string())?;
            return Ok(Self::Vfio { address, namespace });
        }
        if let Some(path) = controller.strip_prefix(VFIO_USER) {
            let path = without_options(path)?;
            // Relative to what would depend on where the daemon was started.
            if !path.starts_with('/') {
                return Err(format!("{path:?}: a socket is named with its whole path"));
            }
            let path = PathBuf::from(path);
            return Ok(Self::VfioUser { path, namespace });
        }
        let spec: EmulatorSpec = controller
            .parse()
            .map_err(|error: EmulatorError| error.to_string())?;
        let spec = Box::new(spec);
        Ok(Self::Emulated { spec, namespace })
    }
}

/// A place without options: controllers outside of this process have only `namespace=N`.
fn without_options(place: &str) -> Result<&str, String> {
    match place.split_once('?') {
        None => Ok(place),
        Some((_, options)) => Err(format!(
            "{options:?}: such a device has the option namespace=N"
        )),
    }
}

impl DeviceSpec {
    /// What names of devices of the same controller have in common; `None` where each device has
    /// one of its own (`memory:`) and for names that mean nothing.
    pub(crate) fn controller(name: &str) -> Option<String> {
        let (controller, _) = take_namespace(name).ok()?;
        if controller.starts_with(FILE) || controller.starts_with(VFIO_USER) {
            return Some(controller);
        }
        let address: PciAddress = controller.strip_prefix(VFIO)?.parse().ok()?;
        Some(format!("{VFIO}{address}"))
    }

    /// What two names of the same device have in common; `None` as for
    /// [`DeviceSpec::controller`]. A name without a namespace may mean the same device as one
    /// with: that is known only once the controller is.
    pub(crate) fn identity(name: &str) -> Option<String> {
        let controller = Self::controller(name)?;
        let path = controller.split('?').next().unwrap_or(&controller);
        let (_, namespace) = take_namespace(name).ok()?;
        Some(match namespace {
            Some(namespace) => format!("{path}?namespace={}", namespace.get()),
            None => path.to_owned(),
        })
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
            Self::Emulated { spec, .. } => EmulatedController::open(spec)
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
            Self::Emulated { namespace, .. }
            | Self::Vfio { namespace, .. }
            | Self::VfioUser { namespace, .. } => *namespace,
        }
    }
}

/// A name without its option `namespace=N`, and what that says.
fn take_namespace(name: &str) -> Result<(String, Option<NamespaceId>), String> {
    let (device, options) = name.split_once('?').unwrap_or((name, ""));
    let mut namespace = None;
    let mut rest = device.to_owned();
    let mut separator = '?';
    for option in options.split('&').filter(|option| !option.is_empty()) {
        let Some(number) = option.strip_prefix("namespace=") else {
            rest.push(separator);
            rest.push_str(option);
            separator = '&';
            continue;
        };
        let number = number
            .parse()
            .ok()
            .filter(|number| (1..NAMESPACE_BROADCAST).contains(number))
            .ok_or_else(|| format!("{option:?}: a namespace is a number from 1 on"))?;
        if namespace.replace(NamespaceId::new(number)).is_some() {
            return Err(format!("{option:?}: a device is one namespace"));
        }
    }
    Ok((rest, namespace))
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

const FILE: &str = "file:";
const VFIO: &str = "vfio:";
const VFIO_USER: &str = "vfio-user:";
/// Stands for all namespaces and names none (NVMe Base 2.0 §3.2.1.2).
const NAMESPACE_BROADCAST: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_a_controller_and_perhaps_a_namespace() {
        let spec: DeviceSpec = "memory:1GiB?namespaces=2&namespace=2&lba=4096"
            .parse()
            .expect("a device");
        assert_eq!(spec.namespace(), Some(NamespaceId::new(2)));
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
            "vfio:01:00.0?namespace=1&namespace=2",
            "tape:/dev/st0",
        ] {
            assert!(text.parse::<DeviceSpec>().is_err(), "{text}");
        }
    }

    #[test]
    fn names_of_one_device_have_one_identity_and_memory_has_none() {
        let second = DeviceSpec::identity("vfio:01:00.0?namespace=2");
        assert_eq!(
            second,
            DeviceSpec::identity("vfio:0000:01:00.0?namespace=2")
        );
        assert_ne!(second, DeviceSpec::identity("vfio:01:00.0?namespace=3"));
        assert_ne!(second, DeviceSpec::identity("vfio:01:00.1?namespace=2"));
        assert_eq!(
            DeviceSpec::controller("vfio:01:00.0?namespace=2"),
            DeviceSpec::controller("vfio:0000:01:00.0")
        );
        assert_eq!(
            DeviceSpec::controller("file:/a?namespaces=2&namespace=1&lba=4096").as_deref(),
            Some("file:/a?namespaces=2&lba=4096")
        );
        assert_eq!(
            DeviceSpec::identity("file:/a?size=1GiB"),
            DeviceSpec::identity("file:/a")
        );
        assert_eq!(
            DeviceSpec::controller("vfio-user:/a?namespace=1"),
            DeviceSpec::controller("vfio-user:/a")
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
