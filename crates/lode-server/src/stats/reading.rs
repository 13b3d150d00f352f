//! All counters at one moment, more or less: each is whole, they are not read at one instant.

use std::collections::BTreeMap;

use lode_engine::{OPERATION_NAMES, REASON_NAMES, ShardStats, VolumeStats};
use lode_extent::VolumeLimits;
use lode_reactor::CoreStats;
use lode_stats::HistogramSnapshot;
use lode_units::CoreId;

/// All counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) cores: BTreeMap<u16, CoreReading>,
    /// By pool and name, those of several cores added up.
    pub(super) volumes: BTreeMap<(String, String), VolumeReading>,
    /// By route and reason.
    pub(super) routes: BTreeMap<(&'static str, &'static str), u64>,
}

/// The counters of a core and its shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CoreReading {
    pub(super) busy_ns: u64,
    pub(super) idle_ns: u64,
    pub(super) polls: u64,
    pub(super) useful_polls: u64,
    pub(super) sleeps: u64,
    pub(super) completions: u64,
    pub(super) commands: u64,
    pub(super) doorbells: u64,
    pub(super) in_flight: u64,
    pub(super) waiting: u64,
    pub(super) held: u64,
}

/// The counters of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct VolumeReading {
    /// In the order of [`OPERATION_NAMES`]; those that never happened are left out.
    pub(super) operations: BTreeMap<&'static str, OperationReading>,
    pub(super) throttled: u64,
    pub(super) throttle_wait_ns: u64,
    pub(super) limits: VolumeLimits,
}

/// The counters of one operation of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OperationReading {
    pub(super) latency: HistogramSnapshot,
    pub(super) bytes: u64,
    pub(super) errors: u64,
}

impl Reading {
    /// Reads the counters of these cores.
    pub(super) fn of<'a>(
        cores: impl Iterator<Item = (CoreId, &'a CoreStats, &'a ShardStats)>,
    ) -> Self {
        let mut reading = Self::default();
        for (core, account, shard) in cores {
            let figures = CoreReading::of(account, shard);
            reading.cores.insert(core.get(), figures);
            reading.add_routes(shard);
            for volume in shard.volumes() {
                let key = (volume.pool.clone(), volume.volume.clone());
                reading.volumes.entry(key).or_default().add(&volume);
            }
        }
        reading
    }

    fn add_routes(&mut self, shard: &ShardStats) {
        let inline = shard.completions_inline.read();
        *self.routes.entry(("inline", "none")).or_default() += inline;
        for ((_, reason), counter) in REASON_NAMES.iter().zip(&shard.completions_deferred) {
            *self.routes.entry(("deferred", *reason)).or_default() += counter.read();
        }
    }
}

impl CoreReading {
    fn of(account: &CoreStats, shard: &ShardStats) -> Self {
        Self {
            busy_ns: account.busy_nanoseconds.read(),
            idle_ns: account.idle_nanoseconds.read(),
            polls: account.polls.read(),
            useful_polls: account.polls_useful.read(),
            sleeps: account.sleeps.read(),
            completions: shard.completions(),
            commands: shard.read_commands.read() + shard.write_commands.read(),
            doorbells: shard.doorbells.read(),
            in_flight: shard.requests_in_flight.read(),
            waiting: shard.requests_waiting.read(),
            held: shard.requests_held.read(),
        }
    }
}

impl VolumeReading {
    fn add(&mut self, volume: &VolumeStats) {
        for (operation, figures) in OPERATION_NAMES.iter().zip(&volume.operations) {
            let latency = figures.latency.snapshot();
            if latency.count() == 0 {
                continue;
            }
            let (bytes, errors) = (figures.bytes.read(), figures.errors.read());
            self.operations
                .entry(operation)
                .and_modify(|sum| {
                    sum.latency.add(&latency);
                    sum.bytes += bytes;
                    sum.errors += errors;
                })
                .or_insert(OperationReading {
                    latency,
                    bytes,
                    errors,
                });
        }
        let wait = volume.throttle_wait.snapshot();
        self.throttled += wait.count();
        self.throttle_wait_ns += wait.sum_nanoseconds;
        self.limits = volume.throttle().limits();
    }
}
