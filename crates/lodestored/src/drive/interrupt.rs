//! The interrupt with which a drive's queue wakes the core.
//!
//! ```text
//! prepare ─► Fires ◄─ fire ─ rest ─► Rests        any ── refused ──► None
//! ```

use std::os::fd::AsFd;
use std::sync::Arc;

use lode_bus::{Bus, BusError};
use lode_reactor::Signal;

/// The interrupt of one drive's queue.
#[derive(Debug)]
pub(crate) enum Interrupt {
    /// It has none that works: whoever waits for the queue polls.
    None,
    /// A completion makes the core's signal readable.
    Fires(Line),
    /// Nothing does, and the kernel is spared the interrupts.
    Rests(Line),
}

/// A vector of the controller and where it fires to.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    vector: u16,
    signal: Arc<Signal>,
}

impl Interrupt {
    /// Has a vector of `bus` fire into `signal`, if there is one; to be done before the queue is
    /// made that uses it.
    pub(crate) fn prepare<B: Bus>(bus: &B, signal: Option<&Arc<Signal>>) -> Self {
        let Some(signal) = signal else {
            return Self::None;
        };
        let vector = match bus.interrupt_count() {
            0 => {
                let device = bus.name();
                tracing::warn!(device, "it has no interrupt: the core polls while it works");
                return Self::None;
            }
            // Shared with the admin queue, which has the first one (NVMe PCIe Transport 1.0 §3.3).
            1 => 0,
            _ => 1,
        };
        let signal = Arc::clone(signal);
        Self::Rests(Line { vector, signal }).fired(bus)
    }

    /// The vector that the queue is to be made with.
    pub(crate) const fn vector(&self) -> Option<u16> {
        match self {
            Self::None => None,
            Self::Fires(line) | Self::Rests(line) => Some(line.vector),
        }
    }

    /// Lets it fire. Enters the kernel when it rests; does not block or allocate.
    pub(crate) fn fire<B: Bus>(&mut self, bus: &B) {
        if matches!(self, Self::Rests(_)) {
            *self = std::mem::replace(self, Self::None).fired(bus);
        }
    }

    /// Lets it rest. Enters the kernel when it fires; does not block or allocate.
    pub(crate) fn rest<B: Bus>(&mut self, bus: &B) {
        if matches!(self, Self::Fires(_)) {
            *self = std::mem::replace(self, Self::None).rested(bus);
        }
    }

    fn fired<B: Bus>(self, bus: &B) -> Self {
        match self {
            Self::Rests(line) => {
                let outcome = bus.route_interrupt(line.vector, line.signal.as_fd());
                accepted(bus, outcome, Self::Fires(line))
            }
            Self::None | Self::Fires(_) => self,
        }
    }

    fn rested<B: Bus>(self, bus: &B) -> Self {
        match self {
            Self::Fires(line) => {
                let outcome = bus.rest_interrupt(line.vector);
                accepted(bus, outcome, Self::Rests(line))
            }
            Self::None | Self::Rests(_) => self,
        }
    }
}

/// `then`, or no interrupt from now on: its state is not known any more.
fn accepted<B: Bus>(bus: &B, outcome: Result<(), BusError>, then: Interrupt) -> Interrupt {
    match outcome {
        Ok(()) => then,
        // Nothing of it will complete: there is nothing to wake for.
        Err(BusError::Gone) => Interrupt::None,
        Err(error) => {
            let device = bus.name();
            tracing::warn!(device, %error, "its interrupt fails: the core polls while it works");
            Interrupt::None
        }
    }
}
