//! Every failure as clients see it: the one table from the errors of the layers below to the
//! reason, and so to the gRPC code, of an answer.

mod control;
mod data;
mod extent;

use lode_api::v1::{ErrorDetail, ErrorReason, IoError};
use lode_reactor::gateway::{BufferError, RefuseReason};
use tonic::Status;

/// A failure on its way to a client: for a whole call, or for one request of an Io stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    detail: Box<ErrorDetail>,
    message: String,
}

impl Failure {
    /// A failure for `reason`, told in `message`.
    pub(crate) fn new(reason: ErrorReason, message: impl Into<String>) -> Self {
        Self {
            detail: Box::new(ErrorDetail::new(reason)),
            message: message.into(),
        }
    }

    /// A failure with a detail that is complete already.
    pub(crate) fn of_detail(detail: Box<ErrorDetail>, message: impl Into<String>) -> Self {
        Self {
            detail,
            message: message.into(),
        }
    }

    /// The length of a request is zero.
    pub(crate) fn zero_length(field: &str) -> Self {
        Self::new(ErrorReason::ZeroLength, "the length is 0").with_field(field)
    }

    /// The length of a request exceeds what it may.
    pub(crate) fn too_long(field: &str, length_bytes: u64, limit: u64) -> Self {
        let message = format!("length {length_bytes} exceeds the limit of {limit} bytes");
        Self::new(ErrorReason::LengthTooLong, message)
            .with_field(field)
            .with_limit(limit)
    }

    /// A name cannot be that of a pool or volume.
    pub(crate) fn invalid_name(field: &str, message: impl Into<String>) -> Self {
        Self::new(ErrorReason::InvalidName, message)
            .with_field(field)
            .with_limit(lode_units::limits::NAME_LENGTH_MAX_BYTES as u64)
    }

    /// A field is missing or has no valid value.
    pub(crate) fn invalid_field(field: &str, message: impl Into<String>) -> Self {
        Self::new(ErrorReason::InvalidField, message).with_field(field)
    }

    /// Names the pool and the volume concerned, where they are not named yet.
    pub(crate) fn about(mut self, pool: &str, volume: &str) -> Self {
        if self.detail.pool.is_empty() {
            pool.clone_into(&mut self.detail.pool);
        }
        if self.detail.volume.is_empty() {
            volume.clone_into(&mut self.detail.volume);
        }
        self
    }

    /// Names the range concerned, where the failure does not name a part of it.
    pub(crate) fn at(mut self, offset_bytes: u64, length_bytes: u64) -> Self {
        self.detail.offset_bytes.get_or_insert(offset_bytes);
        self.detail.length_bytes.get_or_insert(length_bytes);
        self
    }

    fn with_range(mut self, offset_bytes: u64, length_bytes: u64) -> Self {
        *self.detail = self.detail.with_range(offset_bytes, length_bytes);
        self
    }

    /// Names the field at fault.
    pub(crate) fn with_field(mut self, field: &str) -> Self {
        *self.detail = self.detail.with_field(field);
        self
    }

    /// Tells the bound that was exceeded.
    pub(crate) fn with_limit(mut self, limit: u64) -> Self {
        *self.detail = self.detail.with_limit(limit);
        self
    }

    fn with_device(mut self, device: impl Into<String>, status: Option<u16>) -> Self {
        *self.detail = self.detail.with_device(device).with_device_status(status);
        self
    }

    /// Names the device at fault.
    pub(crate) fn about_device(self, device: &str) -> Self {
        self.with_device(device, None)
    }

    /// Replaces the position of the device at fault by its name, which `names` lists in the order
    /// of the pool's devices.
    pub(crate) fn with_device_name(mut self, names: &[String]) -> Self {
        let position = self.detail.device.parse::<usize>().ok();
        if let Some(name) = position.and_then(|position| names.get(position)) {
            name.clone_into(&mut self.detail.device);
        }
        self
    }

    /// Whether a device is at fault.
    pub(crate) fn names_device(&self) -> bool {
        !self.detail.device.is_empty()
    }

    /// Why.
    #[cfg(test)]
    pub(crate) fn reason(&self) -> ErrorReason {
        self.detail.reason()
    }

    /// As the failure of one request of an Io stream.
    pub(crate) fn into_io_error(self) -> IoError {
        self.detail.into_io_error(self.message)
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        failure.detail.into_status(failure.message)
    }
}

impl From<RefuseReason> for Failure {
    fn from(reason: RefuseReason) -> Self {
        let named = match reason {
            RefuseReason::Full { .. } => ErrorReason::Throttled,
            RefuseReason::Stopping => ErrorReason::ShuttingDown,
            _ => ErrorReason::Internal,
        };
        Self::new(named, reason.to_string())
    }
}

impl From<BufferError> for Failure {
    fn from(error: BufferError) -> Self {
        let message = error.to_string();
        match error {
            BufferError::TooLong {
                length_max_bytes, ..
            } => Self::new(ErrorReason::LengthTooLong, message).with_limit(length_max_bytes as u64),
            BufferError::TooManyWaiting { .. } => Self::new(ErrorReason::Throttled, message),
            _ => Self::new(ErrorReason::Internal, message),
        }
    }
}
