//! What happened between two readings, in the words of the API.

use std::time::Duration;

use lode_api::v1::{
    CoreActivity, OperationActivity, RouteActivity, VolumeActivity, WatchStatsResponse,
};

use super::reading::{CoreReading, OperationReading, Reading, VolumeReading};
use crate::volume::shown_limits;

impl Reading {
    /// What happened since `before`, `passed` ago. What was not there then began with nothing.
    pub(super) fn since(&self, before: &Self, passed: Duration) -> WatchStatsResponse {
        let cores = self.cores.iter().map(|(core, now)| {
            let before = before.cores.get(core).cloned().unwrap_or_default();
            core_activity(*core, now, &before, passed)
        });
        let volumes = self.volumes.iter().map(|((pool, volume), now)| {
            let key = (pool.clone(), volume.clone());
            let before = before.volumes.get(&key).cloned().unwrap_or_default();
            volume_activity(key, now, &before)
        });
        let routes = self.routes.iter().filter_map(|((route, reason), now)| {
            let before = before.routes.get(&(*route, *reason)).copied();
            let count = now.saturating_sub(before.unwrap_or(0));
            (count > 0).then(|| RouteActivity {
                route: (*route).to_owned(),
                reason: (*reason).to_owned(),
                count,
            })
        });
        WatchStatsResponse {
            interval_ns: u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX),
            cores: cores.collect(),
            volumes: volumes.collect(),
            routes: routes.collect(),
        }
    }
}

fn core_activity(
    core: u16,
    now: &CoreReading,
    before: &CoreReading,
    passed: Duration,
) -> CoreActivity {
    let busy_ns = now.busy_ns.saturating_sub(before.busy_ns);
    let idle_ns = now.idle_ns.saturating_sub(before.idle_ns);
    let passed_ns = u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
    CoreActivity {
        core: core.into(),
        busy_ns,
        idle_ns,
        // A core accounts for its sleep when it wakes: whatever else passed, it slept.
        asleep_ns: passed_ns.saturating_sub(busy_ns.saturating_add(idle_ns)),
        polls: now.polls.saturating_sub(before.polls),
        useful_polls: now.useful_polls.saturating_sub(before.useful_polls),
        sleeps: now.sleeps.saturating_sub(before.sleeps),
        completions: now.completions.saturating_sub(before.completions),
        commands: now.commands.saturating_sub(before.commands),
        doorbells: now.doorbells.saturating_sub(before.doorbells),
        requests_in_flight: now.in_flight,
        requests_waiting: now.waiting,
        requests_held: now.held,
    }
}

fn volume_activity(
    (pool, volume): (String, String),
    now: &VolumeReading,
    before: &VolumeReading,
) -> VolumeActivity {
    let operations = now.operations.iter().filter_map(|(operation, now)| {
        let before = before.operations.get(operation);
        operation_activity(operation, now, before)
    });
    VolumeActivity {
        pool,
        volume,
        operations: operations.collect(),
        throttled: now.throttled.saturating_sub(before.throttled),
        throttle_wait_ns: now.throttle_wait_ns.saturating_sub(before.throttle_wait_ns),
        limits: Some(shown_limits(now.limits)),
    }
}

/// What was done of one kind; `None` when nothing was, or when the volume is another of the same
/// name that has done less so far.
fn operation_activity(
    operation: &str,
    now: &OperationReading,
    before: Option<&OperationReading>,
) -> Option<OperationActivity> {
    let (bytes_before, errors_before) =
        before.map_or((0, 0), |before| (before.bytes, before.errors));
    let count_before = before.map_or(0, |before| before.latency.count());
    if now.latency.count() <= count_before {
        return None;
    }
    let latency = match before {
        Some(before) => now.latency.since(&before.latency),
        None => now.latency.clone(),
    };
    Some(OperationActivity {
        operation: operation.to_owned(),
        count: latency.count(),
        bytes: now.bytes.saturating_sub(bytes_before),
        errors: now.errors.saturating_sub(errors_before),
        latency_p50_ns: latency.quantile_nanoseconds(0.5),
        latency_p99_ns: latency.quantile_nanoseconds(0.99),
    })
}

#[cfg(test)]
mod tests {
    use lode_stats::Histogram;

    use super::*;

    fn operation(durations: &[u64], bytes: u64) -> OperationReading {
        let histogram = Histogram::new();
        durations
            .iter()
            .for_each(|duration| histogram.record_nanoseconds(*duration));
        OperationReading {
            latency: histogram.snapshot(),
            bytes,
            errors: 0,
        }
    }

    fn volume(reads: OperationReading) -> Reading {
        let mut volume = VolumeReading::default();
        volume.operations.insert("read", reads);
        let mut reading = Reading::default();
        let key = ("tank".to_owned(), "v".to_owned());
        reading.volumes.insert(key, volume);
        reading
    }

    #[test]
    fn percentiles_are_those_of_the_interval_and_not_of_all_time() {
        let slow = [10_000_000; 100];
        let before = volume(operation(&slow, 1000));
        let all: Vec<u64> = slow.iter().copied().chain([300; 50]).collect();
        let now = volume(operation(&all, 1500));
        let figures = now.since(&before, Duration::from_secs(1));
        let reads = &figures.volumes[0].operations[0];
        assert_eq!((reads.count, reads.bytes), (50, 500));
        assert_eq!(
            (reads.latency_p50_ns, reads.latency_p99_ns),
            (Some(384), Some(384))
        );
    }

    #[test]
    fn what_did_not_happen_is_left_out_and_what_is_new_began_with_nothing() {
        let now = volume(operation(&[300], 10));
        let figures = now.since(&now, Duration::from_secs(1));
        assert!(figures.volumes[0].operations.is_empty());
        let figures = now.since(&Reading::default(), Duration::from_secs(1));
        assert_eq!(figures.volumes[0].operations[0].count, 1);
    }

    #[test]
    fn a_core_tells_counts_of_the_interval_and_the_requests_of_its_end() {
        let reading = |polls, in_flight| {
            let core = CoreReading {
                polls,
                busy_ns: polls * 1000,
                in_flight,
                ..CoreReading::default()
            };
            let mut reading = Reading::default();
            reading.cores.insert(3, core);
            reading.routes.insert(("inline", "none"), polls);
            reading.routes.insert(("deferred", "flush"), 7);
            reading
        };
        let figures = reading(110, 4).since(&reading(100, 9), Duration::from_millis(20));
        let core = &figures.cores[0];
        assert_eq!((core.core, core.polls, core.requests_in_flight), (3, 10, 4));
        let slept = 20_000_000 - 10_000;
        assert_eq!(
            (core.busy_ns, core.asleep_ns),
            (10_000, slept),
            "it has not woken"
        );
        assert_eq!(figures.interval_ns, 20_000_000);
        assert_eq!(figures.routes.len(), 1, "no request took the other");
        assert_eq!(figures.routes[0].count, 10);
    }
}
