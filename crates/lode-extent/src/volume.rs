//! What a caller says and learns about volumes and pools.

use lode_units::BlockSize;

use crate::error::ExtentError;
use crate::types::{Ticket, VolumeId};

/// The most volumes that one pool holds, those being deleted included.
pub const VOLUMES_MAX: usize = 16_384;

/// What a new pool is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSpec {
    /// Its name: 1 to 255 bytes of UTF-8, no control character.
    pub name: String,
    /// Whether a pool that the devices hold is to be destroyed.
    pub existing: ExistingPool,
}

/// What to do with a pool that is already there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingPool {
    /// Refuse with [`ExtentError::HoldsPool`].
    Refuse,
    /// Overwrite it.
    Overwrite,
}

/// How durable a volume's writes are at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SyncAttribute {
    /// As each write asks.
    #[default]
    None,
    /// Data and the metadata to reach it (O_DSYNC).
    Data,
    /// All attributes as well (O_SYNC).
    Full,
}

/// How much a volume may do: what lies above waits. Kept with the volume; who serves it carries
/// it out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeLimits {
    /// The most operations in a second; 0: no limit. At most [`VolumeLimits::RATE_MAX`].
    pub iops_max: u64,
    /// The most bytes in a second, read and written together; 0: no limit. At most
    /// [`VolumeLimits::RATE_MAX`].
    pub bandwidth_max_bytes: u64,
    /// How much of either may be saved up and used at once, as the time in which it is saved. At
    /// most [`VolumeLimits::BURST_MAX_MS`].
    pub burst_ms: u32,
}

impl VolumeLimits {
    /// The highest limit that can be set: more than any device does.
    pub const RATE_MAX: u64 = 1 << 40;
    /// The longest burst: an hour.
    pub const BURST_MAX_MS: u32 = 3_600_000;

    /// Whether each limit is one that can be set.
    #[must_use]
    pub const fn is_valid(&self) -> bool {
        self.iops_max <= Self::RATE_MAX
            && self.bandwidth_max_bytes <= Self::RATE_MAX
            && self.burst_ms <= Self::BURST_MAX_MS
    }

    /// Whether nothing is limited.
    #[must_use]
    pub const fn is_unlimited(&self) -> bool {
        self.iops_max == 0 && self.bandwidth_max_bytes == 0
    }

    /// Whether nothing was ever set.
    pub(crate) fn is_unset(&self) -> bool {
        *self == Self::default()
    }
}

/// What a new volume is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// Its name: 1 to 255 bytes of UTF-8, no control character, unique in the pool.
    pub name: String,
    /// Its size in bytes: a multiple of the block size, 1 block to 64 TiB.
    pub size_bytes: u64,
    /// 512 or 4096 bytes.
    pub block_size: BlockSize,
    /// How durable its writes are at least.
    pub sync: SyncAttribute,
    /// How much it may do.
    pub limits: VolumeLimits,
    /// When it was made, in seconds since 1970-01-01 UTC. Not compared when a request is retried.
    pub created_unix_seconds: u64,
}

/// A volume as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its id.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its block size.
    pub block_size: BlockSize,
    /// How durable its writes are at least.
    pub sync: SyncAttribute,
    /// How much it may do.
    pub limits: VolumeLimits,
    /// When it was made, in seconds since 1970-01-01 UTC.
    pub created_unix_seconds: u64,
    /// Pool space that its data takes, in bytes.
    pub allocated_bytes: u64,
    /// Part of its map cannot be read.
    pub is_damaged: bool,
}

/// The outcome of a bounded [`Pool::unmap`](crate::Pool::unmap).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "units beyond the first `done` are still mapped"]
pub struct Unmapped {
    /// When it is durable; the last recorded change when nothing was mapped.
    pub ticket: Ticket,
    /// Units from the start of the range that are holes now. Call again for the rest.
    pub done: u64,
}

/// Whether a pool serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolState {
    /// Being created or imported.
    Starting,
    /// Serving.
    Ready,
    /// Writing its last checkpoint.
    Exporting,
    /// Clean and closed.
    Exported,
    /// It could not start, or it became read-only: what was durable stays so, nothing more
    /// becomes durable.
    Failed(ExtentError),
}

/// How the pool's space is used; all in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Everything that the devices offer.
    pub capacity_bytes: u64,
    /// Taken by data of volumes, those being deleted included.
    pub allocated_bytes: u64,
    /// Taken by metadata: superblocks, journal, space map, tree nodes.
    pub metadata_bytes: u64,
    /// Kept free so that a full pool still deletes, discards and checkpoints.
    pub reserved_bytes: u64,
    /// What data may still take.
    pub free_bytes: u64,
    /// Reserved by writes under way, or freed and not yet reusable.
    pub pending_bytes: u64,
    /// The sum of the volumes' sizes.
    pub virtual_bytes: u64,
    /// Of all these at most so much lies where the space map cannot be read: nothing is taken
    /// there and nothing given back, until it can.
    pub unreadable_bytes: u64,
    /// Of the metadata's blocks those that nothing refers to, because the last checkpoint could
    /// not give them back there. When the pool is opened anew meanwhile they stay taken.
    pub leaked_bytes: u64,
}

/// What the pool has done since it started. Only ever grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Volumes created.
    pub transactions_create: u64,
    /// Volumes resized.
    pub transactions_resize: u64,
    /// Changes of volumes' limits.
    pub transactions_limit: u64,
    /// Volumes deleted.
    pub transactions_delete: u64,
    /// Allocations recorded.
    pub transactions_map: u64,
    /// Ranges unmapped, by callers and in the background.
    pub transactions_unmap: u64,
    /// Group commits made durable.
    pub journal_commits: u64,
    /// Bytes written to the journal.
    pub journal_bytes: u64,
    /// Flushes asked for, of every purpose.
    pub flushes: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Metadata blocks written by checkpoints.
    pub nodes_written: u64,
    /// Metadata blocks read after the start.
    pub nodes_read: u64,
    /// Metadata blocks found unreadable or damaged.
    pub nodes_damaged: u64,
    /// Superblock copies that could not be written, and pairs of them that could not be read at
    /// the start, while another copy could.
    pub superblock_copies_failed: u64,
    /// Operations turned away because the journal was full.
    pub journal_full: u64,
    /// Journal records applied at import.
    pub replayed_records: u64,
}
