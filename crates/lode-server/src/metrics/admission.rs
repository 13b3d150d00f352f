//! Who waits before a slot, and for what: the shards' bounds, and the volumes' limits.

use lode_engine::{ShardStats, VolumeStats};

use crate::metrics::{Families, Label};

/// Adds the figures of one shard's admission.
pub(super) fn collect(core: Label<'_>, stats: &ShardStats, into: &mut Families) {
    for (name, help, counter) in [
        (
            "lodestore_turn_waits_total",
            "Requests that waited for a slot of the shard or for their volume's limit.",
            &stats.turn_waits,
        ),
        (
            "lodestore_holds_total",
            "Requests held because too many that may be deferred were in progress.",
            &stats.holds,
        ),
        (
            "lodestore_throttle_refusals_total",
            "Requests refused because as many of their volume waited as may.",
            &stats.throttle_refusals,
        ),
    ] {
        into.counter(name, help, &[core], counter.read());
    }
    for (name, help, gauge) in [
        (
            "lodestore_requests_in_flight",
            "Requests in progress in the core's shard, those of other cores' clients included.",
            &stats.requests_in_flight,
        ),
        (
            "lodestore_requests_deferrable",
            "Of the requests in progress, those that may be deferred.",
            &stats.requests_deferrable,
        ),
        (
            "lodestore_requests_waiting",
            "Requests that wait for a slot of the shard or for their volume's limit.",
            &stats.requests_waiting,
        ),
        (
            "lodestore_requests_held",
            "Requests that may be deferred and wait until fewer such are in progress.",
            &stats.requests_held,
        ),
    ] {
        into.gauge(name, help, &[core], gauge.read());
    }
}

/// Adds a volume's limits and what they cost.
pub(super) fn collect_limits(stats: &VolumeStats, into: &mut Families) {
    let labels = [
        ("pool", stats.pool.as_str()),
        ("volume", stats.volume.as_str()),
    ];
    let limits = stats.throttle().limits();
    for (name, help, limit) in [
        (
            "lodestore_volume_iops_limit",
            "The most operations a second, reads and writes together.",
            limits.iops_max,
        ),
        (
            "lodestore_volume_bandwidth_limit_bytes",
            "The most bytes a second, read and written together.",
            limits.bandwidth_max_bytes,
        ),
    ] {
        // A volume without a limit has no series.
        if limit > 0 {
            into.setting(name, help, &labels, limit);
        }
    }
    let wait = stats.throttle_wait.snapshot();
    if limits.is_unlimited() && wait.count() == 0 {
        return;
    }
    let help =
        "The longest time for which unused operations and bytes are saved up, in milliseconds.";
    let burst = u64::from(limits.burst_ms);
    into.setting("lodestore_volume_burst_milliseconds", help, &labels, burst);
    let help = "How long the volume's limits kept requests waiting; each is one that waited.";
    into.histogram(
        "lodestore_volume_throttle_wait_seconds",
        help,
        &labels,
        wait,
    );
}
