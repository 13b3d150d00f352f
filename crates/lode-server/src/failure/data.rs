//! The data path's errors.

use lode_api::v1::ErrorReason;
use lode_block::ErrorKind;
use lode_engine::IoError;

use crate::failure::Failure;

impl From<IoError> for Failure {
    fn from(error: IoError) -> Self {
        let failure = Self::new(reason_of(&error), error.to_string());
        match error {
            IoError::Unaligned {
                offset_bytes,
                length_bytes,
                ..
            } => failure.with_range(offset_bytes, length_bytes),
            IoError::OutOfRange {
                offset_bytes,
                length_bytes,
                size_bytes,
            } => failure
                .with_range(offset_bytes, length_bytes)
                .with_limit(size_bytes),
            IoError::TooLong {
                length_max_bytes, ..
            } => failure.with_limit(length_max_bytes),
            IoError::Throttled { waiting_max } => failure.with_limit(waiting_max as u64),
            IoError::Mismatch { offset_bytes } => {
                let mut failure = failure;
                failure.detail.offset_bytes = Some(offset_bytes);
                failure
            }
            IoError::Device {
                device,
                offset_bytes,
                length_bytes,
                error,
            } => failure
                .with_range(offset_bytes, length_bytes)
                .with_device(device.to_string(), error.status),
            _ => failure,
        }
    }
}

fn reason_of(error: &IoError) -> ErrorReason {
    match error {
        IoError::UnknownVolume => ErrorReason::VolumeNotFound,
        IoError::Unaligned { .. } => ErrorReason::Unaligned,
        IoError::OutOfRange { .. } => ErrorReason::BeyondEnd,
        IoError::ZeroLength => ErrorReason::ZeroLength,
        IoError::TooLong { .. } => ErrorReason::LengthTooLong,
        IoError::NoSpace => ErrorReason::NoSpace,
        IoError::Throttled { .. } => ErrorReason::Throttled,
        IoError::Mismatch { .. } => ErrorReason::CompareMismatch,
        IoError::Device { error, .. } => reason_of_kind(error.kind),
        IoError::Damaged => ErrorReason::Corrupt,
        IoError::FlushFailed => ErrorReason::PoolFailed,
        IoError::PoolUnavailable => ErrorReason::PoolNotReady,
        IoError::Stopping => ErrorReason::ShuttingDown,
        // A request without its buffer is a defect of this server, as is any error not known here.
        _ => ErrorReason::Internal,
    }
}

fn reason_of_kind(kind: ErrorKind) -> ErrorReason {
    match kind {
        ErrorKind::Media => ErrorReason::MediaError,
        ErrorKind::CompareMismatch => ErrorReason::CompareMismatch,
        ErrorKind::NoSpace => ErrorReason::NoSpace,
        ErrorKind::Retry => ErrorReason::DeviceReset,
        ErrorKind::TimedOut => ErrorReason::DeviceTimeout,
        ErrorKind::Gone => ErrorReason::DeviceGone,
        ErrorKind::ReadOnly => ErrorReason::ReadOnly,
        ErrorKind::Unsupported => ErrorReason::UnsupportedOperation,
        _ => ErrorReason::Internal,
    }
}

#[cfg(test)]
mod tests {
    use lode_api::v1::ErrorDetail;
    use lode_block::DeviceError;
    use lode_units::DeviceIndex;
    use tonic::{Code, Status};

    use super::*;

