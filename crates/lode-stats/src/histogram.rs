//! A latency histogram with fixed buckets, two for each power of two.

use std::time::Duration;

use crate::counter::Counter;

/// How many buckets: two for each power of two from 256 ns on (half steps at 1.5 times), the
/// last without an upper bound.
pub const BUCKET_COUNT: usize = 56;

/// A distribution of durations. One thread records; any thread reads.
#[derive(Debug)]
pub struct Histogram {
    buckets: [Counter; BUCKET_COUNT],
    sum_nanoseconds: Counter,
}

/// A histogram as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// How many durations fell into each bucket (not cumulative).
    pub buckets: [u64; BUCKET_COUNT],
    /// The sum of all, in nanoseconds.
    pub sum_nanoseconds: u64,
}

impl Histogram {
    /// An empty histogram.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            buckets: [const { Counter::new() }; BUCKET_COUNT],
            sum_nanoseconds: Counter::new(),
        }
    }

    /// Records one duration. Only the owning thread calls this.
    pub fn record(&self, duration: Duration) {
        self.record_nanoseconds(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Records one duration, as [`Histogram::record`].
    #[inline]
    pub fn record_nanoseconds(&self, nanoseconds: u64) {
        self.buckets[bucket_of(nanoseconds)].increment();
        self.sum_nanoseconds.add(nanoseconds);
    }

    /// Reads all buckets.
    #[must_use]
    pub fn snapshot(&self) -> HistogramSnapshot {
        HistogramSnapshot {
            buckets: std::array::from_fn(|index| self.buckets[index].read()),
            sum_nanoseconds: self.sum_nanoseconds.read(),
        }
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl HistogramSnapshot {
    /// What was recorded since `earlier`, a snapshot of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            buckets: std::array::from_fn(|index| {
                self.buckets[index].wrapping_sub(earlier.buckets[index])
            }),
            sum_nanoseconds: self.sum_nanoseconds.wrapping_sub(earlier.sum_nanoseconds),
        }
    }

    /// Adds what another histogram recorded.
    pub fn add(&mut self, other: &Self) {
        for (sum, bucket) in self.buckets.iter_mut().zip(other.buckets) {
            *sum = sum.wrapping_add(bucket);
        }
        self.sum_nanoseconds = self.sum_nanoseconds.wrapping_add(other.sum_nanoseconds);
    }

    /// How many durations were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The upper bound of the bucket in which the given fraction (0 to 1) of all durations is
    /// reached, in nanoseconds; `None` when nothing was recorded or the last bucket is reached.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank among counts: an error of one part in 2^53 does not move a bucket"
    )]
    pub fn quantile_nanoseconds(&self, fraction: f64) -> Option<u64> {
        let count = self.count();
        let rank = ((count as f64 * fraction).ceil() as u64).max(1);
        let mut seen = 0;
        let index = self.buckets.iter().position(|bucket| {
            seen += bucket;
            seen >= rank
        })?;
        bucket_upper_nanoseconds(index)
    }
}

/// The upper bound of bucket `index` in nanoseconds, inclusive; `None` for the last one and
/// beyond.
#[must_use]
pub const fn bucket_upper_nanoseconds(index: usize) -> Option<u64> {
    if index + 1 >= BUCKET_COUNT {
        return None;
    }
    let power = FIRST_NANOSECONDS << (index / 2);
    Some(if index.is_multiple_of(2) {
        power
    } else {
        power + power / 2
    })
}

fn bucket_of(nanoseconds: u64) -> usize {
    if nanoseconds <= FIRST_NANOSECONDS {
        return 0;
    }
    // The largest power of two below `nanoseconds`, and whether the half step above it is passed.
    let exponent = (nanoseconds - 1).ilog2();
    let power = 1_u64 << exponent;
    let step = usize::from(nanoseconds - power > power / 2);
    let octave = usize::try_from(exponent - FIRST_NANOSECONDS.ilog2()).expect("at most 63");
    (octave * 2 + 1 + step).min(BUCKET_COUNT - 1)
}

const FIRST_NANOSECONDS: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_lies_in_the_bucket_whose_bounds_enclose_it() {
        let mut interesting: Vec<u64> = (0..40)
            .flat_map(|shift| {
                let power = 1_u64 << shift;
                [
                    power - 1,
                    power,
                    power + 1,
                    power + power / 2,
                    power + power / 2 + 1,
                ]
            })
            .collect();
        interesting.push(u64::MAX);
        for nanoseconds in interesting {
            let index = bucket_of(nanoseconds);
            let above = bucket_upper_nanoseconds(index).is_none_or(|upper| nanoseconds <= upper);
            let below = index == 0
                || bucket_upper_nanoseconds(index - 1).is_some_and(|lower| nanoseconds > lower);
            assert!(above && below, "{nanoseconds} ns in bucket {index}");
        }
    }

    #[test]
    fn bounds_grow() {
        let bounds: Vec<_> = (0..BUCKET_COUNT)
            .map_while(bucket_upper_nanoseconds)
            .collect();
        assert_eq!(bounds.len(), BUCKET_COUNT - 1);
        assert!(bounds.is_sorted_by(|left, right| left < right));
    }

    #[test]
    fn a_difference_holds_what_was_recorded_in_between() {
        let histogram = Histogram::new();
        (0..100).for_each(|_| histogram.record(Duration::from_millis(5)));
        let earlier = histogram.snapshot();
        histogram.record(Duration::from_nanos(300));
        histogram.record(Duration::from_nanos(300));
        let mut since = histogram.snapshot().since(&earlier);
        assert_eq!(since.count(), 2);
        assert_eq!(since.quantile_nanoseconds(0.99), Some(384));
        assert_eq!(since.sum_nanoseconds, 600);
        since.add(&earlier);
        assert_eq!(since, histogram.snapshot());
    }

    #[test]
    fn a_quantile_is_the_bound_of_its_bucket() {
        let histogram = Histogram::new();
        (0..99).for_each(|_| histogram.record(Duration::from_nanos(300)));
        histogram.record(Duration::from_micros(100));
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.count(), 100);
        assert_eq!(snapshot.quantile_nanoseconds(0.5), Some(384));
        assert_eq!(snapshot.quantile_nanoseconds(1.0), Some(131_072));
        assert_eq!(snapshot.sum_nanoseconds, 99 * 300 + 100_000);
        assert_eq!(Histogram::new().snapshot().quantile_nanoseconds(0.5), None);
    }
}
