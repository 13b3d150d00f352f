//! Errors as they cross the wire: a gRPC code and a machine-readable [`ErrorDetail`].
//!
//! A failed call carries a `google.rpc.Status` in the binary trailer `grpc-status-details-bin`,
//! whose one detail is the [`ErrorDetail`]: what every gRPC library's status helpers decode. A
//! failed request of an Io stream carries the detail in [`IoError`].

use bytes::Bytes;
use prost::{Message, Name};
use prost_types::Any;
use tonic::{Code, Status};

use crate::v1::{ErrorDetail, ErrorReason, IoError};

impl ErrorReason {
    /// The gRPC code that goes with the reason: the one table of the two.
    #[must_use]
    pub const fn code(self) -> Code {
        match self {
            Self::Unspecified => Code::Unknown,
            Self::Internal => Code::Internal,
            Self::UnsupportedOperation => Code::Unimplemented,
            Self::InvalidName
            | Self::ZeroLength
            | Self::Unaligned
            | Self::LengthTooLong
            | Self::LengthMismatch
            | Self::InvalidBlockSize
            | Self::InvalidSize
            | Self::InvalidRequestId
            | Self::InvalidPageToken
            | Self::InvalidDevice
            | Self::InvalidField
            | Self::TagInUse => Code::InvalidArgument,
            Self::BeyondEnd => Code::OutOfRange,
            Self::PoolNotFound | Self::VolumeNotFound | Self::DeviceNotFound => Code::NotFound,
            Self::PoolExists | Self::VolumeExists => Code::AlreadyExists,
            Self::NoSpace | Self::Throttled | Self::Credits | Self::TableFull => {
                Code::ResourceExhausted
            }
            Self::ShrinkNotAllowed
            | Self::ReadOnly
            | Self::PoolFailed
            | Self::InUse
            | Self::PoolAmbiguous
            | Self::DeviceHoldsPool
            | Self::DeviceInUse
            | Self::NotAPool
            | Self::UnsupportedVersion
            | Self::DeviceMissing
            | Self::DeviceTooSmall
            | Self::RequestIdReused
            | Self::StreamNotOpen => Code::FailedPrecondition,
            Self::MediaError | Self::Corrupt => Code::DataLoss,
            Self::DeviceReset
            | Self::DeviceGone
            | Self::PoolNotReady
            | Self::ShuttingDown
            | Self::ConnectionLost => Code::Unavailable,
            Self::DeviceTimeout => Code::DeadlineExceeded,
            Self::CompareMismatch => Code::Aborted,
        }
    }
}

impl ErrorDetail {
    /// A detail with a reason and nothing else.
    #[must_use]
    pub fn new(reason: ErrorReason) -> Self {
        Self {
            reason: reason.into(),
            ..Self::default()
        }
    }

    /// Adds the pool concerned.
    #[must_use]
    pub fn with_pool(mut self, pool: impl Into<String>) -> Self {
        self.pool = pool.into();
        self
    }

    /// Adds the volume concerned.
    #[must_use]
    pub fn with_volume(mut self, volume: impl Into<String>) -> Self {
        self.volume = volume.into();
        self
    }

    /// Adds the range concerned.
    #[must_use]
    pub fn with_range(mut self, offset_bytes: u64, length_bytes: u64) -> Self {
        self.offset_bytes = Some(offset_bytes);
        self.length_bytes = Some(length_bytes);
        self
    }

    /// Adds the device concerned.
    #[must_use]
    pub fn with_device(mut self, device: impl Into<String>) -> Self {
        self.device = device.into();
        self
    }

    /// Adds the NVMe status that the device gave.
    #[must_use]
    pub fn with_device_status(mut self, status: Option<u16>) -> Self {
        self.device_status = status.map(u32::from);
        self
    }

    /// Adds the field at fault.
    #[must_use]
    pub fn with_field(mut self, field: impl Into<String>) -> Self {
        self.field = field.into();
        self
    }

    /// Adds the bound that was exceeded.
    #[must_use]
    pub fn with_limit(mut self, limit: u64) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The failure of a call with this detail and the code that goes with its reason.
    #[must_use]
    pub fn into_status(self, message: impl Into<String>) -> Status {
        let code = self.reason().code();
        status_with_detail(code, message, &self)
    }

    /// The failure of an Io request with this detail and the code that goes with its reason.
    #[must_use]
    pub fn into_io_error(self, message: impl Into<String>) -> IoError {
        IoError {
            code: code_number(self.reason().code()),
            message: message.into(),
            detail: Some(self),
        }
    }

    /// The detail that a failed call carries, if it carries one that can be decoded.
    #[must_use]
    pub fn from_status(status: &Status) -> Option<Self> {
        let rpc = RpcStatus::decode(status.details()).ok()?;
        let url = Self::type_url();
        let any = rpc.details.iter().find(|any| any.type_url == url)?;
        Self::decode(any.value.as_slice()).ok()
    }
}

