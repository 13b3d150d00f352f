//! Turns of several arms, and what is made of them.

use std::time::Duration;

use anyhow::Result;

/// What one turn of one arm did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) operations: u64,
    pub(super) elapsed: Duration,
    /// Doorbell registers written, where that is known.
    pub(super) doorbells: u64,
    /// How much of the time went into polls that found nothing, where that is known.
    pub(super) waited: Duration,
}

impl Sample {
    /// Nanoseconds for each operation.
    pub(super) fn nanoseconds_each(&self) -> f64 {
        self.elapsed.as_secs_f64() * 1e9 / as_float(self.operations)
    }

    /// Nanoseconds for each operation, without those of polls that found nothing.
    pub(super) fn busy_nanoseconds_each(&self) -> f64 {
        (self.elapsed - self.waited).as_secs_f64() * 1e9 / as_float(self.operations)
    }

    /// Operations a second.
    pub(super) fn rate(&self) -> f64 {
        1e9 / self.nanoseconds_each()
    }

    /// `count` divided among the operations.
    pub(super) fn each(&self, count: u64) -> f64 {
        as_float(count) / as_float(self.operations)
    }
}

/// Middle, least and greatest of some values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

/// The spread of `values`, of which there is at least one.
pub(super) fn spread(values: impl Iterator<Item = f64>) -> Spread {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    Spread {
        median: values[values.len() / 2],
        low: values[0],
        high: values[values.len() - 1],
    }
}

/// Plays `rounds` rounds of three arms after one that is dropped: forwards and backwards in turn,
/// so that a machine that becomes slower favours nobody.
pub(super) fn play<C>(
    context: &mut C,
    rounds: usize,
    mut turn: impl FnMut(&mut C, usize) -> Result<Sample>,
) -> Result<Vec<[Sample; 3]>> {
    let mut played = Vec::with_capacity(rounds);
    for round in 0..=rounds {
        let samples = if round % 2 == 0 {
            [turn(context, 0)?, turn(context, 1)?, turn(context, 2)?]
        } else {
            let mut backwards = [turn(context, 2)?, turn(context, 1)?, turn(context, 0)?];
            backwards.reverse();
            backwards
        };
        if round > 0 {
            played.push(samples);
        }
    }
    Ok(played)
}

#[expect(clippy::cast_precision_loss, reason = "a mean: 53 bits are plenty")]
fn as_float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_take_turns_forwards_and_backwards_and_keep_their_places() {
        let mut order = Vec::new();
        let played = play(&mut order, 2, |order, arm| {
            order.push(arm);
            Ok(Sample {
                operations: u64::try_from(arm)? + 1,
                elapsed: Duration::from_nanos(10),
                doorbells: 0,
                waited: Duration::ZERO,
            })
        })
        .expect("rounds");
        assert_eq!(order, [0, 1, 2, 2, 1, 0, 0, 1, 2]);
        for round in played {
            assert_eq!(round.map(|sample| sample.operations), [1, 2, 3]);
        }
    }

    #[test]
    fn the_median_is_the_middle_of_the_values() {
        let found = spread([3.0, 1.0, 2.0].into_iter());
        assert!((found.median - 2.0).abs() < f64::EPSILON);
        assert!((found.low - 1.0).abs() < f64::EPSILON);
        assert!((found.high - 3.0).abs() < f64::EPSILON);
    }
}
