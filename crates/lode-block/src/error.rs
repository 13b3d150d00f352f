//! Failures of a device, by what a caller can do about them.

use std::fmt;

/// What a caller can do about a failed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The media could not be read or written, or the data failed their check: these blocks are
    /// lost, others are not (NVMe Base 2.0 §4.2.3.3.4).
    Media,
    /// A compare found other data (status 0x285).
    CompareMismatch,
    /// The device has no space left (Capacity Exceeded).
    NoSpace,
    /// The command never took effect or may be repeated safely: the device was being reset, was
    /// not ready, or asked for a retry.
    Retry,
    /// The command did not finish before its deadline and was aborted. Whether it took effect is
    /// unknown.
    TimedOut,
    /// The device failed for good or is no longer there.
    Gone,
    /// The namespace is write protected.
    ReadOnly,
    /// The device found fault with the command itself: a defect on our side.
    Invalid,
    /// The device cannot do this operation.
    Unsupported,
    /// Any other failure that the device reports about itself.
    Internal,
}

/// A failed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceError {
    /// What can be done about it.
    pub kind: ErrorKind,
    /// The NVMe status field without its phase bit: bits 7:0 status code, bits 10:8 status code
    /// type (NVMe Base 2.0 §4.2.3); `None` when no completion was received.
    pub status: Option<u16>,
}

impl DeviceError {
    /// An error that no completion told of.
    #[must_use]
    pub const fn local(kind: ErrorKind) -> Self {
        Self { kind, status: None }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Media => "media error",
            Self::CompareMismatch => "compare mismatch",
            Self::NoSpace => "device out of space",
            Self::Retry => "device asks for a retry",
            Self::TimedOut => "command timed out",
            Self::Gone => "device gone",
            Self::ReadOnly => "device is write protected",
            Self::Invalid => "device refused the command as invalid",
            Self::Unsupported => "operation not supported by the device",
            Self::Internal => "internal device error",
        })
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(formatter, "{} (status {status:#05x})", self.kind),
            None => write!(formatter, "{}", self.kind),
        }
    }
}

impl std::error::Error for DeviceError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_status_is_shown_and_a_local_error_has_none() {
        let told = DeviceError {
            kind: ErrorKind::Media,
            status: Some(0x281),
        };
        assert_eq!(told.to_string(), "media error (status 0x281)");
        assert_eq!(
            DeviceError::local(ErrorKind::Gone).to_string(),
            "device gone"
        );
    }
}
