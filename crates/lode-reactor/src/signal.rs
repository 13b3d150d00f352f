//! How another thread wakes a core that sleeps, without a lost wake-up.
//!
//! The core: sets `armed`, fence, polls once more, sleeps. The signaller: publishes, fence, looks
//! at `armed`. With both fences sequentially consistent at least one sees the other: the core's
//! second poll sees what was published, or the signaller sees `armed` and writes the eventfd.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};

/// The two sides of the agreement over one word.
#[derive(Debug, Default)]
pub(crate) struct SleepFlag<W> {
    armed: W,
}

/// The word that both sides share: an atomic, or a model of one.
pub(crate) trait Word {
    /// Reads, relaxed.
    fn read(&self) -> bool;
    /// Writes, relaxed.
    fn write(&self, value: bool);
    /// Clears and returns what was there.
    fn take(&self) -> bool;
    /// A sequentially consistent fence.
    fn fence();
}

impl<W: Word> SleepFlag<W> {
    /// The core's side, before its second poll.
    pub(crate) fn arm(&self) {
        self.armed.write(true);
        // Partner: the fence of `must_signal`.
        W::fence();
    }

    /// The core's side, after waking.
    pub(crate) fn disarm(&self) {
        self.armed.write(false);
    }

    /// The signaller's side, after it has published: whether it must write the eventfd. Says so
    /// once for each `arm`.
    pub(crate) fn must_signal(&self) -> bool {
        // Partner: the fence of `arm`.
        W::fence();
        self.armed.read() && self.armed.take()
    }
}

impl Word for AtomicBool {
    fn read(&self) -> bool {
        self.load(Ordering::Relaxed)
    }

    fn write(&self, value: bool) {
        self.store(value, Ordering::Relaxed);
    }

    fn take(&self) -> bool {
        self.swap(false, Ordering::Relaxed)
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// A core's own doorbell for the other threads of the process, and the descriptor that a device's
/// interrupts can be routed into.
#[derive(Debug)]
pub struct Signal {
    flag: SleepFlag<AtomicBool>,
    descriptor: OwnedFd,
}

impl Signal {
    /// A signal with a descriptor of its own.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            flag: SleepFlag::default(),
            descriptor,
        })
    }

    /// Wakes the core if it sleeps or is about to. Call it after publishing what a poll shall
    /// find. Any thread; does not block.
    pub fn notify(&self) {
        if self.flag.must_signal() {
            // The only failure, a counter near 2^64, means that the descriptor is readable anyway.
            let _written = rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes());
        }
    }

    pub(crate) fn arm(&self) {
        self.flag.arm();
    }

    pub(crate) fn disarm(&self) {
        self.flag.disarm();
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for Signal {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

#[cfg(test)]
mod tests;
