//! What a completion's status means for the caller: one total mapping.

use lode_block::{DeviceError, ErrorKind};
use lode_nvme_spec::{GenericStatus, MediaStatus, PathStatus, SpecificStatus, Status, StatusCode};

/// The outcome that a completion with `status` has for its request.
#[inline]
pub(crate) fn outcome(status: Status) -> Result<(), DeviceError> {
    if status.is_success() {
        Ok(())
    } else {
        Err(failure(status))
    }
}

#[cold]
fn failure(status: Status) -> DeviceError {
    DeviceError {
        kind: error_kind(status),
        status: Some(status.raw()),
    }
}

/// The kind of error that a failed `status` is. A status that invites a retry while the device
/// forbids one (DNR) is an internal error.
#[must_use]
pub fn error_kind(status: Status) -> ErrorKind {
    let kind = match status.code() {
        StatusCode::Generic(code) => generic(code),
        StatusCode::Specific(code) => specific(code),
        StatusCode::Media(code) => media(code),
        StatusCode::Path(code) => path(code),
        StatusCode::Reserved { .. } | StatusCode::Vendor(_) => ErrorKind::Internal,
    };
    if kind == ErrorKind::Retry && status.forbids_retry() {
        return ErrorKind::Internal;
    }
    kind
}

const fn generic(code: GenericStatus) -> ErrorKind {
    use GenericStatus as S;
    match code {
        S::AbortedPowerLoss
        | S::AbortedQueueDeletion
        | S::SanitizeInProgress
        | S::CommandInterrupted
        | S::TransientTransportError
        | S::AdminMediaNotReady
        | S::NamespaceNotReady
        | S::FormatInProgress => ErrorKind::Retry,
        S::AbortRequested => ErrorKind::TimedOut,
        S::NamespaceWriteProtected => ErrorKind::ReadOnly,
        S::CapacityExceeded => ErrorKind::NoSpace,
        // The driver names only namespaces that it has identified: this one went away.
        S::InvalidNamespaceOrFormat => ErrorKind::Gone,
        S::InvalidOpcode | S::ProhibitedByLockdown => ErrorKind::Unsupported,
        S::InvalidField
        | S::CommandIdConflict
        | S::AbortedFailedFused
        | S::AbortedMissingFused
        | S::CommandSequenceError
        | S::InvalidSglSegment
        | S::InvalidSglCount
        | S::InvalidSglDataLength
        | S::InvalidSglMetadataLength
        | S::InvalidSglType
        | S::InvalidMemoryBufferUse
        | S::InvalidPrpOffset
        | S::AtomicWriteUnitExceeded
        | S::OperationDenied
        | S::InvalidSglOffset
        | S::InvalidSglGranularity
        | S::HostIdInconsistent
        | S::KeepAliveInvalid
        | S::UnsupportedForMemoryBufferQueue
        | S::LbaOutOfRange => ErrorKind::Invalid,
        // A transfer error may be our own missing mapping; repeating it would loop.
        S::DataTransferError
        | S::InternalError
        | S::KeepAliveExpired
        | S::AbortedPreempt
        | S::SanitizeFailed
        | S::ReservationConflict
        | S::Success
        | S::Other(_) => ErrorKind::Internal,
    }
}

const fn specific(code: SpecificStatus) -> ErrorKind {
    use SpecificStatus as S;
    match code {
        S::WriteToReadOnlyRange => ErrorKind::ReadOnly,
        S::Other(_) => ErrorKind::Internal,
        S::CompletionQueueInvalid
        | S::InvalidQueueId
        | S::InvalidQueueSize
        | S::AbortLimitExceeded
        | S::AsyncEventLimitExceeded
        | S::InvalidFirmwareSlot
        | S::InvalidFirmwareImage
        | S::InvalidInterruptVector
        | S::InvalidLogPage
        | S::InvalidFormat
        | S::InvalidQueueDeletion
        | S::FeatureNotSaveable
        | S::FeatureNotChangeable
        | S::FeatureNotNamespaceSpecific
        | S::NamespaceIdUnavailable
        | S::NamespaceAlreadyAttached
        | S::NamespaceNotAttached
        | S::ConflictingAttributes
        | S::InvalidProtectionInformation
        | S::CommandSizeLimitExceeded => ErrorKind::Invalid,
    }
}

const fn media(code: MediaStatus) -> ErrorKind {
    use MediaStatus as S;
    match code {
        S::CompareFailure => ErrorKind::CompareMismatch,
        S::AccessDenied => ErrorKind::Internal,
        S::WriteFault
        | S::UnrecoveredRead
        | S::GuardCheck
        | S::ApplicationTagCheck
        | S::ReferenceTagCheck
        | S::DeallocatedBlock
        | S::StorageTagCheck
        | S::Other(_) => ErrorKind::Media,
    }
}

const fn path(code: PathStatus) -> ErrorKind {
    use PathStatus as S;
    match code {
        S::PersistentLoss => ErrorKind::Gone,
        S::Internal
        | S::Inaccessible
        | S::Transition
        | S::ControllerPathing
        | S::HostPathing
        | S::AbortedByHost => ErrorKind::Retry,
        S::Other(_) => ErrorKind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_a_caller_can_act_on_has_its_kind() {
        let table = [
            (0x001, ErrorKind::Unsupported),
            (0x002, ErrorKind::Invalid),
            (0x004, ErrorKind::Internal),
            (0x005, ErrorKind::Retry),
            (0x006, ErrorKind::Internal),
            (0x007, ErrorKind::TimedOut),
            (0x008, ErrorKind::Retry),
            (0x00B, ErrorKind::Gone),
            (0x013, ErrorKind::Invalid),
            (0x01D, ErrorKind::Retry),
            (0x020, ErrorKind::ReadOnly),
            (0x021, ErrorKind::Retry),
            (0x022, ErrorKind::Retry),
            (0x080, ErrorKind::Invalid),
            (0x081, ErrorKind::NoSpace),
            (0x082, ErrorKind::Retry),
            (0x083, ErrorKind::Internal),
            (0x084, ErrorKind::Retry),
            (0x182, ErrorKind::ReadOnly),
            (0x183, ErrorKind::Invalid),
            (0x280, ErrorKind::Media),
            (0x281, ErrorKind::Media),
            (0x285, ErrorKind::CompareMismatch),
            (0x286, ErrorKind::Internal),
            (0x287, ErrorKind::Media),
            (0x301, ErrorKind::Gone),
            (0x303, ErrorKind::Retry),
            (0x371, ErrorKind::Retry),
            (0x4AA, ErrorKind::Internal),
            (0x7FF, ErrorKind::Internal),
        ];
        for (raw, kind) in table {
            assert_eq!(error_kind(Status::from_raw(raw)), kind, "{raw:#05x}");
        }
    }

    #[test]
    fn every_status_has_an_outcome_and_only_success_succeeds() {
        for raw in 0..=0x7FFF_u16 {
            let status = Status::from_raw(raw);
            let outcome = outcome(status);
            assert_eq!(outcome.is_ok(), raw & 0x7FF == 0, "{raw:#06x}");
            if let Err(error) = outcome {
                assert_eq!(error.status, Some(raw));
            }
        }
    }

    #[test]
    fn a_retry_that_the_device_forbids_is_no_retry() {
        for raw in 1..=0x7FF_u16 {
            let status = Status::from_raw(raw).with_no_retry();
            assert_ne!(error_kind(status), ErrorKind::Retry, "{raw:#05x}");
        }
    }
}
