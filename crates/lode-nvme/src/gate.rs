//! What a controller and its queues, on other threads, tell each other: a few atomic words.

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
    /// Written by the queues: the scan of the namespaces that they wait for.
    scan_request: AtomicU64,
    /// Written by the controller: how many scans it has begun.
    scans_begun: AtomicU64,
    /// Written by the controller: the last scan that it has finished.
    scan_finished: AtomicU64,
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
            scan_request: AtomicU64::new(0),
            scans_begun: AtomicU64::new(0),
            scan_finished: AtomicU64::new(0),
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

    /// A queue wants the namespaces identified anew; the number of the scan that it waits for. One
    /// that has begun already may have seen what was so before.
    pub(crate) fn request_scan(&self) -> u64 {
        // A read-modify-write sees the latest value.
        let wanted = self.scans_begun.fetch_add(0, Ordering::AcqRel) + 1;
        self.scan_request.fetch_max(wanted, Ordering::Relaxed);
        wanted
    }

    /// Whether a scan was asked for that has not begun.
    pub(crate) fn is_scan_requested(&self) -> bool {
        let begun = self.scans_begun.load(Ordering::Relaxed);
        self.scan_request.load(Ordering::Relaxed) > begun
    }

    /// A scan begins. Only the controller calls this and the next one.
    pub(crate) fn begin_scan(&self) {
        self.scans_begun.fetch_add(1, Ordering::AcqRel);
    }

    /// The scan that has begun last is finished, and each link told of its namespace.
    pub(crate) fn finish_scan(&self) {
        let begun = self.scans_begun.load(Ordering::Relaxed);
        self.scan_finished.store(begun, Ordering::Release);
    }

    /// Whether the scan numbered `wanted` is finished. Acquire pairs with [`Shared::finish_scan`]:
    /// a queue for which it is sees what its link was told.
    pub(crate) fn has_scanned(&self, wanted: u64) -> bool {
        self.scan_finished.load(Ordering::Acquire) >= wanted
    }

    fn store(&self, epoch: u64, gate: Gate) {
        self.gate
            .store(GateView::new(epoch, gate).0, Ordering::Release);
    }
}
