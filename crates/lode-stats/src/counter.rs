//! A figure that grows, and one that goes both ways.

use std::sync::atomic::{AtomicU64, Ordering};

/// A figure that only grows. One thread adds; any thread reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// A counter at 0.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `amount`; wraps around at 2^64. Only the owning thread calls this: two writers would
    /// lose counts.
    #[inline]
    pub fn add(&self, amount: u64) {
        let value = self.0.load(Ordering::Relaxed).wrapping_add(amount);
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds 1, as [`Counter::add`].
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// The present value.
    #[inline]
    #[must_use]
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A figure that is set. One thread sets; any thread reads.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// A gauge at 0.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Sets the value.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The present value.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_on_another_thread_sees_a_counter_only_grow() {
        let counter = Counter::new();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut last = 0;
                while last < 10_000 {
                    let seen = counter.read();
                    assert!(seen >= last);
                    last = seen;
                }
            });
            (0..10_000).for_each(|_| counter.increment());
            reader.join().expect("the reader saw no decrease");
        });
        assert_eq!(counter.read(), 10_000);
    }

    #[test]
    fn a_gauge_shows_the_last_value_set() {
        let gauge = Gauge::new();
        gauge.set(7);
        gauge.set(3);
        assert_eq!(gauge.read(), 3);
    }
}
