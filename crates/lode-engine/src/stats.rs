//! The figures of a shard: written by its core, read by the scrape.

use std::sync::{Arc, Mutex, PoisonError};

use lode_block::Geometry;
use lode_extent::{Counters, Usage};
use lode_stats::{Counter, Gauge, Histogram};

use crate::classify::{REASON_NAMES, Reasons};
use crate::request::DataOperation;
use crate::throttle::Throttle;

/// The names of the operations, in the order of [`VolumeStats::operations`].
pub const OPERATION_NAMES: [&str; 6] = [
    "read",
    "write",
    "compare_and_write",
    "write_zeroes",
    "discard",
    "flush",
];

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

/// The figures of one volume.
#[derive(Debug)]
pub struct VolumeStats {
    /// The pool's name.
    pub pool: String,
    /// The volume's name.
    pub volume: String,
    /// By operation, in the order of [`OPERATION_NAMES`].
    pub operations: [OperationStats; OPERATION_NAMES.len()],
    /// Requests completed on the poller that found them done.
    pub completions_inline: Counter,
    /// Requests completed by the deferred stage, in the order of [`REASON_NAMES`].
    pub completions_deferred: [Counter; REASON_NAMES.len()],
    /// How long those waited that the volume's limits kept waiting; each is one of them.
    pub throttle_wait: Histogram,
    throttle: Arc<Throttle>,
}

/// The figures of one operation on one volume.
#[derive(Debug, Default)]
pub struct OperationStats {
    /// From submission to completion.
    pub latency: Histogram,
    /// Bytes of those that succeeded.
    pub bytes: Counter,
    /// Those that failed.
    pub errors: Counter,
}

/// The figures of one pool, as of the last poll that did metadata work.
#[derive(Debug)]
pub struct PoolStats {
    /// The pool's name.
    pub pool: String,
    /// Space in bytes: capacity, allocated, metadata, reserved, free, pending, virtual.
    pub space: [Gauge; SPACE_NAMES.len()],
    /// What the pool's metadata machine has done, in the order of [`COUNTER_NAMES`].
    pub counters: [Gauge; COUNTER_NAMES.len()],
    /// Volumes.
    pub volumes: Gauge,
    /// 1 while the pool serves.
    pub is_ready: Gauge,
    /// The pool's devices.
    pub devices: Vec<DeviceStats>,
}

/// The figures of one device of a pool.
#[derive(Debug)]
pub struct DeviceStats {
    /// Its name, as in the configuration.
    pub device: String,
    /// Its capacity in bytes.
    pub capacity_bytes: u64,
    /// Commands that failed.
    pub errors: Gauge,
    /// Commands in flight.
    pub in_flight: Gauge,
}

/// The names of [`PoolStats::space`].
pub const SPACE_NAMES: [&str; 9] = [
    "capacity",
    "allocated",
    "metadata",
    "reserved",
    "free",
    "pending",
    "virtual",
    "unreadable",
    "leaked",
];

/// The names of [`PoolStats::counters`].
pub const COUNTER_NAMES: [&str; 15] = [
    "transactions_create",
    "transactions_resize",
    "transactions_delete",
    "transactions_limit",
    "transactions_map",
    "transactions_unmap",
    "journal_commits",
    "journal_bytes",
    "flushes",
    "checkpoints",
    "nodes_written",
    "nodes_read",
    "nodes_damaged",
    "superblock_copies_failed",
    "journal_full",
];

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

impl VolumeStats {
    /// No figures yet, for a volume whose limits `throttle` carries out.
    #[must_use]
    pub fn new(pool: &str, volume: &str, throttle: Arc<Throttle>) -> Self {
        Self {
            pool: pool.to_owned(),
            volume: volume.to_owned(),
            operations: std::array::from_fn(|_| OperationStats::default()),
            completions_inline: Counter::new(),
            completions_deferred: [const { Counter::new() }; REASON_NAMES.len()],
            throttle_wait: Histogram::new(),
            throttle,
        }
    }