    fn device(kind: ErrorKind) -> IoError {
        IoError::Device {
            device: DeviceIndex::new(1),
            offset_bytes: 4096,
            length_bytes: 512,
            error: DeviceError {
                kind,
                status: Some(0x281),
            },
        }
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a row for each error")]
    fn every_data_error_has_its_reason_and_code() {
        let unaligned = IoError::Unaligned {
            offset_bytes: 1,
            length_bytes: 2,
            block_size_bytes: 512,
        };
        let beyond = IoError::OutOfRange {
            offset_bytes: 8,
            length_bytes: 8,
            size_bytes: 12,
        };
        let too_long = IoError::TooLong {
            length_bytes: 9,
            length_max_bytes: 8,
        };
        let table = [
            (
                IoError::UnknownVolume,
                ErrorReason::VolumeNotFound,
                Code::NotFound,
            ),
            (unaligned, ErrorReason::Unaligned, Code::InvalidArgument),
            (beyond, ErrorReason::BeyondEnd, Code::OutOfRange),
            (
                IoError::ZeroLength,
                ErrorReason::ZeroLength,
                Code::InvalidArgument,
            ),
            (too_long, ErrorReason::LengthTooLong, Code::InvalidArgument),
            (IoError::NoBuffer, ErrorReason::Internal, Code::Internal),
            (
                IoError::NoSpace,
                ErrorReason::NoSpace,
                Code::ResourceExhausted,
            ),
            (
                IoError::Throttled { waiting_max: 7 },
                ErrorReason::Throttled,
                Code::ResourceExhausted,
            ),
            (
                IoError::Mismatch { offset_bytes: 512 },
                ErrorReason::CompareMismatch,
                Code::Aborted,
            ),
            (
                device(ErrorKind::Media),
                ErrorReason::MediaError,
                Code::DataLoss,
            ),
            (
                device(ErrorKind::CompareMismatch),
                ErrorReason::CompareMismatch,
                Code::Aborted,
            ),
            (
                device(ErrorKind::NoSpace),
                ErrorReason::NoSpace,
                Code::ResourceExhausted,
            ),
            (
                device(ErrorKind::Retry),
                ErrorReason::DeviceReset,
                Code::Unavailable,
            ),
            (
                device(ErrorKind::TimedOut),
                ErrorReason::DeviceTimeout,
                Code::DeadlineExceeded,
            ),
            (
                device(ErrorKind::Gone),
                ErrorReason::DeviceGone,
                Code::Unavailable,
            ),
            (
                device(ErrorKind::ReadOnly),
                ErrorReason::ReadOnly,
                Code::FailedPrecondition,
            ),
            (
                device(ErrorKind::Invalid),
                ErrorReason::Internal,
                Code::Internal,
            ),
            (
                device(ErrorKind::Unsupported),
                ErrorReason::UnsupportedOperation,
                Code::Unimplemented,
            ),
            (
                device(ErrorKind::Internal),
                ErrorReason::Internal,
                Code::Internal,
            ),
            (IoError::Damaged, ErrorReason::Corrupt, Code::DataLoss),
            (
                IoError::FlushFailed,
                ErrorReason::PoolFailed,
                Code::FailedPrecondition,
            ),
            (
                IoError::PoolUnavailable,
                ErrorReason::PoolNotReady,
                Code::Unavailable,
            ),
            (
                IoError::Stopping,
                ErrorReason::ShuttingDown,
                Code::Unavailable,
            ),
        ];
        for (error, reason, code) in table {
            let status = Status::from(Failure::from(error.clone()));
            assert_eq!(status.code(), code, "{error:?}");
            assert_eq!(status.message(), error.to_string());
            let detail = ErrorDetail::from_status(&status).expect("a detail");
            assert_eq!(detail.reason(), reason, "{error:?}");
        }
    }

    #[test]
    fn a_device_error_tells_range_device_and_status() {
        let names = ["file:a".to_owned(), "file:b".to_owned()];
        let failure = Failure::from(device(ErrorKind::Media)).with_device_name(&names);
        let detail = failure.about("tank", "v").at(0, 65536).detail;
        let expected = ErrorDetail::new(ErrorReason::MediaError)
            .with_pool("tank")
            .with_volume("v")
            .with_range(4096, 512)
            .with_device("file:b")
            .with_device_status(Some(0x281));
        assert_eq!(*detail, expected);
    }

    #[test]
    fn bounds_that_were_exceeded_are_told() {
        let too_long = Failure::from(IoError::TooLong {
            length_bytes: 9,
            length_max_bytes: 8,
        });
        assert_eq!(too_long.detail.limit, Some(8));
        let mismatch = Failure::from(IoError::Mismatch { offset_bytes: 512 }).at(0, 4096);
        assert_eq!(mismatch.detail.offset_bytes, Some(512));
    }
}
