//! What crosses the engine's upper edge on the data path.

use std::fmt;

use lode_block::Durability;
use lode_bus::DmaBuffer;

use crate::error::IoError;

/// The caller's own mark on a request, given back with its completion. The engine does not look
/// at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// A pool of this shard, counted from 0 in the order in which pools were attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolIndex(pub u16);

impl fmt::Display for PoolIndex {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

/// An open volume: valid on the shard that gave it out until the volume is deleted or its pool
/// detached, after which it names nothing (never another volume).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VolumeHandle {
    pub(crate) pool: PoolIndex,
    pub(crate) slot: u16,
    pub(crate) generation: u32,
}

impl VolumeHandle {
    /// Names no volume.
    pub(crate) const NONE: Self = Self {
        pool: PoolIndex(u16::MAX),
        slot: u16::MAX,
        generation: u32::MAX,
    };

    /// A handle made of its parts, for whoever stands in for a shard: on a shard, only what it
    /// gave out itself names a volume.
    #[must_use]
    pub const fn from_parts(pool: PoolIndex, slot: u16, generation: u32) -> Self {
        Self {
            pool,
            slot,
            generation,
        }
    }

    /// The pool that the volume lives in.
    #[must_use]
    pub const fn pool(self) -> PoolIndex {
        self.pool
    }
}

/// What a volume is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataOperation {
    /// Fill the first `length_bytes` of the buffer. At most 1 MiB.
    Read,
    /// Write the first `length_bytes` of the buffer. At most 1 MiB.
    Write,
    /// Compare the volume with the first `length_bytes` of the buffer and, when they are equal,
    /// write the `length_bytes` that follow them; atomic towards every other request. At most
    /// 512 KiB, so that both halves fit one buffer.
    CompareAndWrite,
    /// Make the range read as zeros; whole allocation units are given back to the pool.
    WriteZeroes,
    /// Give the whole allocation units inside the range back to the pool; they read as zeros
    /// afterwards. What lies in units that the range covers only in part is left as it is.
    Discard,
    /// Make durable every write of this volume that completed before this was submitted.
    Flush,
}

/// A request for one volume.
#[derive(Debug)]
#[must_use = "a request is submitted or its caller is told"]
pub struct DataRequest {
    /// The caller's mark.
    pub token: Token,
    /// The volume.
    pub volume: VolumeHandle,
    /// What to do.
    pub operation: DataOperation,
    /// The least durability that a write, compare-and-write, write-zeroes or discard is
    /// acknowledged with; the volume's own may be stronger.
    pub durability: Durability,
    /// Where the range begins: a multiple of the volume's block size. 0 for a flush.
    pub offset_bytes: u64,
    /// How long it is: a multiple of the volume's block size, more than 0. 0 for a flush.
    pub length_bytes: u64,
    /// The memory, from the shard's own buffer pool, where the operation moves data. It comes
    /// back with the completion.
    pub buffer: Option<DmaBuffer>,
}

/// The end of a [`DataRequest`].
#[derive(Debug)]
#[must_use = "a completion carries its caller's buffer"]
pub struct DataCompletion {
    /// The request's mark.
    pub token: Token,
    /// How it ended: the durability that was reached (a read reports `None`), or why not. A
    /// failed write leaves each of its blocks with the old or the new content.
    pub result: Result<Durability, IoError>,
    /// The request's buffer.
    pub buffer: Option<DmaBuffer>,
}
