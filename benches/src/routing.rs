//! What the inline route is worth: the experiments B0 and B0d, two cores against one, and an
//! overwriter beside a writer that allocates.
//!
//! One process, arms that change places from round to round, a null device unless said otherwise.

mod beside;
mod durable;
mod inline;
mod scaling;
mod worker;

use std::fs;

use lode_bus::PagePreference;

use crate::report::{Figure, Report, figure};
use crate::rounds::Spread;

/// All routing experiments.
pub(crate) fn run(report: &Report, rounds: usize) -> anyhow::Result<()> {
    inline::run(report, rounds)?;
    durable::run(report, rounds)?;
    scaling::run(report, rounds)?;
    beside::run(report, rounds)
}

/// Ratio and its spread.
fn ratio(spread: Spread) -> [Figure; 3] {
    [
        figure("ratio", spread.median),
        figure("low", spread.low),
        figure("high", spread.high),
    ]
}

/// How often the threads of this process have given their processor up so far, by their own
/// wish and not.
fn context_switches() -> anyhow::Result<(u64, u64)> {
    let mut sums = (0, 0);
    for task in fs::read_dir("/proc/self/task")? {
        let status = fs::read_to_string(task?.path().join("status"))?;
        let field = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse().ok())
                .unwrap_or(0)
        };
        sums.0 += field("voluntary_ctxt_switches:");
        sums.1 += field("nonvoluntary_ctxt_switches:");
    }
    Ok(sums)
}

#[expect(clippy::cast_precision_loss, reason = "a mean: 53 bits are plenty")]
fn per(count: u64, operations: u64) -> f64 {
    count as f64 / operations.max(1) as f64
}

const PAGES: PagePreference = PagePreference::HugeIfReserved;
