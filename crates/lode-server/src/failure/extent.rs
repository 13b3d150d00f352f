//! The pool's errors.

use lode_api::v1::ErrorReason;
use lode_extent::{ExtentError, IoFailure};

use crate::failure::Failure;

impl From<ExtentError> for Failure {
    fn from(error: ExtentError) -> Self {
        let failure = Self::new(reason_of(&error), error.to_string());
        match error {
            ExtentError::AlreadyExists { name } => failure.about("", &name),
            ExtentError::TooManyVolumes { limit } => failure.with_limit(limit as u64),
            ExtentError::InvalidName { .. } => failure.with_field("name"),
            ExtentError::InvalidRequestId { .. } => failure.with_field("request_id"),
            ExtentError::InvalidBlockSize { .. } => failure.with_field("block_size_bytes"),
            ExtentError::InvalidSize { .. } => failure
                .with_field("size_bytes")
                .with_limit(lode_units::limits::VOLUME_SIZE_MAX_BYTES),
            ExtentError::InvalidLimits { .. } => failure.with_field("limits"),
            ExtentError::DeviceCount { .. } => failure
                .with_field("devices")
                .with_limit(lode_units::limits::POOL_DEVICES_MAX as u64),
            ExtentError::DeviceSize { device, .. }
            | ExtentError::HoldsPool { device }
            | ExtentError::NotAPool { device }
            | ExtentError::SuperblocksDamaged { device }
            | ExtentError::UnsupportedVersion { device, .. }
            | ExtentError::DeviceTruncated { device, .. }
            | ExtentError::ForeignDevice { device }
            | ExtentError::MetadataDamaged { device, .. }
            | ExtentError::Io { device, .. } => failure.with_device(device.to_string(), None),
            _ => failure,
        }
    }
}

fn reason_of(error: &ExtentError) -> ErrorReason {
    match error {
        ExtentError::NotReady | ExtentError::Exported => ErrorReason::PoolNotReady,
        ExtentError::ReadOnly => ErrorReason::PoolFailed,
        ExtentError::JournalFull | ExtentError::TrimPending { .. } => ErrorReason::Throttled,
        ExtentError::NoSpace { .. } => ErrorReason::NoSpace,
        ExtentError::UnknownVolume { .. } => ErrorReason::VolumeNotFound,
        ExtentError::AlreadyExists { .. } => ErrorReason::VolumeExists,
        ExtentError::RequestIdReused => ErrorReason::RequestIdReused,
        ExtentError::TooManyVolumes { .. } => ErrorReason::TableFull,
        ExtentError::InvalidName { .. } => ErrorReason::InvalidName,
        ExtentError::InvalidRequestId { .. } => ErrorReason::InvalidRequestId,
        ExtentError::InvalidBlockSize { .. } => ErrorReason::InvalidBlockSize,
        ExtentError::InvalidSize { .. } => ErrorReason::InvalidSize,
        ExtentError::OutOfRange { .. } => ErrorReason::BeyondEnd,
        ExtentError::ObjectDamaged { .. }
        | ExtentError::SuperblocksDamaged { .. }
        | ExtentError::JournalDamaged { .. }
        | ExtentError::MetadataDamaged { .. } => ErrorReason::Corrupt,
        ExtentError::InvalidLimits { .. } | ExtentError::DeviceCount { .. } => {
            ErrorReason::InvalidField
        }
        ExtentError::DeviceSize { .. } | ExtentError::DeviceTruncated { .. } => {
            ErrorReason::DeviceTooSmall
        }
        ExtentError::HoldsPool { .. } => ErrorReason::DeviceHoldsPool,
        ExtentError::NotAPool { .. } => ErrorReason::NotAPool,
        ExtentError::UnsupportedVersion { .. } | ExtentError::UnsupportedFeatures { .. } => {
            ErrorReason::UnsupportedVersion
        }
        ExtentError::DeviceMissing { .. } => ErrorReason::DeviceMissing,
        ExtentError::ForeignDevice { .. } => ErrorReason::InvalidDevice,
        ExtentError::Io { source, .. } => reason_of_failure(*source),
        // What the engine settles itself never gets here.
        _ => ErrorReason::Internal,
    }
}

fn reason_of_failure(failure: IoFailure) -> ErrorReason {
    match failure {
        IoFailure::Media => ErrorReason::MediaError,
        IoFailure::Unavailable => ErrorReason::DeviceGone,
        IoFailure::CapacityExceeded => ErrorReason::NoSpace,
        _ => ErrorReason::Internal,
    }
}

#[cfg(test)]
mod tests {
    use lode_extent::{IoOperation, LogicalBlock, VolumeId};
    use lode_units::DeviceIndex;

