//! The figures of an engine shard: routes, commands, volumes, pools.

use std::sync::Arc;

use lode_engine::{
    COUNTER_NAMES, HAND_OFF_NAMES, OPERATION_NAMES, PoolStats, REASON_NAMES, SPACE_NAMES,
    ShardStats, VolumeStats,
};

use lode_units::CoreId;

use crate::metrics::{Families, Label, MetricsSource, admission};

/// The figures of one core's shard. A request is counted on the core that it came in on; what
/// concerns a volume is added up over the cores, and a pool's own figures come from its home.
#[derive(Clone, Debug)]
pub struct ShardSource {
    /// The core.
    pub core: CoreId,
    /// Its shard's figures.
    pub stats: Arc<ShardStats>,
}

impl MetricsSource for ShardSource {
    fn collect(&self, into: &mut Families) {
        let core = self.core.to_string();
        let core = ("core", core.as_str());
        collect_routes(core, &self.stats, into);
        collect_commands(core, &self.stats, into);
        collect_sharing(core, &self.stats, into);
        admission::collect(core, &self.stats, into);
        for volume in self.stats.volumes() {
            collect_volume(&volume, into);
        }
        for pool in self.stats.pools() {
            collect_pool(&pool, into);
        }
    }
}

fn collect_routes(core: Label<'_>, stats: &ShardStats, into: &mut Families) {
    let name = "lodestore_completions_total";
    let help = "Completed requests: at once on the poller, or by the deferred stage and why.";
    let inline = [core, ("route", "inline"), ("reason", "none")];
    into.counter(name, help, &inline, stats.completions_inline.read());
    for ((_, reason), counter) in REASON_NAMES.iter().zip(&stats.completions_deferred) {
        let labels = [core, ("route", "deferred"), ("reason", *reason)];
        into.counter(name, help, &labels, counter.read());
    }
}

fn collect_commands(core: Label<'_>, stats: &ShardStats, into: &mut Families) {
    for (name, help, counter) in [
        (
            "lodestore_fua_writes_total",
            "Write commands forced to the media.",
            &stats.write_through_commands,
        ),
        (
            "lodestore_flushes_total",
            "Flush commands for clients' flushes and durable writes.",
            &stats.flushes,
        ),
        (
            "lodestore_flush_waiters_total",
            "Requests that waited for a flush.",
            &stats.flush_waiters,
        ),
        (
            "lodestore_read_commands_total",
            "Read commands for requests.",
            &stats.read_commands,
        ),
        (
            "lodestore_write_commands_total",
            "Write commands for requests.",
            &stats.write_commands,
        ),
        (
            "lodestore_doorbells_total",
            "How often new commands were shown to a device: a submission doorbell each.",
            &stats.doorbells,
        ),
        (
            "lodestore_command_retries_total",
            "Commands submitted again because the device asked for it.",
            &stats.retries,
        ),
        (
            "lodestore_queue_full_waits_total",
            "Requests that waited for a slot of a device queue.",
            &stats.queue_full_waits,
        ),
        (
            "lodestore_metadata_waits_total",
            "Requests that waited for metadata or for room in the journal.",
            &stats.metadata_waits,
        ),
        (
            "lodestore_range_waits_total",
            "Requests that waited for another request on their range.",
            &stats.range_waits,
        ),
    ] {
        into.counter(name, help, &[core], counter.read());
    }
}

/// What cores do for each other.
fn collect_sharing(core: Label<'_>, stats: &ShardStats, into: &mut Families) {
    for (cause, counter) in HAND_OFF_NAMES.iter().zip(&stats.hand_offs) {
        let help = "Requests of this core that the home of their pool carried out, by cause.";
        let name = "lodestore_hand_offs_total";
        into.counter(name, help, &[core, ("cause", *cause)], counter.read());
    }
    let help = "Extents that this core, as a pool's home, let other cores use by themselves.";
    let granted = stats.leases_granted.read();
    into.counter("lodestore_leases_granted_total", help, &[core], granted);
    let help = "How often this core, as a pool's home, took such extents back.";
    let recalls = stats.recalls.read();
    into.counter("lodestore_lease_recalls_total", help, &[core], recalls);
}

