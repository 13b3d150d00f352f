//! Rates and ratios made of the server's counts: what JSON shows, and what the view is made of.

use lode_api::v1::{
    CoreActivity, OperationActivity, RouteActivity, VolumeActivity, VolumeLimits,
    WatchStatsResponse,
};
use serde::Serialize;

/// What was done in one interval.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    pub(super) interval_seconds: f64,
    pub(super) cores: Vec<CoreFigures>,
    pub(super) volumes: Vec<VolumeFigures>,
    pub(super) routes: Vec<RouteFigures>,
}

#[derive(Debug, Serialize)]
pub(super) struct CoreFigures {
    pub(super) core: u32,
    pub(super) busy_ratio: f64,
    pub(super) idle_ratio: f64,
    pub(super) asleep_ratio: f64,
    pub(super) polls_per_second: f64,
    pub(super) useful_polls_per_second: f64,
    pub(super) sleeps_per_second: f64,
    pub(super) requests_per_second: f64,
    /// Commands found in each turn that found something to do.
    pub(super) commands_per_poll: f64,
    /// Submission doorbells for each request.
    pub(super) doorbells_per_request: f64,
    pub(super) requests_in_flight: u64,
    pub(super) requests_waiting: u64,
    pub(super) requests_held: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct VolumeFigures {
    pub(super) pool: String,
    pub(super) volume: String,
    pub(super) iops: f64,
    pub(super) bytes_per_second: f64,
    pub(super) operations: Vec<OperationFigures>,
    pub(super) throttled_per_second: f64,
    pub(super) throttle_wait_mean_seconds: f64,
    pub(super) iops_max: u64,
    pub(super) bandwidth_max_bytes: u64,
    pub(super) burst_ms: u32,
}

#[derive(Debug, Serialize)]
pub(super) struct OperationFigures {
    pub(super) operation: String,
    pub(super) iops: f64,
    pub(super) bytes_per_second: f64,
    pub(super) errors: u64,
    pub(super) latency_p50_ns: Option<u64>,
    pub(super) latency_p99_ns: Option<u64>,
}

#[derive(Debug, Serialize)]
pub(super) struct RouteFigures {
    pub(super) route: String,
    pub(super) reason: String,
    pub(super) per_second: f64,
    pub(super) share: f64,
}

impl From<WatchStatsResponse> for Figures {
    fn from(answer: WatchStatsResponse) -> Self {
        let seconds = float(answer.interval_ns) / 1e9;
        let rate = |count| ratio(float(count), seconds);
        let completions: u64 = answer.routes.iter().map(|route| route.count).sum();
        let route = |route: RouteActivity| RouteFigures {
            route: route.route,
            reason: route.reason,
            per_second: rate(route.count),
            share: ratio(float(route.count), float(completions)),
        };
        Self {
            interval_seconds: seconds,
            cores: answer
                .cores
                .iter()
                .map(|core| of_core(core, &rate))
                .collect(),
            volumes: answer
                .volumes
                .into_iter()
                .map(|volume| of_volume(volume, &rate))
                .collect(),
            routes: answer.routes.into_iter().map(route).collect(),
        }
    }
}

impl VolumeFigures {
    pub(super) const fn limits(&self) -> VolumeLimits {
        VolumeLimits {
            iops_max: self.iops_max,
            bandwidth_max_bytes: self.bandwidth_max_bytes,
            burst_ms: self.burst_ms,
        }
    }
}

fn of_core(core: &CoreActivity, rate: &impl Fn(u64) -> f64) -> CoreFigures {
    let time = float(core.busy_ns + core.idle_ns + core.asleep_ns);
    CoreFigures {
        core: core.core,
        busy_ratio: ratio(float(core.busy_ns), time),
        idle_ratio: ratio(float(core.idle_ns), time),
        asleep_ratio: ratio(float(core.asleep_ns), time),
        polls_per_second: rate(core.polls),
        useful_polls_per_second: rate(core.useful_polls),
        sleeps_per_second: rate(core.sleeps),
        requests_per_second: rate(core.completions),
        commands_per_poll: ratio(float(core.commands), float(core.useful_polls)),
        doorbells_per_request: ratio(float(core.doorbells), float(core.completions)),
        requests_in_flight: core.requests_in_flight,
        requests_waiting: core.requests_waiting,
        requests_held: core.requests_held,
    }
}

fn of_volume(volume: VolumeActivity, rate: &impl Fn(u64) -> f64) -> VolumeFigures {
    let operation = |operation: OperationActivity| OperationFigures {
        operation: operation.operation,
        iops: rate(operation.count),
        bytes_per_second: rate(operation.bytes),
        errors: operation.errors,
        latency_p50_ns: operation.latency_p50_ns,
        latency_p99_ns: operation.latency_p99_ns,
    };
    let limits = volume.limits.unwrap_or_default();
    let operations: Vec<_> = volume.operations.into_iter().map(operation).collect();
    let waited = float(volume.throttle_wait_ns) / 1e9;
    VolumeFigures {
        pool: volume.pool,
        volume: volume.volume,
        iops: total(operations.iter().map(|operation| operation.iops)),
        bytes_per_second: total(
            operations
                .iter()
                .map(|operation| operation.bytes_per_second),
        ),
        operations,
        throttled_per_second: rate(volume.throttled),
        throttle_wait_mean_seconds: ratio(waited, float(volume.throttled)),
        iops_max: limits.iops_max,
        bandwidth_max_bytes: limits.bandwidth_max_bytes,
        burst_ms: limits.burst_ms,
    }
}

/// The sum; the standard one of no numbers is minus zero.
pub(super) fn total(rates: impl Iterator<Item = f64>) -> f64 {
    rates.fold(0.0, |sum, rate| sum + rate)
}

/// 0 where there is nothing to divide by.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a figure for people: 53 bits are more than is shown"
)]
const fn float(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_become_rates_of_the_interval_and_nothing_is_divided_by_nothing() {
        let answer = WatchStatsResponse {
            interval_ns: 500_000_000,
            cores: vec![
                CoreActivity {
                    busy_ns: 300,
                    asleep_ns: 100,
                    useful_polls: 10,
                    commands: 40,
                    completions: 80,
                    doorbells: 8,
                    ..CoreActivity::default()
                },
                CoreActivity::default(),
            ],
            volumes: Vec::new(),
            routes: vec![
                RouteActivity {
                    route: "inline".into(),
                    reason: "none".into(),
                    count: 60,
                },
                RouteActivity {
                    route: "deferred".into(),
                    reason: "flush".into(),
                    count: 20,
                },
            ],
        };
        let figures = Figures::from(answer);
        let busy = &figures.cores[0];
        let shown = [
            busy.busy_ratio,
            busy.requests_per_second,
            busy.commands_per_poll,
            busy.doorbells_per_request,
            figures.routes[0].share,
            figures.routes[1].per_second,
        ];
        assert_eq!(shown, [0.75, 160.0, 4.0, 0.1, 0.75, 40.0]);
        assert!(figures.cores[1].doorbells_per_request.abs() < f64::EPSILON);
    }
}
