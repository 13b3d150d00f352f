//! What keeps threads that work on different queues of one controller out of each other's way.
//!
//! Every thread has a lane. What it writes or locks for each command lies in its own lane, on
//! cache lines that no other thread touches; what is rarely changed is kept once for each lane.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// How many lanes there are; threads beyond that share.
pub(crate) const LANES: usize = 16;

/// The lane of the calling thread.
pub(crate) fn lane() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static LANE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % LANES;
    }
    LANE.with(|lane| *lane)
}

/// A value on cache lines of its own; two of them, since processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Apart<T>(pub(crate) T);

/// A value that is read for every command and rarely changed: a copy in each lane, so that
/// readers on different threads share no lock.
#[derive(Debug)]
pub(crate) struct Replicated<T> {
    copies: [Apart<RwLock<T>>; LANES],
}

impl<T: Clone> Replicated<T> {
    /// A value.
    pub(crate) fn new(value: T) -> Self {
        Self {
            copies: std::array::from_fn(|_| Apart(RwLock::new(value.clone()))),
        }
    }

    /// The copy of the calling thread's lane. Waits while it is being changed.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        let Apart(copy) = &self.copies[lane()];
        copy.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the value in every lane. Waits until nobody reads an earlier one, and nobody does
    /// once this returns.
    pub(crate) fn update<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let locked = self.copies.iter().map(|Apart(copy)| copy.write());
        let mut locked: Vec<_> = locked
            .map(|guard| guard.unwrap_or_else(PoisonError::into_inner))
            .collect();
        let (first, others) = locked.split_first_mut().expect("there are lanes");
        let result = change(first);
        for other in others {
            (**other).clone_from(first);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_seen_on_every_thread_once_it_is_made() {
        let value = Replicated::new(vec![0]);
        value.update(|list| list.push(1));
        std::thread::scope(|scope| {
            for _ in 0..2 * LANES {
                scope.spawn(|| assert_eq!(*value.read(), [0, 1]));
            }
        });
    }

    #[test]
    fn a_change_waits_for_a_reader_of_any_lane() {
        let value = Replicated::new(0);
        let is_changed = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = value.read();
            scope.spawn(|| {
                value.update(|value| *value = 1);
                is_changed.store(true, Ordering::Release);
            });
            for _ in 0..1000 {
                std::thread::yield_now();
                assert!(!is_changed.load(Ordering::Acquire));
            }
            drop(reader);
        });
        assert_eq!(*value.read(), 1);
    }
}