fn collect_volume(stats: &VolumeStats, into: &mut Families) {
    admission::collect_limits(stats, into);
    collect_volume_routes(stats, into);
    collect_volume_durability(stats, into);
    for (operation, figures) in OPERATION_NAMES.iter().zip(&stats.operations) {
        let latency = figures.latency.snapshot();
        // An operation that never happened has no series: a volume has six of them.
        if latency.count() == 0 {
            continue;
        }
        let labels = [
            ("pool", stats.pool.as_str()),
            ("volume", stats.volume.as_str()),
            ("operation", *operation),
        ];
        let help = "From the submission of a request to its completion.";
        let name = "lodestore_volume_operation_duration_seconds";
        into.histogram(name, help, &labels, latency);
        let help = "Bytes of requests that succeeded.";
        let bytes = figures.bytes.read();
        into.counter(
            "lodestore_volume_operation_bytes_total",
            help,
            &labels,
            bytes,
        );
        let help = "Requests that failed.";
        let errors = figures.errors.read();
        into.counter(
            "lodestore_volume_operation_errors_total",
            help,
            &labels,
            errors,
        );
    }
}

/// A route that no request of the volume took has no series.
fn collect_volume_routes(stats: &VolumeStats, into: &mut Families) {
    let inline = ("inline", "none", &stats.completions_inline);
    let deferred = REASON_NAMES.iter().zip(&stats.completions_deferred);
    let deferred = deferred.map(|((_, reason), counter)| ("deferred", *reason, counter));
    for (route, reason, counter) in [inline].into_iter().chain(deferred) {
        let count = counter.read();
        if count == 0 {
            continue;
        }
        let labels = [
            ("pool", stats.pool.as_str()),
            ("volume", stats.volume.as_str()),
            ("route", route),
            ("reason", reason),
        ];
        let help = "Completed requests of the volume, by route and by why they were deferred.";
        into.counter("lodestore_volume_completions_total", help, &labels, count);
    }
}

/// What the volume's durability costs. A volume that never asked for any has no series.
fn collect_volume_durability(stats: &VolumeStats, into: &mut Families) {
    let labels = [
        ("pool", stats.pool.as_str()),
        ("volume", stats.volume.as_str()),
    ];
    for (name, help, counter) in [
        (
            "lodestore_volume_fua_writes_total",
            "Write commands of the volume that were forced to the media.",
            &stats.write_through_commands,
        ),
        (
            "lodestore_volume_flushes_total",
            "Flush commands that the volume was first to need; others may have waited for them.",
            &stats.flushes,
        ),
        (
            "lodestore_volume_flush_waiters_total",
            "Requests of the volume that waited for a flush.",
            &stats.flush_waiters,
        ),
    ] {
        let count = counter.read();
        if count > 0 {
            into.counter(name, help, &labels, count);
        }
    }
}

fn collect_pool(stats: &PoolStats, into: &mut Families) {
    let pool = ("pool", stats.pool.as_str());
    for (kind, gauge) in SPACE_NAMES.iter().zip(&stats.space) {
        let help = "Space of the pool by use; virtual is the sum of the volumes' sizes.";
        let labels = [pool, ("kind", *kind)];
        into.gauge("lodestore_pool_space_bytes", help, &labels, gauge.read());
    }
    for (counted, gauge) in COUNTER_NAMES.iter().zip(&stats.counters) {
        match counted.strip_prefix("transactions_") {
            Some(operation) => {
                let help = "Changes of the pool's metadata, by kind.";
                let labels = [pool, ("op", operation)];
                let name = "lodestore_journal_transactions_total";
                into.counter(name, help, &labels, gauge.read());
            }
            None => {
                let name = format!("lodestore_pool_{counted}_total");
                let help = "What the pool's metadata machine has done; the name says what.";
                into.counter(&name, help, &[pool], gauge.read());
            }
        }
    }
    let help = "Volumes of the pool.";
    into.gauge(
        "lodestore_pool_volumes",
        help,
        &[pool],
        stats.volumes.read(),
    );
    let help = "1 while the pool serves.";
    into.gauge("lodestore_pool_ready", help, &[pool], stats.is_ready.read());
    for device in &stats.devices {
        let labels = [pool, ("device", device.device.as_str())];
        let help = "Size of the device.";
        let size = device.capacity_bytes;
        into.gauge("lodestore_device_capacity_bytes", help, &labels, size);
        let help = "Commands that failed.";
        into.counter(
            "lodestore_device_errors_total",
            help,
            &labels,
            device.errors.read(),
        );
        let help = "Commands in flight.";
        let in_flight = device.in_flight.read();
        into.gauge(
            "lodestore_device_commands_in_flight",
            help,
            &labels,
            in_flight,
        );
    }
}
