//! How much a volume may do: one bucket for operations, one for bytes, each a single word that
//! all cores share.
//!
//! A bucket is a virtual clock: the moment at which everything taken so far has been earned. Taking
//! advances it by the cost at the volume's rate; what was taken may run once that moment, as it was
//! before, is no further ahead than the burst. So a taker never retries against another core: it
//! has its place in time and waits for it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lode_extent::VolumeLimits;
use lode_units::Instant;

use crate::request::DataOperation;

/// The limits of one volume, carried out. Shared by all cores; nothing here blocks or allocates.
///
/// Reads, writes and compare-and-writes cost one operation and their length in bytes; write-zeroes
/// and discards cost one operation; a flush costs nothing.
#[derive(Debug, Default)]
pub struct Throttle {
    operations: Bucket,
    bytes: Bucket,
    burst_ms: AtomicU32,
    /// Counts the changes of the limits.
    version: AtomicU32,
}

#[derive(Debug, Default)]
struct Bucket {
    /// 0: no limit.
    per_second: AtomicU64,
    /// The moment at which all that was taken is earned, in nanoseconds of the cores' clock.
    earned_at: AtomicU64,
}

/// A place in time that a request has taken, until it goes or the limits change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    /// When it may go.
    pub(crate) due: Instant,
    version: u32,
}

impl Throttle {
    /// Carries out `limits`, with the whole burst saved up.
    #[must_use]
    pub fn new(limits: VolumeLimits) -> Self {
        let throttle = Self::default();
        throttle.set(limits);
        throttle
    }

    /// Changes the limits; the whole burst is saved up again. What waits on other cores heeds the
    /// change at its next look.
    pub(crate) fn set(&self, limits: VolumeLimits) {
        self.operations.set(limits.iops_max);
        self.bytes.set(limits.bandwidth_max_bytes);
        self.burst_ms.store(limits.burst_ms, Ordering::Relaxed);
        // A core that sees the new version sees the new limits: pairs with `version`.
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> VolumeLimits {
        VolumeLimits {
            iops_max: self.operations.per_second.load(Ordering::Relaxed),
            bandwidth_max_bytes: self.bytes.per_second.load(Ordering::Relaxed),
            burst_ms: self.burst_ms.load(Ordering::Relaxed),
        }
    }

    /// Whether there is any limit.
    #[inline]
    pub(crate) fn is_limited(&self) -> bool {
        let operations = self.operations.per_second.load(Ordering::Relaxed);
        operations | self.bytes.per_second.load(Ordering::Relaxed) != 0
    }

    /// Takes what a request costs, and says when it may go.
    pub(crate) fn reserve(
        &self,
        operation: DataOperation,
        length_bytes: u64,
        now: Instant,
    ) -> Reservation {
        let version = self.version();
        let burst_nanoseconds =
            u64::from(self.burst_ms.load(Ordering::Relaxed)) * NANOSECONDS_PER_MILLISECOND;
        let (operations, bytes) = match operation {
            DataOperation::Read | DataOperation::Write | DataOperation::CompareAndWrite => {
                (1, length_bytes)
            }
            DataOperation::WriteZeroes | DataOperation::Discard => (1, 0),
            DataOperation::Flush => (0, 0),
        };
        let now = now.as_nanos();
        let by_operations = self.operations.take(operations, now);
        let by_bytes = self.bytes.take(bytes, now);
        let earned_at = by_operations.max(by_bytes);
        Reservation {
            due: Instant::from_nanos(earned_at.saturating_sub(burst_nanoseconds)),
            version,
        }
    }

    /// Whether the limits are still those that a reservation was made under.
    pub(crate) fn is_current(&self, reservation: &Reservation) -> bool {
        self.version() == reservation.version
    }

    fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }
}

impl Bucket {
    fn set(&self, per_second: u64) {
        self.per_second.store(per_second, Ordering::Relaxed);
        self.earned_at.store(0, Ordering::Relaxed);
    }

    /// Takes `amount`. The moment at which all that was taken before is earned: `now` at the
    /// earliest.
    fn take(&self, amount: u64, now: u64) -> u64 {
        let per_second = self.per_second.load(Ordering::Relaxed);
        if per_second == 0 || amount == 0 {
            return now;
        }
        // Rounded up, so that the limit holds; at most 2^20 bytes, so that the product fits.
        let cost = amount
            .saturating_mul(NANOSECONDS_PER_SECOND)
            .div_ceil(per_second);
        take_place(&self.earned_at, cost, now)
    }
}

/// Moves the word by `cost`, from `now` at the earliest, and returns from where.
fn take_place(earned_at: &impl Word, cost: u64, now: u64) -> u64 {
    let mut before = earned_at.read();
    loop {
        let from = before.max(now);
        match earned_at.replace(before, from.saturating_add(cost)) {
            Ok(()) => return from,
            // Another core took a place meanwhile: that one is gone, and there is a next.
            Err(present) => before = present,
        }
    }
}

/// The word that cores share; a model of it stands in for it in tests.
trait Word {
    fn read(&self) -> u64;

    /// Puts `new` in the place of `old`, or returns what is there instead, perhaps `old` itself.
    fn replace(&self, old: u64, new: u64) -> Result<(), u64>;
}

impl Word for AtomicU64 {
    fn read(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }

    fn replace(&self, old: u64, new: u64) -> Result<(), u64> {
        self.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed)
            .map(drop)
    }
}

const NANOSECONDS_PER_SECOND: u64 = 1_000_000_000;
const NANOSECONDS_PER_MILLISECOND: u64 = 1_000_000;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
