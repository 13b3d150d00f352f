//! The outcome of a measurement.

use clap::ValueEnum;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::cli::BenchArguments;
use crate::import::mib_per_second;
use crate::output::lines;
use crate::size::Human;

#[derive(Serialize)]
pub(super) struct Report {
    volume: String,
    rw: String,
    block_size_bytes: u64,
    depth: u32,
    ops: u64,
    seconds: f64,
    ops_per_second: f64,
    mib_per_second: f64,
    latency_us: Latencies,
}

#[derive(Serialize)]
struct Latencies {
    min: f64,
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p99_9: f64,
    max: f64,
}

impl Report {
    pub(super) fn new(
        arguments: &BenchArguments,
        latencies: &Histogram<u64>,
        seconds: f64,
    ) -> Self {
        let ops = latencies.len();
        let bytes = ops.saturating_mul(arguments.block_size.0);
        let name = arguments.rw.to_possible_value();
        Self {
            volume: arguments.volume.clone(),
            rw: name.map_or_else(String::new, |value| value.get_name().to_owned()),
            block_size_bytes: arguments.block_size.0,
            depth: arguments.depth,
            ops,
            seconds,
            ops_per_second: float(ops) / seconds.max(1e-9),
            mib_per_second: mib_per_second(bytes, seconds),
            latency_us: Latencies {
                min: float(latencies.min()) / 1e3,
                mean: latencies.mean() / 1e3,
                p50: float(latencies.value_at_quantile(0.5)) / 1e3,
                p90: float(latencies.value_at_quantile(0.9)) / 1e3,
                p99: float(latencies.value_at_quantile(0.99)) / 1e3,
                p99_9: float(latencies.value_at_quantile(0.999)) / 1e3,
                max: float(latencies.max()) / 1e3,
            },
        }
    }

    pub(super) fn lines(&self) -> String {
        let what = format!(
            "{} of {}, {} in flight",
            self.rw,
            Human(self.block_size_bytes),
            self.depth
        );
        let latency = &self.latency_us;
        let micros = |value: f64| format!("{value:.1} µs");
        lines(&[
            ("load", what),
            ("requests", format!("{} in {:.2} s", self.ops, self.seconds)),
            ("rate", format!("{:.0} per second", self.ops_per_second)),
            ("throughput", format!("{:.1} MiB/s", self.mib_per_second)),
            ("latency min", micros(latency.min)),
            ("mean", micros(latency.mean)),
            ("p50", micros(latency.p50)),
            ("p90", micros(latency.p90)),
            ("p99", micros(latency.p99)),
            ("p99.9", micros(latency.p99_9)),
            ("max", micros(latency.max)),
        ])
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "figures are shown with few digits"
)]
fn float(count: u64) -> f64 {
    count as f64
}
