//! What a client call can fail with.

use std::fmt;

use tonic::{Code, Status};

use crate::v1::{ErrorDetail, ErrorReason, IoError};

/// Why a client call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The address is neither `http://HOST:PORT` nor `unix:PATH`.
    #[error("{address:?} is no address of the form http://HOST:PORT or unix:PATH")]
    InvalidAddress {
        /// What was given.
        address: String,
    },
    /// No connection could be made.
    #[error("cannot connect to {address}")]
    Connect {
        /// The server's address.
        address: String,
        /// What the transport says.
        #[source]
        source: tonic::transport::Error,
    },
    /// The server refused or failed the request, or the connection broke.
    #[error(transparent)]
    Failed(#[from] Failure),
}

impl ClientError {
    /// The server's failure, when there is one.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed(failure) => Some(failure),
            Self::InvalidAddress { .. } | Self::Connect { .. } => None,
        }
    }

    /// The gRPC code that describes the error.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::InvalidAddress { .. } => Code::InvalidArgument,
            Self::Connect { .. } => Code::Unavailable,
            Self::Failed(failure) => failure.code,
        }
    }

    /// The machine-readable reason; [`ErrorReason::Unspecified`] when none was given.
    #[must_use]
    pub fn reason(&self) -> ErrorReason {
        self.failure()
            .map_or(ErrorReason::Unspecified, Failure::reason)
    }
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        Failure::from(status).into()
    }
}

/// A failed request: the code, a text for people, and the detail for machines.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The gRPC code.
    pub code: Code,
    /// For people.
    pub message: String,
    /// For machines, when the server sent it.
    pub detail: Option<Box<ErrorDetail>>,
}

impl Failure {
    /// A failure found on this side, with the code that goes with `reason`.
    pub(crate) fn local(reason: ErrorReason, message: impl Into<String>) -> Self {
        Self {
            code: reason.code(),
            message: message.into(),
            detail: Some(Box::new(ErrorDetail::new(reason))),
        }
    }

    /// The connection broke: whether the request took effect is unknown.
    pub(crate) fn connection_lost(message: impl Into<String>) -> Self {
        Self::local(ErrorReason::ConnectionLost, message)
    }

    /// The call did not end in time: whether it took effect is unknown.
    pub(crate) fn too_late() -> Self {
        Self {
            code: Code::DeadlineExceeded,
            message: "the call took longer than its deadline".to_owned(),
            detail: None,
        }
    }

    /// The server broke the protocol.
    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::local(ErrorReason::Internal, message)
    }

    /// The machine-readable reason; [`ErrorReason::Unspecified`] when none was given.
    #[must_use]
    pub fn reason(&self) -> ErrorReason {
        self.detail
            .as_ref()
            .map_or(ErrorReason::Unspecified, |detail| detail.reason())
    }

    /// Whether the same request may succeed a little later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self.code {
            Code::Unavailable => self.reason() != ErrorReason::DeviceGone,
            Code::ResourceExhausted => self.reason() == ErrorReason::Throttled,
            _ => false,
        }
    }
}

impl From<Status> for Failure {
    /// A status that the transport made up, rather than the server, means a broken connection or
    /// a deadline.
    fn from(status: Status) -> Self {
        let detail = ErrorDetail::from_status(&status).map(Box::new);
        if detail.is_none() && std::error::Error::source(&status).is_some() {
            return Self::of_transport(&status);
        }
        Self {
            code: status.code(),
            message: status.message().to_owned(),
            detail,
        }
    }
}

impl Failure {
    fn of_transport(status: &Status) -> Self {
        let mut source = std::error::Error::source(status);
        let mut deepest = status.message().to_owned();
        while let Some(error) = source {
            if error.is::<tonic::TimeoutExpired>() {
                return Self::too_late();
            }
            deepest = error.to_string();
            source = error.source();
        }
        Self::connection_lost(format!("the connection failed: {deepest}"))
    }
}

impl From<IoError> for Failure {
    fn from(error: IoError) -> Self {
        Self {
            code: i32::try_from(error.code).map_or(Code::Unknown, Code::from_i32),
            message: error.message,
            detail: error.detail.map(Box::new),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = spelled(self.code);
        match self.reason() {
            ErrorReason::Unspecified => write!(formatter, "{} ({code})", self.message),
            reason => {
                let name = reason.as_str_name();
                let name = name.strip_prefix("ERROR_REASON_").unwrap_or(name);
                write!(formatter, "{} ({code}, {name})", self.message)
            }
        }
    }
}

impl std::error::Error for Failure {}

/// The code's name as the gRPC specification spells it.
const fn spelled(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_shows_text_code_and_reason_on_one_line() {
        let status = ErrorDetail::new(ErrorReason::VolumeNotFound).into_status("no volume \"a\"");
        assert_eq!(
            Failure::from(status).to_string(),
            "no volume \"a\" (NOT_FOUND, VOLUME_NOT_FOUND)"
        );
        assert_eq!(
            Failure::from(Status::internal("x")).to_string(),
            "x (INTERNAL)"
        );
    }

    #[test]
    fn a_status_made_by_the_transport_is_a_lost_connection() {
        let broken = std::io::Error::other("reset by peer");
        let failure = Failure::from(Status::from_error(Box::new(broken)));
        assert_eq!(failure.code, Code::Unavailable);
        assert_eq!(failure.reason(), ErrorReason::ConnectionLost);
        assert!(failure.is_transient());
    }

    #[test]
    fn a_deadline_is_told_apart_from_a_lost_connection() {
        let failure = Failure::from(Status::from_error(Box::new(tonic::TimeoutExpired(()))));
        assert_eq!(failure.code, Code::DeadlineExceeded);
        assert!(!failure.is_transient());
    }

    #[test]
    fn a_device_that_is_gone_and_a_full_pool_are_not_worth_a_retry() {
        for reason in [ErrorReason::DeviceGone, ErrorReason::NoSpace] {
            assert!(!Failure::local(reason, "x").is_transient(), "{reason:?}");
        }
        for reason in [ErrorReason::DeviceReset, ErrorReason::Throttled] {
            assert!(Failure::local(reason, "x").is_transient(), "{reason:?}");
        }
    }
}
