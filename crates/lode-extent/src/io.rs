//! The reads, writes and flushes that the state machine asks for.

use lode_units::DeviceIndex;

use crate::types::IoId;

/// The most blocks of 4 KiB that one metadata operation transfers (128 KiB).
pub const METADATA_IO_BLOCKS_MAX: u32 = 32;

/// One device operation that the pool wants done; its outcome goes to
/// [`Pool::complete_io`](crate::Pool::complete_io).
///
/// Operations handed out may run at the same time and end in any order: one that depends on
/// another is not handed out before the other has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct MetadataIo {
    /// Names the operation at its completion.
    pub id: IoId,
    /// The device, by its position in the list given to `create` or `import`.
    pub device: DeviceIndex,
    /// What to do.
    pub op: MetadataOp,
}

/// What a [`MetadataIo`] does. Blocks are 4 KiB blocks of the device.
#[derive(Debug, PartialEq, Eq)]
pub enum MetadataOp {
    /// Read `count` blocks from `block` on.
    Read {
        /// First block.
        block: u64,
        /// 1 to [`METADATA_IO_BLOCKS_MAX`].
        count: u32,
    },
    /// Write `data` from `block` on.
    Write {
        /// First block.
        block: u64,
        /// Whole blocks, at most [`METADATA_IO_BLOCKS_MAX`] of them.
        data: Box<[u8]>,
        /// The write must be on the medium when it completes. Set only where the device said
        /// that it supports that.
        force_unit_access: bool,
    },
    /// Put every write that completed before on the medium.
    Flush,
}

/// What the pool has to know of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Its size in bytes; a part of the last 4 KiB block is not used.
    pub size_bytes: u64,
    /// It has a volatile write cache, and the cache is enabled.
    pub has_volatile_cache: bool,
    /// It can force single writes to the medium.
    pub supports_fua: bool,
}
