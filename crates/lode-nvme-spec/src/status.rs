//! The status field of a completion (Base 2.0 §3.3.3.2.1).

use std::fmt;

use crate::bits::{bit, field};
use crate::open_enum::open_enum;

/// The status field without its phase tag: bits 7:0 status code, bits 10:8 status code type,
/// bits 12:11 command retry delay, bit 13 more, bit 14 do not retry (figure 91).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Status(u16);

impl Status {
    /// The command did what it was asked to.
    pub const SUCCESS: Self = Self(0);

    /// The status of `code`, retry not ruled out.
    #[must_use]
    pub const fn new(code: StatusCode) -> Self {
        Self(code.raw())
    }

    /// Decodes the 15 bits above the phase tag.
    #[must_use]
    pub const fn from_raw(raw: u16) -> Self {
        Self(raw & 0x7FFF)
    }

    /// The 15 bits above the phase tag.
    #[must_use]
    pub const fn raw(self) -> u16 {
        self.0
    }

    /// Status code and status code type alone: bits 10:0.
    #[must_use]
    pub const fn code_bits(self) -> u16 {
        self.0 & 0x7FF
    }

    /// What it means.
    #[must_use]
    pub const fn code(self) -> StatusCode {
        StatusCode::from_raw(self.code_bits())
    }

    /// Whether the command did what it was asked to.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.code_bits() == 0
    }

    /// Whether the same command would fail again (DNR).
    #[must_use]
    pub const fn forbids_retry(self) -> bool {
        bit(self.0 as u64, 14)
    }

    /// Whether the error log says more (M).
    #[must_use]
    pub const fn has_more(self) -> bool {
        bit(self.0 as u64, 13)
    }

    /// Which retry delay of Identify Controller applies: 0 none, 1 to 3 (CRD).
    #[must_use]
    pub const fn retry_delay_index(self) -> u8 {
        field(self.0 as u64, 11, 2)
    }

    /// The same status with "do not retry" set.
    #[must_use]
    pub const fn with_no_retry(self) -> Self {
        Self(self.0 | 1 << 14)
    }

    /// The same status with "more in the error log" set.
    #[must_use]
    pub const fn with_more(self) -> Self {
        Self(self.0 | 1 << 13)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} ({:#05x})", self.code(), self.code_bits())?;
        if self.forbids_retry() {
            formatter.write_str(", do not retry")?;
        }
        Ok(())
    }
}

/// Status code type and status code together. Total: every pair decodes and encodes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatusCode {
    /// Type 0.
    Generic(GenericStatus),
    /// Type 1: the meaning depends on the command.
    Specific(SpecificStatus),
    /// Type 2.
    Media(MediaStatus),
    /// Type 3.
    Path(PathStatus),
    /// Type 4 to 6.
    Reserved {
        /// The status code type.
        kind: u8,
        /// The status code.
        code: u8,
    },
    /// Type 7.
    Vendor(u8),
}

impl StatusCode {
    /// Decodes bits 7:0 code and 10:8 type; the bits above are ignored.
    #[must_use]
    pub const fn from_raw(raw: u16) -> Self {
        let code = field(raw as u64, 0, 8);
        match field(raw as u64, 8, 3) {
            0 => Self::Generic(GenericStatus::from_raw(code)),
            1 => Self::Specific(SpecificStatus::from_raw(code)),
            2 => Self::Media(MediaStatus::from_raw(code)),
            3 => Self::Path(PathStatus::from_raw(code)),
            7 => Self::Vendor(code),
            kind => Self::Reserved { kind, code },
        }
    }

    /// Bits 7:0 code and 10:8 type.
    #[must_use]
    pub const fn raw(self) -> u16 {
        match self {
            Self::Generic(code) => code.raw() as u16,
            Self::Specific(code) => 0x100 | code.raw() as u16,
            Self::Media(code) => 0x200 | code.raw() as u16,
            Self::Path(code) => 0x300 | code.raw() as u16,
            Self::Reserved { kind, code } => (kind as u16 & 7) << 8 | code as u16,
            Self::Vendor(code) => 0x700 | code as u16,
        }
    }
}

impl From<GenericStatus> for Status {
    fn from(code: GenericStatus) -> Self {
        Self::new(StatusCode::Generic(code))
    }
}

