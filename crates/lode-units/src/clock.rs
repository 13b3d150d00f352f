//! Time as it enters the program: one monotonic clock, passed in, and the calendar beside it.

use std::cell::Cell;
use std::ops::{Add, AddAssign};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment on a monotonic clock, in nanoseconds from an origin of the clock's own.
///
/// Moments of two clocks are not comparable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The clock's origin.
    pub const ZERO: Self = Self(0);
    /// A moment that never comes: about 584 years after the origin.
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// The moment `nanoseconds` after the origin.
    #[must_use]
    pub const fn from_nanos(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to `self`; zero when `earlier` is the later one.
    #[must_use]
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Saturates at [`Instant::FAR_FUTURE`].
    fn add(self, duration: Duration) -> Self {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanoseconds))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

/// A monotonic clock.
pub trait Clock {
    /// The present moment. Never goes back; does not block.
    fn now(&self) -> Instant;
}

/// The operating system's monotonic clock (about 25 ns a reading).
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    origin: std::time::Instant,
}

impl MonotonicClock {
    /// A clock whose origin is now. Clones share the origin.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "this type owns the monotonic clock"
    )]
    pub fn new() -> Self {
        Self {
            origin: std::time::Instant::now(),
        }
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Instant {
        Instant::ZERO + self.origin.elapsed()
    }
}

/// A clock that stands still until it is moved: virtual time for tests and simulation.
#[derive(Debug, Default)]
pub struct ManualClock {
    now: Cell<Instant>,
}

impl ManualClock {
    /// A clock that shows `now`.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self {
            now: Cell::new(now),
        }
    }

    /// Moves the clock on by `duration`.
    pub fn advance(&self, duration: Duration) {
        self.now.set(self.now.get() + duration);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        self.now.get()
    }
}

/// The calendar, for time stamps that people read. Never used to measure a wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct WallClock;

impl WallClock {
    /// Seconds since 1970-01-01 00:00 UTC; 0 on a machine whose clock stands before that.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this type owns the calendar")]
    pub fn unix_seconds(self) -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |elapsed| elapsed.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_of_time_saturates() {
        let late = Instant::from_nanos(u64::MAX - 1);
        assert_eq!(late + Duration::from_secs(1), Instant::FAR_FUTURE);
        assert_eq!(
            Instant::ZERO.saturating_duration_since(late),
            Duration::ZERO
        );
    }

    #[test]
    fn the_monotonic_clock_does_not_go_back() {
        let clock = MonotonicClock::new();
        let first = clock.now();
        assert!(clock.now() >= first);
    }

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let clock = ManualClock::new(Instant::ZERO);
        assert_eq!(clock.now(), clock.now());
        clock.advance(Duration::from_nanos(5));
        assert_eq!(clock.now().as_nanos(), 5);
    }
}
