//! The figures of a pool and its devices.

use lode_block::Geometry;
use lode_extent::{Counters, Usage};
use lode_stats::Gauge;

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
