//! Volumes over a pool of extents: every request is classified, mapped, submitted to this core's
//! own queues, and its completion routed either straight back or to the stage that still owes
//! work for it.
//!
//! Runtime-free: a caller submits requests, polls with the present time, and takes completions.

mod classify;
mod control;
mod error;
mod request;

pub use classify::{
    CacheFacts, Classification, DataCommand, PieceFacts, REASON_NAMES, Reasons, WriteFacts,
    classify_write,
};
pub use control::{
    Completion, ControlError, ControlReply, ControlRequest, DeviceStatus, Extent, PoolStatus,
    Shrink, VolumeName, VolumeStatus,
};
pub use error::IoError;
pub use request::{DataCompletion, DataOperation, DataRequest, PoolIndex, Token, VolumeHandle};
