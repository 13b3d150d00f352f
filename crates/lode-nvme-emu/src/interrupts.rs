//! Interrupt vectors.
//!
//! A vector's descriptor becomes readable when calling [`lode_bus::Bus::advance`], or looking at
//! a completion queue, is useful to somebody who sleeps: when a completion was posted by another
//! thread (or by any, see [`crate::SignalPolicy`]), and when an operation on a file ended whose
//! completion the next `advance` will post.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lode_bus::BusError;

use crate::backing::Signal;

#[derive(Debug, Default)]
struct Vector {
    is_enabled: AtomicBool,
    signal: Mutex<Option<Signal>>,
}

/// All vectors of one controller.
#[derive(Debug)]
pub(crate) struct Interrupts {
    vectors: Box<[Vector]>,
}

impl Interrupts {
    pub(crate) fn new(count: u16) -> Self {
        Self {
            vectors: std::iter::repeat_with(Vector::default)
                .take(usize::from(count))
                .collect(),
        }
    }

    pub(crate) fn count(&self) -> u16 {
        u16::try_from(self.vectors.len()).expect("the options bound the count")
    }

    /// Enables a vector with a descriptor of its own, or returns the one that it has.
    pub(crate) fn enable(&self, vector: u16) -> Result<RawFd, BusError> {
        let entry = self.vector(vector)?;
        let mut signal = lock(entry);
        if let Some(signal) = signal.as_ref() {
            return Ok(signal.descriptor());
        }
        let fresh = Signal::create().map_err(|source| BusError::System {
            operation: "creating an eventfd",
            source,
        })?;
        let descriptor = fresh.descriptor();
        *signal = Some(fresh);
        entry.is_enabled.store(true, Ordering::Release);
        Ok(descriptor)
    }

    /// Makes a vector fire into somebody else's eventfd.
    pub(crate) fn route(&self, vector: u16, signal: BorrowedFd<'_>) -> Result<(), BusError> {
        let entry = self.vector(vector)?;
        let adopted = Signal::adopt(signal).map_err(|source| BusError::System {
            operation: "duplicating an eventfd",
            source,
        })?;
        *lock(entry) = Some(adopted);
        entry.is_enabled.store(true, Ordering::Release);
        Ok(())
    }

    /// Fires a vector; nothing happens while it is not enabled. At most one system call.
    pub(crate) fn fire(&self, vector: u16) {
        let entry = self.vectors.get(usize::from(vector));
        let Some(entry) = entry.filter(|entry| entry.is_enabled.load(Ordering::Acquire)) else {
            return;
        };
        if let Some(signal) = lock(entry).as_ref() {
            signal.fire();
        }
    }

    /// The descriptor of a vector that is enabled.
    pub(crate) fn descriptor(&self, vector: u16) -> Option<RawFd> {
        let entry = self.vectors.get(usize::from(vector))?;
        lock(entry).as_ref().map(Signal::descriptor)
    }

    fn vector(&self, vector: u16) -> Result<&Vector, BusError> {
        self.vectors
            .get(usize::from(vector))
            .ok_or(BusError::NoVector {
                vector,
                count: self.count(),
            })
    }
}

fn lock(vector: &Vector) -> MutexGuard<'_, Option<Signal>> {
    vector.signal.lock().unwrap_or_else(PoisonError::into_inner)
}
