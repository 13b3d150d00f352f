//! The pool's metadata as a state machine without I/O of its own.
//!
//! Owns the on-device format (`docs/format.md`), the allocator, the volumes' extent maps, the
//! journal, checkpoints, recovery and the checker. It asks for reads, writes and flushes
//! ([`Pool::next_io`]) and is told their outcome ([`Pool::complete_io`]); it never blocks, reads
//! no clock and draws no random number of its own. It runs on one thread, the pool's home core.
//!
//! A write that needs space goes: [`Pool::allocate`], the caller writes the data,
//! [`Pool::record`], and where durability is asked for [`Pool::commit`] until
//! [`Pool::durable`] has reached the ticket. Devices are named by their position in the list that
//! the caller gave to [`Pool::create`] or [`Pool::import`], whatever their order in the pool.

mod allocation;
mod catalog;
mod check;
mod core;
mod error;
mod extent;
mod format;
mod io;
mod io_queue;
mod journal;
mod layout;
mod load;
mod piece;
mod pool;
#[cfg(test)]
mod sim;
mod space;
mod tree;
mod types;
mod volume;

pub use allocation::{AllocatedRun, Allocation};
pub use check::{CheckReport, LoadCursor, Violation};
pub use error::{ExtentError, IoFailure, IoOperation, LookupError};
pub use io::{DeviceSpec, METADATA_IO_BLOCKS_MAX, MetadataIo, MetadataOp};
pub use layout::PoolLayout;
pub use load::Missing;
pub use piece::{Piece, PieceFlags, PieceKind};
pub use pool::{ALLOCATION_BLOCKS_MAX, Pool};
pub use types::{IoId, LogicalBlock, PoolBlock, RequestId, Ticket, VolumeId};
pub use volume::{
    Counters, ExistingPool, PoolSpec, PoolState, SyncAttribute, Unmapped, Usage, VOLUMES_MAX,
    VolumeInfo, VolumeLimits, VolumeSpec,
};
