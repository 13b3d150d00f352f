//! Interleaved rounds of two arms, and what is reported of them.

use std::time::Duration;

/// What one arm of one round did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) operations: u64,
    pub(crate) elapsed: Duration,
}

impl Sample {
    /// Nanoseconds for each operation.
    #[expect(clippy::cast_precision_loss, reason = "a mean: 53 bits are plenty")]
    pub(crate) fn nanoseconds_each(self) -> f64 {
        self.elapsed.as_nanos() as f64 / self.operations.max(1) as f64
    }

    /// Operations a second.
    pub(crate) fn rate(self) -> f64 {
        1e9 / self.nanoseconds_each()
    }
}

/// Middle, least and greatest of some values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// The spread of `values`, of which there is at least one.
pub(crate) fn spread(mut values: Vec<f64>) -> Spread {
    values.sort_by(f64::total_cmp);
    Spread {
        median: values[values.len() / 2],
        low: values[0],
        high: values[values.len() - 1],
    }
}

/// Runs two arms in turn, A B B A …, `rounds` pairs after one that is dropped. Returns the
/// samples of either arm in pairs.
pub(crate) fn interleave<C>(
    context: &mut C,
    rounds: usize,
    mut first: impl FnMut(&mut C) -> anyhow::Result<Sample>,
    mut second: impl FnMut(&mut C) -> anyhow::Result<Sample>,
) -> anyhow::Result<Vec<(Sample, Sample)>> {
    let mut pairs = Vec::with_capacity(rounds);
    for round in 0..=rounds {
        let pair = if round % 2 == 0 {
            let a = first(context)?;
            (a, second(context)?)
        } else {
            let b = second(context)?;
            (first(context)?, b)
        };
        if round > 0 {
            pairs.push(pair);
        }
    }
    Ok(pairs)
}

/// The rate of the second arm over that of the first, pair by pair.
pub(crate) fn ratios(pairs: &[(Sample, Sample)]) -> Spread {
    spread(
        pairs
            .iter()
            .map(|(first, second)| second.rate() / first.rate())
            .collect(),
    )
}
