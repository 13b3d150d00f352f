//! The figures of a shard: written by its core, read by the scrape.

mod pool;
mod volume;

use std::sync::{Arc, Mutex, PoisonError};

use lode_stats::{Counter, Gauge};

use crate::classify::{REASON_NAMES, Reasons};

pub use pool::{COUNTER_NAMES, DeviceStats, PoolStats, SPACE_NAMES};
pub use volume::{OPERATION_NAMES, OperationStats, VolumeStats};

/// Why a core hands a request to the home of its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandOff {
    /// It has no queue pairs of its own for this pool.
    NoQueues,
    /// The range is not under lease.
    NoLease,
    /// The request changes the mapping, or excludes others.
    Mapping,
    /// The volume's blocks are smaller than the device's, and the request covers some in part.
    SubBlock,
    /// A flush, or a write that owes one.
    Flush,
}

/// Names of the causes for which a core hands a request to the home of its pool.
pub const HAND_OFF_NAMES: [&str; 5] = ["no_queues", "no_lease", "mapping", "sub_block", "flush"];

/// The figures of one shard. Handed out as an `Arc`: the scrape keeps it.
#[derive(Debug, Default)]
pub struct ShardStats {
    /// Requests completed on the poller that found them done.
    pub completions_inline: Counter,
    /// Requests completed by the deferred stage, by reason, in the order of
    /// [`REASON_NAMES`].
    pub completions_deferred: [Counter; REASON_NAMES.len()],
    /// Write commands forced to the media.
    pub write_through_commands: Counter,
    /// Flush commands for flush groups.
    pub flushes: Counter,
    /// Requests that waited for a flush group.
    pub flush_waiters: Counter,
    /// Read commands submitted for requests.
    pub read_commands: Counter,
    /// Write commands submitted for requests.
    pub write_commands: Counter,
    /// How often new commands were shown to a device: a submission doorbell each.
    pub doorbells: Counter,
    /// Commands submitted again after the device asked for a retry.
    pub retries: Counter,
    /// Requests that waited for a free slot of a device queue.
    pub queue_full_waits: Counter,
    /// Requests that waited for metadata to be read, or for room in the journal.
    pub metadata_waits: Counter,
    /// Requests that waited for a range of their volume.
    pub range_waits: Counter,
    /// Requests of this core that the home of their pool carried out or ended, by cause, in the
    /// order of [`HAND_OFF_NAMES`].
    pub hand_offs: [Counter; HAND_OFF_NAMES.len()],
    /// Extents that this core, as a home, let other cores use.
    pub leases_granted: Counter,
    /// Letters by which this core, as a home, took leases back.
    pub recalls: Counter,
    /// Requests in progress.
    pub requests_in_flight: Gauge,
    /// Of these, how many may owe more than their commands.
    pub requests_deferrable: Gauge,
    /// Requests that wait for a slot or for their volume's limit.
    pub requests_waiting: Gauge,
    /// Requests that may owe more than their commands and wait until fewer such are in progress.
    pub requests_held: Gauge,
    /// Requests that waited for a slot or for their volume's limit.
    pub turn_waits: Counter,
    /// Requests that waited because too many that may owe more than their commands were in
    /// progress.
    pub holds: Counter,
    /// Requests refused because as many of their volume waited as may.
    pub throttle_refusals: Counter,
    pools: Mutex<Vec<Arc<PoolStats>>>,
    volumes: Mutex<Vec<Arc<VolumeStats>>>,
}

impl ShardStats {
    /// Requests completed, by whatever route.
    #[must_use]
    pub fn completions(&self) -> u64 {
        let deferred = self.completions_deferred.iter().map(Counter::read);
        self.completions_inline.read() + deferred.sum::<u64>()
    }

    /// Counts a completion by its route; the first reason in the order of precedence names it.
    #[inline]
    pub(crate) fn count_completion(&self, reasons: Reasons) {
        route(
            &self.completions_inline,
            &self.completions_deferred,
            reasons,
        )
        .increment();
    }

    /// Counts a request that goes to the home of its pool.
    pub(crate) fn count_hand_off(&self, cause: HandOff) {
        self.hand_offs[cause as usize].increment();
    }

    /// The pools' figures.
    #[must_use]
    pub fn pools(&self) -> Vec<Arc<PoolStats>> {
        self.pools
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The open volumes' figures.
    #[must_use]
    pub fn volumes(&self) -> Vec<Arc<VolumeStats>> {
        self.volumes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Begins to show a pool. Not on the data path.
    pub(crate) fn add_pool(&self, pool: Arc<PoolStats>) {
        self.pools
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(pool);
    }

    /// Stops to show a pool. Not on the data path.
    pub(crate) fn remove_pool(&self, pool: &Arc<PoolStats>) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|shown| !Arc::ptr_eq(shown, pool));
    }

    /// Begins to show a volume. Not on the data path.
    pub(crate) fn add_volume(&self, volume: Arc<VolumeStats>) {
        self.volumes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(volume);
    }

    /// Stops to show a volume. Not on the data path.
    pub(crate) fn remove_volume(&self, volume: &Arc<VolumeStats>) {
        let mut volumes = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        volumes.retain(|shown| !Arc::ptr_eq(shown, volume));
    }
}

/// The counter of a completion that owed work for `reasons`; the first of them in the order of
/// precedence names it.
#[inline]
fn route<'a>(
    inline: &'a Counter,
    deferred: &'a [Counter; REASON_NAMES.len()],
    reasons: Reasons,
) -> &'a Counter {
    let mut named = REASON_NAMES.iter().zip(deferred);
    let found = named.find(|((reason, _), _)| reasons.intersects(*reason));
    found.map_or(inline, |(_, counter)| counter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_is_counted_once_under_its_first_reason() {
        let stats = ShardStats::default();
        stats.count_completion(Reasons::empty());
        stats.count_completion(Reasons::FLUSH | Reasons::ALLOCATION);
        assert_eq!(stats.completions_inline.read(), 1);
        let deferred: Vec<_> = stats
            .completions_deferred
            .iter()
            .map(Counter::read)
            .collect();
        assert_eq!(deferred.iter().sum::<u64>(), 1);
        assert_eq!(deferred[2], 1, "recorded as an allocation");
    }
}
