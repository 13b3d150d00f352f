//! What the server asks of whoever opens devices.

use std::pin::Pin;

use lode_api::v1::{DeviceHealth, DeviceState, ErrorReason};
use lode_engine::ControlError;
use lode_extent::ExtentError;

use crate::failure::Failure;

/// The answer to come of a [`PoolManager`].
pub type Managed<T> = Pin<Box<dyn Future<Output = Result<T, PoolManagerError>> + Send>>;

/// Opens devices and attaches pools to the shards. Implemented by the daemon: which kinds of
/// device there are is not the server's business.
///
/// The calls are made on a core's thread and must not block it; long work goes elsewhere.
pub trait PoolManager: Send + Sync + 'static {
    /// Makes a pool and takes it into use; returns its name once it serves.
    fn create(&self, request: CreatePool) -> Managed<String>;

    /// Takes the pool that the devices hold into use; returns its name once it serves.
    fn import(&self, devices: Vec<String>) -> Managed<String>;

    /// Writes a pool back and lets go of it and its devices.
    fn export(&self, name: String) -> Managed<()>;

    /// The UUID of a pool in use, in its canonical text form; empty when it is not known.
    fn pool_uuid(&self, pool: &str) -> String;

    /// What is known of a device in use besides what the shard knows. Does not ask the device.
    fn device(&self, name: &str) -> DeviceDetails;
}

/// A pool to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatePool {
    /// Its name.
    pub name: String,
    /// Its devices, in order, as the configuration names them.
    pub devices: Vec<String>,
    /// Names the mutation, so that a retry of it gives the same answer.
    pub request_id: Option<String>,
    /// Whether the devices may hold a pool, which is destroyed.
    pub existing: lode_extent::ExistingPool,
}

/// What is known of a device beyond its geometry.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceDetails {
    /// The UUID that the pool gave it.
    pub uuid: String,
    /// Whether it works.
    pub state: DeviceState,
    /// Whether an emulated controller stands behind it.
    pub is_emulated: bool,
    /// The model, as the controller tells it.
    pub model: String,
    /// The serial number, as the controller tells it.
    pub serial: String,
    /// The firmware revision, as the controller tells it.
    pub firmware: String,
    /// The controller's account of its health, when it has been read.
    pub health: Option<DeviceHealth>,
}

/// Why a pool could not be made, imported or exported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolManagerError {
    /// A device name cannot be understood.
    #[error("device {device:?}: {message}")]
    InvalidDevice {
        /// The name.
        device: String,
        /// What is wrong with it.
        message: String,
    },
    /// A device does not exist.
    #[error("device {device:?} does not exist")]
    DeviceNotFound {
        /// Its name.
        device: String,
    },
    /// A device is used by a pool or by another process.
    #[error("device {device:?} is in use")]
    DeviceInUse {
        /// Its name.
        device: String,
    },
    /// A device could not be brought up.
    #[error("device {device:?} failed: {message}")]
    DeviceFailed {
        /// Its name.
        device: String,
        /// What happened.
        message: String,
    },
    /// A pool of that name is in use already.
    #[error("pool {name:?} exists")]
    PoolExists {
        /// The name.
        name: String,
    },
    /// No pool has this name.
    #[error("no pool {name:?}")]
    UnknownPool {
        /// The name.
        name: String,
    },
    /// The pool is in use in a way that forbids this.
    #[error("pool {name:?} is in use")]
    InUse {
        /// The name.
        name: String,
    },
    /// The pool refused. Positions of devices in the error are those in the request.
    #[error(transparent)]
    Pool(#[from] ExtentError),
    /// The shard refused.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The core or the daemon is stopping.
    #[error("the daemon is stopping")]
    Stopping,
    /// Anything else.
    #[error("{message}")]
    Internal {
        /// What happened.
        message: String,
    },
}

impl From<PoolManagerError> for Failure {
    fn from(error: PoolManagerError) -> Self {
        let message = error.to_string();
        match error {
            PoolManagerError::InvalidDevice { device, .. } => {
                Self::new(ErrorReason::InvalidDevice, message).about_device(&device)
            }
            PoolManagerError::DeviceNotFound { device } => {
                Self::new(ErrorReason::DeviceNotFound, message).about_device(&device)
            }
            PoolManagerError::DeviceInUse { device } => {
                Self::new(ErrorReason::DeviceInUse, message).about_device(&device)
            }
            PoolManagerError::DeviceFailed { device, .. } => {
                Self::new(ErrorReason::DeviceGone, message).about_device(&device)
            }
            PoolManagerError::PoolExists { name } => {
                Self::new(ErrorReason::PoolExists, message).about(&name, "")
            }
            PoolManagerError::UnknownPool { name } => {
                Self::new(ErrorReason::PoolNotFound, message).about(&name, "")
            }
            PoolManagerError::InUse { name } => {
                Self::new(ErrorReason::InUse, message).about(&name, "")
            }
            PoolManagerError::Pool(error) => error.into(),
            PoolManagerError::Control(error) => error.into(),
            PoolManagerError::Stopping => Self::new(ErrorReason::ShuttingDown, message),
            PoolManagerError::Internal { .. } => Self::new(ErrorReason::Internal, message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_of_the_pool_manager_has_its_reason() {
        let text = || "x".to_owned();
        let table = [
            (
                PoolManagerError::InvalidDevice {
                    device: text(),
                    message: text(),
                },
                ErrorReason::InvalidDevice,
            ),
            (
                PoolManagerError::DeviceNotFound { device: text() },
                ErrorReason::DeviceNotFound,
            ),
            (
                PoolManagerError::DeviceInUse { device: text() },
                ErrorReason::DeviceInUse,
            ),
            (
                PoolManagerError::DeviceFailed {
                    device: text(),
                    message: text(),
                },
                ErrorReason::DeviceGone,
            ),
            (
                PoolManagerError::PoolExists { name: text() },
                ErrorReason::PoolExists,
            ),
            (
                PoolManagerError::UnknownPool { name: text() },
                ErrorReason::PoolNotFound,
            ),
            (PoolManagerError::InUse { name: text() }, ErrorReason::InUse),
            (
                PoolManagerError::Pool(ExtentError::RequestIdReused),
                ErrorReason::RequestIdReused,
            ),
            (
                PoolManagerError::Control(ControlError::TooMany),
                ErrorReason::Throttled,
            ),
            (PoolManagerError::Stopping, ErrorReason::ShuttingDown),
            (
                PoolManagerError::Internal { message: text() },
                ErrorReason::Internal,
            ),
        ];
        for (error, reason) in table {
            let shown = format!("{error:?}");
            assert_eq!(Failure::from(error).reason(), reason, "{shown}");
        }
    }
}
