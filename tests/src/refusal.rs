//! What a call that failed said.

use std::fmt;

use lode_api::v1::{ErrorDetail, ErrorReason, IoError};
use tonic::{Code, Status};

/// A failed call's or Io request's code and reason.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The gRPC code.
    pub code: Code,
    /// The machine-readable reason; `Unspecified` when the error carries none.
    pub reason: ErrorReason,
}

impl Refusal {
    /// The refusal with `reason` and the code that goes with it.
    #[must_use]
    pub fn of(reason: ErrorReason) -> Self {
        Self {
            code: reason.code(),
            reason,
        }
    }

    /// What `result` was refused with.
    ///
    /// # Panics
    /// When it was not refused, or its message for people is empty.
    #[must_use]
    #[track_caller]
    pub fn expected_in<T: fmt::Debug>(result: Result<T, Status>) -> Self {
        let status = result.expect_err("the call is refused");
        assert!(!status.message().is_empty(), "an error says something");
        Self {
            code: status.code(),
            reason: ErrorDetail::from_status(&status)
                .map_or(ErrorReason::Unspecified, |detail| detail.reason()),
        }
    }
}

impl From<IoError> for Refusal {
    fn from(error: IoError) -> Self {
        Self {
            code: i32::try_from(error.code).map_or(Code::Unknown, Code::from_i32),
            reason: error
                .detail
                .map_or(ErrorReason::Unspecified, |detail| detail.reason()),
        }
    }
}

impl fmt::Debug for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} ({:?})", self.code, self.reason)
    }
}