impl From<SpecificStatus> for Status {
    fn from(code: SpecificStatus) -> Self {
        Self::new(StatusCode::Specific(code))
    }
}

impl From<MediaStatus> for Status {
    fn from(code: MediaStatus) -> Self {
        Self::new(StatusCode::Media(code))
    }
}

impl From<PathStatus> for Status {
    fn from(code: PathStatus) -> Self {
        Self::new(StatusCode::Path(code))
    }
}

open_enum! {
    /// Generic command status (Base 2.0 figure 94; NVM Command Set 1.0 figure 12).
    GenericStatus {
        /// Successful completion.
        Success = 0x00,
        /// Invalid command opcode.
        InvalidOpcode = 0x01,
        /// Invalid field in command.
        InvalidField = 0x02,
        /// The command identifier is already in use.
        CommandIdConflict = 0x03,
        /// Data or metadata could not be transferred.
        DataTransferError = 0x04,
        /// Aborted for want of power.
        AbortedPowerLoss = 0x05,
        /// Internal error.
        InternalError = 0x06,
        /// Aborted by an Abort command.
        AbortRequested = 0x07,
        /// Aborted because its submission queue was deleted.
        AbortedQueueDeletion = 0x08,
        /// Aborted because the other fused command failed.
        AbortedFailedFused = 0x09,
        /// Aborted because the other fused command is missing.
        AbortedMissingFused = 0x0A,
        /// Invalid namespace or format.
        InvalidNamespaceOrFormat = 0x0B,
        /// Command sequence error.
        CommandSequenceError = 0x0C,
        /// Invalid SGL segment descriptor.
        InvalidSglSegment = 0x0D,
        /// Invalid number of SGL descriptors.
        InvalidSglCount = 0x0E,
        /// The length of the data's SGL is invalid.
        InvalidSglDataLength = 0x0F,
        /// The length of the metadata's SGL is invalid.
        InvalidSglMetadataLength = 0x10,
        /// SGL descriptor type invalid.
        InvalidSglType = 0x11,
        /// Invalid use of the controller memory buffer.
        InvalidMemoryBufferUse = 0x12,
        /// A PRP entry has an offset that is not allowed.
        InvalidPrpOffset = 0x13,
        /// Atomic write unit exceeded.
        AtomicWriteUnitExceeded = 0x14,
        /// Operation denied.
        OperationDenied = 0x15,
        /// SGL offset invalid.
        InvalidSglOffset = 0x16,
        /// Host identifier of inconsistent format.
        HostIdInconsistent = 0x18,
        /// Keep alive timer expired.
        KeepAliveExpired = 0x19,
        /// Keep alive timeout invalid.
        KeepAliveInvalid = 0x1A,
        /// Aborted by a reservation's preempt and abort.
        AbortedPreempt = 0x1B,
        /// The last sanitize operation failed.
        SanitizeFailed = 0x1C,
        /// A sanitize operation is in progress.
        SanitizeInProgress = 0x1D,
        /// The granularity of an SGL data block is invalid.
        InvalidSglGranularity = 0x1E,
        /// Not supported for a queue in the controller memory buffer.
        UnsupportedForMemoryBufferQueue = 0x1F,
        /// The namespace is write protected.
        NamespaceWriteProtected = 0x20,
        /// The controller gave way to something more urgent; retry.
        CommandInterrupted = 0x21,
        /// The transport had a passing error; retry.
        TransientTransportError = 0x22,
        /// Prohibited by command and feature lockdown.
        ProhibitedByLockdown = 0x23,
        /// The media that an admin command needs are not ready.
        AdminMediaNotReady = 0x24,
        /// Logical block address out of range.
        LbaOutOfRange = 0x80,
        /// The write would exceed the namespace's capacity.
        CapacityExceeded = 0x81,
        /// The namespace is not ready.
        NamespaceNotReady = 0x82,
        /// Conflict with a reservation.
        ReservationConflict = 0x83,
        /// The namespace is being formatted.
        FormatInProgress = 0x84,
    }
}

