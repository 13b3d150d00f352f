//! What a controller and its queues, on other threads, tell each other: three atomic words.

use std::sync::atomic::{AtomicU64, Ordering};

use lode_bus::Bus;

/// Shared by a controller and all its queues.
#[derive(Debug)]
pub(crate) struct Shared<B> {
    pub(crate) bus: B,
    /// Written by the controller, read by the queues: see [`GateView`].
    gate: AtomicU64,
    /// Written by the queues: the epoch whose controller they want reset, plus one.
    reset_request: AtomicU64,
}

/// Whether queues may touch the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Queues that were created in this epoch may be used. Whatever was in flight in an earlier
    /// epoch no longer touches memory.
    Open,
    /// The controller is being reset or shut down: nobody rings a doorbell, and memory of
    /// commands in flight is still the device's.
    Closed,
    /// The device failed or is gone, and no longer touches memory.
    Gone,
}

/// The gate at one moment. The epoch grows each time the gate closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GateView(u64);

impl GateView {
    const fn new(epoch: u64, gate: Gate) -> Self {
        let code = match gate {
            Gate::Open => 0,
            Gate::Closed => 1,
            Gate::Gone => 2,
        };
        Self(epoch << 2 | code)
    }

    pub(crate) const fn epoch(self) -> u64 {
        self.0 >> 2
    }

    pub(crate) const fn gate(self) -> Gate {
        match self.0 & 3 {
            0 => Gate::Open,
            1 => Gate::Closed,
            _ => Gate::Gone,
        }
    }
}

impl<B: Bus> Shared<B> {
    pub(crate) const fn new(bus: B) -> Self {
        Self {
            bus,
            gate: AtomicU64::new(GateView::new(0, Gate::Open).0),
            reset_request: AtomicU64::new(0),
        }
    }

    /// The gate. Acquire pairs with the controller's store: a queue that sees a new epoch open
    /// also sees that the device let go of its memory.
    #[inline]
    pub(crate) fn view(&self) -> GateView {
        GateView(self.gate.load(Ordering::Acquire))
    }

    /// Closes the gate and begins a new epoch. Only the controller calls this and the next two.
    pub(crate) fn close(&self) {
        let epoch = self.view().epoch() + 1;
        self.store(epoch, Gate::Closed);
    }

    /// The device no longer touches memory of earlier epochs.
    pub(crate) fn open(&self) {
        self.store(self.view().epoch(), Gate::Open);
    }

    /// The device is gone for good, and no longer touches memory.
    pub(crate) fn end(&self) {
        let epoch = self.view().epoch() + 1;
        self.store(epoch, Gate::Gone);
    }

    /// A queue created in `epoch` asks for a reset. Requests of several queues are one.
    pub(crate) fn request_reset(&self, epoch: u64) {
        self.reset_request.fetch_max(epoch + 1, Ordering::Relaxed);
    }

    /// Whether a reset of the present epoch was asked for.
    pub(crate) fn is_reset_requested(&self) -> bool {
        self.reset_request.load(Ordering::Relaxed) == self.view().epoch() + 1
    }

    fn store(&self, epoch: u64, gate: Gate) {
        self.gate
            .store(GateView::new(epoch, gate).0, Ordering::Release);
    }
}
