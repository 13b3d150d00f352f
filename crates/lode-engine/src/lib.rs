//! Volumes over a pool of extents: every request is classified, mapped, submitted to this core's
//! own queues, and its completion routed either straight back or to the stage that still owes
//! work for it.
//!
//! Key types: [`Shard`], one core's part; [`DataRequest`] and [`ControlRequest`], what it is
//! asked; [`classify_write`], the rules; [`ShardStats`], the figures.
//!
//! Runtime-free: a caller submits requests, polls with the present time, and takes completions.
//! Everything runs on the thread that polls; nothing blocks.
//!
//! Invariants:
//! 1. Every request that is taken is completed exactly once.
//! 2. A read or a pure overwrite neither locks nor touches the journal; it allocates only where
//!    its range lies in more than four pieces.
//! 3. New blocks are recorded only after the device has completed the data written to them.
//! 4. A flush is submitted only after the completions that it covers.
//! 5. Two requests that change the mapping of one unit never run at once.
//! 6. The mapping of a unit changes only when no command of any core uses the old one.

mod classify;
mod command;
mod control;
mod core;
mod error;
mod fair;
mod flush;
mod guest;
mod host;
mod lane;
mod lease;
mod memory;
mod metadata;
mod op;
mod peers;
mod port;
mod recent;
mod request;
mod route;
mod shard;
mod stats;
mod tag;
mod throttle;
mod volume;
mod waiting;

pub use classify::{
    CacheFacts, Classification, DataCommand, PieceFacts, REASON_NAMES, Reasons, WriteFacts,
    classify_write,
};
pub use control::{
    Completion, ControlError, ControlReply, ControlRequest, DeviceStatus, Extent, LimitChange,
    PoolIdentity, PoolStatus, Shrink, VolumeName, VolumeStatus,
};
pub use error::IoError;
pub use port::{GuestSpec, Letter, Port};
pub use request::{DataCompletion, DataOperation, DataRequest, PoolIndex, Token, VolumeHandle};
pub use route::{Routing, requests_lost};
pub use shard::{METADATA_OPERATIONS_MAX, Shard, ShardLimits, device_spec};
pub use stats::{
    COUNTER_NAMES, DeviceStats, HAND_OFF_NAMES, OPERATION_NAMES, OperationStats, PoolStats,
    SPACE_NAMES, ShardStats, VolumeStats,
};
pub use tag::is_metadata_command;
pub use throttle::Throttle;
