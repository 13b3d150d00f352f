//! The interrupts of one function: MSI-X vectors into event descriptors, and the kernel's wish
//! to have the function back.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};

use lode_bus::BusError;
use rustix::event::{EventfdFlags, eventfd};
use vfio_bindings::bindings::vfio::{VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_REQ_IRQ_INDEX};
use vfio_ioctls::VfioDevice;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::error::cause;
use crate::syscall;

/// The MSI-X vectors of a function. The kernel allocates them all at the first use.
#[derive(Debug)]
pub(crate) struct Vectors {
    count: AtomicU16,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_allocated: bool,
    /// The descriptors of our own, by vector.
    own: Vec<Option<OwnedFd>>,
}

impl Vectors {
    /// For a function with `offered` vectors; more than [`VECTORS_MAX`] are never used.
    pub(crate) fn new(offered: u32) -> Self {
        let count = u16::try_from(offered).map_or(VECTORS_MAX, |count| count.min(VECTORS_MAX));
        Self {
            count: AtomicU16::new(count),
            state: Mutex::default(),
        }
    }

    pub(crate) fn count(&self) -> u16 {
        self.count.load(Ordering::Relaxed)
    }

    /// Makes `vector` fire into a descriptor of our own, which is returned.
    pub(crate) fn enable(&self, device: BorrowedFd<'_>, vector: u16) -> Result<RawFd, BusError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let index = usize::from(vector);
        if let Some(signal) = state.own.get(index).and_then(Option::as_ref) {
            return Ok(signal.as_raw_fd());
        }
        let signal = new_signal().map_err(failed)?;
        self.route_in(&mut state, device, vector, signal.as_fd())?;
        let descriptor = signal.as_raw_fd();
        if state.own.len() <= index {
            state.own.resize_with(index + 1, || None);
        }
        state.own[index] = Some(signal);
        Ok(descriptor)
    }

    /// Makes `vector` fire into `signal`. The kernel keeps its own hold of it.
    pub(crate) fn route(
        &self,
        device: BorrowedFd<'_>,
        vector: u16,
        signal: BorrowedFd<'_>,
    ) -> Result<(), BusError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.route_in(&mut state, device, vector, signal)?;
        if let Some(own) = state.own.get_mut(usize::from(vector)) {
            *own = None;
        }
        Ok(())
    }

    /// Makes `vector` fire nowhere until it is routed again. The kernel masks it; what the device
    /// signals meanwhile stays pending there (PCI Express 4.0 §6.1.4.5), and fires then.
    pub(crate) fn rest(&self, device: BorrowedFd<'_>, vector: u16) -> Result<(), BusError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.check(vector)?;
        if state.is_allocated {
            syscall::route_interrupt(device, VFIO_PCI_MSIX_IRQ_INDEX, u32::from(vector), None)
                .map_err(failed)?;
        }
        if let Some(own) = state.own.get_mut(usize::from(vector)) {
            *own = None;
        }
        Ok(())
    }

    fn route_in(
        &self,
        state: &mut State,
        device: BorrowedFd<'_>,
        vector: u16,
        signal: BorrowedFd<'_>,
    ) -> Result<(), BusError> {
        self.check(vector)?;
        if !state.is_allocated {
            self.allocate(device, vector, signal)?;
            state.is_allocated = true;
            return Ok(());
        }
        let vector = u32::from(vector);
        syscall::route_interrupt(device, VFIO_PCI_MSIX_IRQ_INDEX, vector, Some(signal))
            .map_err(failed)
    }

    /// Has the kernel allocate every vector, of which only `vector` fires so far. When it has
    /// fewer, that is the count from now on.
    fn allocate(
        &self,
        device: BorrowedFd<'_>,
        vector: u16,
        signal: BorrowedFd<'_>,
    ) -> Result<(), BusError> {
        for _ in 0..ALLOCATION_ATTEMPTS {
            self.check(vector)?;
            let mut signals = vec![-1; usize::from(self.count())];
            signals[usize::from(vector)] = signal.as_raw_fd();
            let available = syscall::route_interrupts(device, VFIO_PCI_MSIX_IRQ_INDEX, 0, &signals)
                .map_err(failed)?;
            if available == 0 {
                return Ok(());
            }
            let fewer = u16::try_from(available).map_or(0, |fewer| fewer.min(self.count() - 1));
            self.count.store(fewer, Ordering::Relaxed);
        }
        Err(failed(io::ErrorKind::QuotaExceeded.into()))
    }

    fn check(&self, vector: u16) -> Result<(), BusError> {
        let count = self.count();
        if vector >= count {
            return Err(BusError::NoVector { vector, count });
        }
        Ok(())
    }

    /// Switches all of them off.
    pub(crate) fn disable(&self, device: &VfioDevice) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_allocated {
            device.disable_msix().map_err(cause)?;
            *state = State::default();
        }
        Ok(())
    }
}