    use super::*;

    fn io(source: IoFailure) -> ExtentError {
        ExtentError::Io {
            operation: IoOperation::Write,
            device: DeviceIndex::new(0),
            block: 7,
            source,
        }
    }

    fn about_volumes() -> Vec<(ExtentError, ErrorReason)> {
        let volume = VolumeId::new(1);
        let no_space = ExtentError::NoSpace {
            wanted_blocks: 2,
            free_blocks: 1,
            pending_blocks: 0,
        };
        let out_of_range = ExtentError::OutOfRange {
            first: LogicalBlock::new(1),
            count: 1,
        };
        let exists = ExtentError::AlreadyExists { name: "v".into() };
        vec![
            (ExtentError::NotReady, ErrorReason::PoolNotReady),
            (ExtentError::Exported, ErrorReason::PoolNotReady),
            (ExtentError::ReadOnly, ErrorReason::PoolFailed),
            (ExtentError::JournalFull, ErrorReason::Throttled),
            (ExtentError::TrimPending { volume }, ErrorReason::Throttled),
            (no_space, ErrorReason::NoSpace),
            (
                ExtentError::UnknownVolume { volume },
                ErrorReason::VolumeNotFound,
            ),
            (exists, ErrorReason::VolumeExists),
            (ExtentError::RequestIdReused, ErrorReason::RequestIdReused),
            (
                ExtentError::TooManyVolumes { limit: 3 },
                ErrorReason::TableFull,
            ),
            (
                ExtentError::InvalidName { length_bytes: 0 },
                ErrorReason::InvalidName,
            ),
            (
                ExtentError::InvalidRequestId { length_bytes: 65 },
                ErrorReason::InvalidRequestId,
            ),
            (
                ExtentError::InvalidBlockSize { bytes: 7 },
                ErrorReason::InvalidBlockSize,
            ),
            (
                ExtentError::InvalidSize { size_bytes: 0 },
                ErrorReason::InvalidSize,
            ),
            (out_of_range, ErrorReason::BeyondEnd),
            (ExtentError::ObjectDamaged { volume }, ErrorReason::Corrupt),
        ]
    }

    fn about_devices() -> Vec<(ExtentError, ErrorReason)> {
        let device = DeviceIndex::new(2);
        let size = ExtentError::DeviceSize {
            device,
            size_bytes: 1,
        };
        let version = ExtentError::UnsupportedVersion {
            device,
            found: 9,
            supported: 1,
        };
        let truncated = ExtentError::DeviceTruncated {
            device,
            expected_bytes: 2,
            found_bytes: 1,
        };
        let metadata = ExtentError::MetadataDamaged { device, block: 1 };
        vec![
            (
                ExtentError::DeviceCount { found: 17 },
                ErrorReason::InvalidField,
            ),
            (size, ErrorReason::DeviceTooSmall),
            (
                ExtentError::HoldsPool { device },
                ErrorReason::DeviceHoldsPool,
            ),
            (ExtentError::NotAPool { device }, ErrorReason::NotAPool),
            (
                ExtentError::SuperblocksDamaged { device },
                ErrorReason::Corrupt,
            ),
            (version, ErrorReason::UnsupportedVersion),
            (
                ExtentError::UnsupportedFeatures { features: 1 },
                ErrorReason::UnsupportedVersion,
            ),
            (truncated, ErrorReason::DeviceTooSmall),
            (
                ExtentError::ForeignDevice { device },
                ErrorReason::InvalidDevice,
            ),
            (
                ExtentError::JournalDamaged { sequence: 1 },
                ErrorReason::Corrupt,
            ),
            (metadata, ErrorReason::Corrupt),
            (io(IoFailure::Media), ErrorReason::MediaError),
            (io(IoFailure::Unavailable), ErrorReason::DeviceGone),
            (io(IoFailure::CapacityExceeded), ErrorReason::NoSpace),
            (io(IoFailure::Other), ErrorReason::Internal),
        ]
    }

    #[test]
    fn every_error_of_a_pool_has_its_reason() {
        for (error, reason) in about_volumes().into_iter().chain(about_devices()) {
            let shown = format!("{error:?}");
            assert_eq!(Failure::from(error).reason(), reason, "{shown}");
        }
    }

    #[test]
    fn the_device_at_fault_is_named() {
        let names: Vec<_> = (0..3).map(|index| format!("file:{index}")).collect();
        let device = DeviceIndex::new(2);
        let failure = Failure::from(ExtentError::HoldsPool { device }).with_device_name(&names);
        assert_eq!(failure.detail.device, "file:2");
    }
}
