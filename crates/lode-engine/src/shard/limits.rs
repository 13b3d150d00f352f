//! How many requests a shard has at once, and how many of them find memory.

use lode_units::limits::CORE_REQUESTS_MAX;

/// How many requests a shard has at once, and how many of them find memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardLimits {
    /// Requests in progress: 2 to [`CORE_REQUESTS_MAX`]. One in 256, and one at least, is kept for
    /// control requests.
    pub requests_max: usize,
    /// Of these, how many may owe more than their commands: a new block, a flush, a commit. While
    /// so many do, reads and pure overwrites go on and the others wait, so that a slow metadata
    /// stage cannot fill the shard. At least 1.
    pub deferrable_max: usize,
    /// Requests that wait for a slot or for their volume's limit, and again as many that wait for
    /// the bound on deferrable ones; at most 65535. Half of them may be of one volume.
    pub waiting_max: usize,
    /// Metadata operations that read or write at once: 1 to [`METADATA_OPERATIONS_MAX`]. Each has
    /// 128 KiB.
    pub metadata_max: usize,
    /// Comparisons that run at once: at least 1. Each has 512 KiB.
    pub comparisons_max: usize,
    /// Requests to volumes of small blocks that have their ends fetched at once: at least 1. Each
    /// has 8 KiB.
    pub ends_max: usize,
}

/// The most metadata operations of a shard that read or write at once.
pub const METADATA_OPERATIONS_MAX: usize = 16;

impl Default for ShardLimits {
    fn default() -> Self {
        Self {
            requests_max: CORE_REQUESTS_MAX,
            deferrable_max: CORE_REQUESTS_MAX / 2,
            waiting_max: 2 * CORE_REQUESTS_MAX,
            metadata_max: METADATA_OPERATIONS_MAX,
            comparisons_max: 4,
            ends_max: 128,
        }
    }
}