open_enum! {
    /// Command specific status (Base 2.0 figure 95; NVM Command Set 1.0 figure 13).
    SpecificStatus {
        /// The completion queue does not exist.
        CompletionQueueInvalid = 0x00,
        /// Invalid queue identifier.
        InvalidQueueId = 0x01,
        /// Invalid queue size.
        InvalidQueueSize = 0x02,
        /// Too many aborts at once.
        AbortLimitExceeded = 0x03,
        /// Too many asynchronous event requests at once.
        AsyncEventLimitExceeded = 0x05,
        /// Invalid firmware slot.
        InvalidFirmwareSlot = 0x06,
        /// Invalid firmware image.
        InvalidFirmwareImage = 0x07,
        /// Invalid interrupt vector.
        InvalidInterruptVector = 0x08,
        /// Invalid log page.
        InvalidLogPage = 0x09,
        /// Invalid format.
        InvalidFormat = 0x0A,
        /// The completion queue still has a submission queue.
        InvalidQueueDeletion = 0x0C,
        /// The feature cannot be saved.
        FeatureNotSaveable = 0x0D,
        /// The feature cannot be changed.
        FeatureNotChangeable = 0x0E,
        /// The feature is not per namespace.
        FeatureNotNamespaceSpecific = 0x0F,
        /// Namespace identifier unavailable.
        NamespaceIdUnavailable = 0x16,
        /// The namespace is attached already.
        NamespaceAlreadyAttached = 0x18,
        /// The namespace is not attached.
        NamespaceNotAttached = 0x1A,
        /// Conflicting attributes.
        ConflictingAttributes = 0x80,
        /// Invalid protection information.
        InvalidProtectionInformation = 0x81,
        /// A write to a read-only range.
        WriteToReadOnlyRange = 0x82,
        /// A limit on the command's size was exceeded.
        CommandSizeLimitExceeded = 0x83,
    }
}

open_enum! {
    /// Media and data integrity errors (Base 2.0 figure 96; NVM Command Set 1.0 figure 14).
    MediaStatus {
        /// The data could not be written.
        WriteFault = 0x80,
        /// The data could not be read.
        UnrecoveredRead = 0x81,
        /// End-to-end guard check failed.
        GuardCheck = 0x82,
        /// End-to-end application tag check failed.
        ApplicationTagCheck = 0x83,
        /// End-to-end reference tag check failed.
        ReferenceTagCheck = 0x84,
        /// A compare found other data.
        CompareFailure = 0x85,
        /// Access denied.
        AccessDenied = 0x86,
        /// The block is deallocated or was never written.
        DeallocatedBlock = 0x87,
        /// End-to-end storage tag check failed.
        StorageTagCheck = 0x88,
    }
}

open_enum! {
    /// Path related status (Base 2.0 figure 97).
    PathStatus {
        /// Internal path error.
        Internal = 0x00,
        /// The namespace is lost for good on this path.
        PersistentLoss = 0x01,
        /// The namespace is inaccessible on this path.
        Inaccessible = 0x02,
        /// The path is changing its state.
        Transition = 0x03,
        /// The controller found an error of the path.
        ControllerPathing = 0x60,
        /// The host found an error of the path.
        HostPathing = 0x70,
        /// Aborted by the host.
        AbortedByHost = 0x71,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_decodes_and_encodes_back() {
        for raw in 0..=0x7FFF_u16 {
            let status = Status::from_raw(raw);
            assert_eq!(status.raw(), raw);
            assert_eq!(status.code().raw(), status.code_bits());
            assert_eq!(Status::new(status.code()).raw(), raw & 0x7FF);
        }
    }

    #[test]
    fn known_codes_have_the_numbers_of_the_specification() {
        assert_eq!(Status::from(MediaStatus::CompareFailure).raw(), 0x285);
        assert_eq!(Status::from(GenericStatus::CapacityExceeded).raw(), 0x081);
        assert_eq!(Status::from(SpecificStatus::InvalidQueueSize).raw(), 0x102);
        assert_eq!(Status::from(PathStatus::HostPathing).raw(), 0x370);
    }

    #[test]
    fn the_flags_lie_above_the_code() {
        let status = Status::from_raw(0x6281 | 0b10 << 11);
        assert!(status.forbids_retry() && status.has_more());
        assert_eq!(status.retry_delay_index(), 2);
        assert_eq!(
            status.code(),
            StatusCode::Media(MediaStatus::UnrecoveredRead)
        );
        assert!(status.to_string().contains("do not retry"));
        assert!(!Status::from(GenericStatus::InvalidField).forbids_retry());
    }
}