/// The kernel's wish to have the function back: it is being removed or unbound, and waits until
/// the last descriptor of it is closed.
#[derive(Debug)]
pub(crate) struct RemovalRequest {
    signal: OwnedFd,
    was_seen: AtomicBool,
}

impl RemovalRequest {
    /// Asks to be told.
    ///
    /// # Errors
    /// When the kernel cannot tell (before Linux 4.0) or has no descriptor left.
    pub(crate) fn watch(device: &VfioDevice) -> io::Result<Self> {
        let signal = EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)?;
        device
            .enable_irq(VFIO_PCI_REQ_IRQ_INDEX, vec![&signal])
            .map_err(cause)?;
        Ok(Self {
            // SAFETY: the descriptor is open and was just given up by its only owner.
            signal: unsafe { OwnedFd::from_raw_fd(signal.into_raw_fd()) },
            was_seen: AtomicBool::new(false),
        })
    }

    /// Becomes readable when the wish is there.
    pub(crate) fn signal(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }

    /// Whether the wish is there; once it is, it stays. Enters the kernel, does not block.
    pub(crate) fn is_pending(&self) -> bool {
        if self.was_seen.load(Ordering::Relaxed) {
            return true;
        }
        let mut poll = [rustix::event::PollFd::new(
            &self.signal,
            rustix::event::PollFlags::IN,
        )];
        // Not read: whoever waits for the descriptor must find it readable too.
        let is_pending = rustix::event::poll(&mut poll, Some(&ZERO)).is_ok_and(|count| count > 0);
        if is_pending {
            self.was_seen.store(true, Ordering::Relaxed);
        }
        is_pending
    }
}

fn new_signal() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

fn failed(source: io::Error) -> BusError {
    BusError::System {
        operation: "routing an interrupt",
        source,
    }
}

/// One for each core of a large machine and some to spare; bounds what the kernel allocates.
const VECTORS_MAX: u16 = 256;
/// Each attempt asks for fewer.
const ALLOCATION_ATTEMPTS: usize = 8;
const ZERO: rustix::event::Timespec = rustix::event::Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> RemovalRequest {
        RemovalRequest {
            signal: new_signal().expect("an eventfd"),
            was_seen: AtomicBool::new(false),
        }
    }

    #[test]
    fn a_wish_stays_once_it_is_there_and_is_left_for_other_waiters() {
        let request = request();
        assert!(!request.is_pending());
        rustix::io::write(&request.signal, &1_u64.to_ne_bytes()).expect("the kernel's signal");
        assert!(request.is_pending());
        let mut count = [0; 8];
        rustix::io::read(&request.signal, &mut count).expect("still readable");
        assert!(request.is_pending());
    }

    #[test]
    fn a_vector_that_does_not_exist_is_refused_before_the_kernel_is_asked() {
        let stranger = new_signal().expect("an eventfd");
        let vectors = Vectors::new(3);
        let refused = vectors.enable(stranger.as_fd(), 3);
        assert!(matches!(
            refused,
            Err(BusError::NoVector {
                vector: 3,
                count: 3
            })
        ));
        assert!(matches!(
            vectors.enable(stranger.as_fd(), 2),
            Err(BusError::System { .. })
        ));
        assert_eq!(Vectors::new(4096).count(), VECTORS_MAX);
    }
}