    /// The volume's limits as they are carried out.
    #[must_use]
    pub const fn throttle(&self) -> &Arc<Throttle> {
        &self.throttle
    }

    /// Records the end of a request and its route.
    #[inline]
    pub(crate) fn record(
        &self,
        operation: DataOperation,
        latency_nanoseconds: u64,
        length_bytes: u64,
        succeeded: bool,
        reasons: Reasons,
    ) {
        route(
            &self.completions_inline,
            &self.completions_deferred,
            reasons,
        )
        .increment();
        let figures = &self.operations[position(operation)];
        figures.latency.record_nanoseconds(latency_nanoseconds);
        if succeeded {
            figures.bytes.add(length_bytes);
        } else {
            figures.errors.increment();
        }
    }
}

impl PoolStats {
    /// No figures yet, for a pool over devices of these names.
    pub(crate) fn new<'a>(
        pool: &str,
        devices: impl Iterator<Item = (&'a str, &'a Geometry)>,
    ) -> Self {
        Self {
            pool: pool.to_owned(),
            space: [const { Gauge::new() }; SPACE_NAMES.len()],
            counters: [const { Gauge::new() }; COUNTER_NAMES.len()],
            volumes: Gauge::new(),
            is_ready: Gauge::new(),
            devices: devices
                .map(|(name, geometry)| DeviceStats {
                    device: name.to_owned(),
                    capacity_bytes: geometry.capacity_bytes(),
                    errors: Gauge::new(),
                    in_flight: Gauge::new(),
                })
                .collect(),
        }
    }

    /// Shows the present state of the pool's metadata machine.
    pub(crate) fn publish(&self, usage: &Usage, counters: &Counters) {
        let space = [
            usage.capacity_bytes,
            usage.allocated_bytes,
            usage.metadata_bytes,
            usage.reserved_bytes,
            usage.free_bytes,
            usage.pending_bytes,
            usage.virtual_bytes,
            usage.unreadable_bytes,
            usage.leaked_bytes,
        ];
        self.space
            .iter()
            .zip(space)
            .for_each(|(gauge, value)| gauge.set(value));
        let counts = [
            counters.transactions_create,
            counters.transactions_resize,
            counters.transactions_delete,
            counters.transactions_limit,
            counters.transactions_map,
            counters.transactions_unmap,
            counters.journal_commits,
            counters.journal_bytes,
            counters.flushes,
            counters.checkpoints,
            counters.nodes_written,
            counters.nodes_read,
            counters.nodes_damaged,
            counters.superblock_copies_failed,
            counters.journal_full,
        ];
        self.counters
            .iter()
            .zip(counts)
            .for_each(|(gauge, value)| gauge.set(value));
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

const fn position(operation: DataOperation) -> usize {
    match operation {
        DataOperation::Read => 0,
        DataOperation::Write => 1,
        DataOperation::CompareAndWrite => 2,
        DataOperation::WriteZeroes => 3,
        DataOperation::Discard => 4,
        DataOperation::Flush => 5,
    }
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

    #[test]
    fn every_operation_has_figures_of_its_own() {
        let stats = VolumeStats::new("pool", "volume", Arc::default());
        stats.record(DataOperation::Flush, 1000, 0, true, Reasons::FLUSH);
        stats.record(DataOperation::Read, 1000, 4096, true, Reasons::empty());
        stats.record(DataOperation::Read, 1000, 4096, false, Reasons::ERROR);
        assert_eq!(stats.operations[0].bytes.read(), 4096);
        assert_eq!(stats.operations[0].errors.read(), 1);
        assert_eq!(stats.operations[5].latency.snapshot().count(), 1);
        assert_eq!(stats.completions_inline.read(), 1);
        let deferred = stats.completions_deferred.iter().map(Counter::read);
        assert_eq!(deferred.sum::<u64>(), 2);
    }
}