impl IoError {
    /// The same failure as that of a call.
    #[must_use]
    pub fn into_status(self) -> Status {
        let code = i32::try_from(self.code).map_or(Code::Unknown, Code::from_i32);
        match self.detail {
            Some(detail) => status_with_detail(code, self.message, &detail),
            None => Status::new(code, self.message),
        }
    }
}

/// The failure of a call with `code`, `message` for people and `detail` for machines. Prefer
/// [`ErrorDetail::into_status`], which takes the code from the reason.
#[must_use]
pub fn status_with_detail(code: Code, message: impl Into<String>, detail: &ErrorDetail) -> Status {
    let message = message.into();
    let rpc = RpcStatus {
        code: i32::from(code),
        message: message.clone(),
        details: vec![Any {
            type_url: ErrorDetail::type_url(),
            value: detail.encode_to_vec(),
        }],
    };
    Status::with_details(code, message, Bytes::from(rpc.encode_to_vec()))
}

/// The number of a gRPC code on the wire.
fn code_number(code: Code) -> u32 {
    u32::try_from(i32::from(code)).expect("gRPC codes are 0 to 16")
}

/// `google.rpc.Status`: the envelope of error details (google/rpc/status.proto).
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

impl Name for ErrorDetail {
    const PACKAGE: &'static str = "lodestore.v1";
    const NAME: &'static str = "ErrorDetail";

    fn full_name() -> String {
        format!("{}.{}", Self::PACKAGE, Self::NAME)
    }

    fn type_url() -> String {
        format!("type.googleapis.com/{}", Self::full_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail() -> ErrorDetail {
        ErrorDetail::new(ErrorReason::MediaError)
            .with_pool("tank")
            .with_volume("v1")
            .with_range(4096, 8192)
            .with_device("memory:1GiB")
            .with_device_status(Some(0x281))
    }

    #[test]
    fn a_detail_comes_back_from_the_status_that_carries_it() {
        let status = detail().into_status("no luck");
        assert_eq!(status.code(), Code::DataLoss);
        assert_eq!(status.message(), "no luck");
        assert_eq!(ErrorDetail::from_status(&status), Some(detail()));
    }

    #[test]
    fn a_status_with_foreign_or_broken_details_has_no_detail() {
        assert_eq!(ErrorDetail::from_status(&Status::internal("x")), None);
        let broken = Status::with_details(Code::Internal, "x", Bytes::from_static(&[0xff; 7]));
        assert_eq!(ErrorDetail::from_status(&broken), None);
        let foreign = RpcStatus {
            code: 5,
            message: String::new(),
            details: vec![Any {
                type_url: "type.googleapis.com/google.rpc.ErrorInfo".into(),
                value: detail().encode_to_vec(),
            }],
        };
        let status =
            Status::with_details(Code::NotFound, "x", Bytes::from(foreign.encode_to_vec()));
        assert_eq!(ErrorDetail::from_status(&status), None);
    }

    #[test]
    fn an_io_error_and_the_status_made_of_it_agree() {
        let error = ErrorDetail::new(ErrorReason::Credits)
            .with_limit(32)
            .into_io_error("too many");
        assert_eq!(error.code, 8);
        let status = error.into_status();
        assert_eq!(status.code(), Code::ResourceExhausted);
        let found = ErrorDetail::from_status(&status).expect("the detail");
        assert_eq!(found.reason(), ErrorReason::Credits);
        assert_eq!(found.limit, Some(32));
    }

    #[test]
    fn every_reason_has_the_code_that_its_comment_in_the_schema_names() {
        let schema = include_str!("../../../proto/lodestore/v1/error.proto");
        let mut code = None;
        let mut seen = 0;
        for line in schema.lines().map(str::trim) {
            if let Some(named) = line
                .strip_prefix("// (")
                .and_then(|rest| rest.split(')').next())
            {
                code = Some(named.to_owned());
            }
            let Some((name, _)) = line.split_once(" = ").filter(|_| line.contains("REASON")) else {
                continue;
            };
            let Some(reason) = ErrorReason::from_str_name(name) else {
                continue;
            };
            if reason != ErrorReason::Unspecified {
                let named = code.take().expect("a comment with a code");
                assert_eq!(spelled(reason.code()), named, "{name}");
                seen += 1;
            }
        }
        assert!(seen > 40, "the schema has been read: {seen}");
    }

    /// The code's name as the gRPC specification spells it.
    fn spelled(code: Code) -> String {
        let mut name = String::new();
        for letter in format!("{code:?}").chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(letter.to_ascii_uppercase());
        }
        name
    }
}
