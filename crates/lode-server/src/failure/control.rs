//! The control path's errors.

use lode_api::v1::ErrorReason;
use lode_engine::ControlError;

use crate::failure::Failure;

impl From<ControlError> for Failure {
    fn from(error: ControlError) -> Self {
        let message = error.to_string();
        match error {
            ControlError::UnknownPool { name } => {
                Self::new(ErrorReason::PoolNotFound, message).about(&name, "")
            }
            ControlError::PoolNotNamed { count: 0 } => {
                Self::new(ErrorReason::PoolNotFound, "there is no pool")
            }
            ControlError::PoolNotNamed { .. } => Self::new(ErrorReason::PoolAmbiguous, message),
            ControlError::UnknownVolume { name } => {
                Self::new(ErrorReason::VolumeNotFound, message).about("", &name)
            }
            ControlError::StaleHandle => Self::new(ErrorReason::VolumeNotFound, message),
            ControlError::WouldShrink { current_bytes, .. } => {
                Self::new(ErrorReason::ShrinkNotAllowed, message)
                    .with_field("size_bytes")
                    .with_limit(current_bytes)
            }
            ControlError::Busy { name } => Self::new(ErrorReason::InUse, message).about("", &name),
            ControlError::Io(error) => error.into(),
            ControlError::Pool(error) => error.into(),
            ControlError::TooMany => Self::new(ErrorReason::Throttled, message),
            ControlError::Stopping => Self::new(ErrorReason::ShuttingDown, message),
            _ => Self::new(ErrorReason::Internal, message),
        }
    }
}

#[cfg(test)]
mod tests {
    use lode_engine::IoError;
    use lode_extent::ExtentError;
    use tonic::{Code, Status};

    use super::*;

    #[test]
    fn every_control_error_has_its_reason_and_code() {
        let name = || "n".to_owned();
        let shrink = ControlError::WouldShrink {
            size_bytes: 1,
            current_bytes: 2,
        };
        let exists = ControlError::Pool(ExtentError::AlreadyExists { name: name() });
        let table = [
            (
                ControlError::UnknownPool { name: name() },
                ErrorReason::PoolNotFound,
                Code::NotFound,
            ),
            (
                ControlError::PoolNotNamed { count: 0 },
                ErrorReason::PoolNotFound,
                Code::NotFound,
            ),
            (
                ControlError::PoolNotNamed { count: 2 },
                ErrorReason::PoolAmbiguous,
                Code::FailedPrecondition,
            ),
            (
                ControlError::UnknownVolume { name: name() },
                ErrorReason::VolumeNotFound,
                Code::NotFound,
            ),
            (
                ControlError::StaleHandle,
                ErrorReason::VolumeNotFound,
                Code::NotFound,
            ),
            (
                shrink,
                ErrorReason::ShrinkNotAllowed,
                Code::FailedPrecondition,
            ),
            (
                ControlError::Busy { name: name() },
                ErrorReason::InUse,
                Code::FailedPrecondition,
            ),
            (
                ControlError::Io(IoError::NoSpace),
                ErrorReason::NoSpace,
                Code::ResourceExhausted,
            ),
            (exists, ErrorReason::VolumeExists, Code::AlreadyExists),
            (
                ControlError::TooMany,
                ErrorReason::Throttled,
                Code::ResourceExhausted,
            ),
            (
                ControlError::Stopping,
                ErrorReason::ShuttingDown,
                Code::Unavailable,
            ),
        ];
        for (error, reason, code) in table {
            let shown = format!("{error:?}");
            let failure = Failure::from(error);
            assert_eq!(failure.reason(), reason, "{shown}");
            assert_eq!(Status::from(failure).code(), code, "{shown}");
        }
    }

    #[test]
    fn the_names_concerned_are_told() {
        let failure = Failure::from(ControlError::UnknownVolume { name: "v".into() });
        let failure = failure.about("tank", "other");
        assert_eq!(failure.detail.pool, "tank");
        assert_eq!(failure.detail.volume, "v");
    }
}
