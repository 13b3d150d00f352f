//! How many requests a shard has at once.

use lode_units::limits::CORE_REQUESTS_MAX;

/// How many requests a shard has at once.
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
}

impl Default for ShardLimits {
    fn default() -> Self {
        Self {
            requests_max: CORE_REQUESTS_MAX,
            deferrable_max: CORE_REQUESTS_MAX / 2,
            waiting_max: 2 * CORE_REQUESTS_MAX,
        }
    }
}
