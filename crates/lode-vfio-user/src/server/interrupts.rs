//! The client's event descriptors, by vector.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use lode_bus::Bus;
use rustix::event::{EventfdFlags, eventfd};

use super::session::errno;
use crate::error::VfioUserError;
use crate::wire::{INTERRUPT_MSIX, INTERRUPT_TYPE_COUNT, InterruptSet};

/// Which vectors fire into something of the client's.
#[derive(Debug)]
pub(super) struct ClientInterrupts {
    is_routed: Vec<bool>,
    /// What the others fire into: nobody listens.
    nobody: OwnedFd,
}

impl ClientInterrupts {
    pub(super) fn new(count: u16) -> Result<Self, VfioUserError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let nobody = eventfd(0, flags).map_err(|error| VfioUserError::System {
            operation: "making an eventfd",
            source: error.into(),
        })?;
        Ok(Self {
            is_routed: vec![false; usize::from(count)],
            nobody,
        })
    }

    /// Does what DEVICE_SET_IRQS asks: sets, or takes away. The errno of a refusal.
    pub(super) fn set(
        &mut self,
        set: InterruptSet,
        signals: &[OwnedFd],
        bus: &impl Bus,
    ) -> Result<(), u32> {
        if set.index.get() >= INTERRUPT_TYPE_COUNT {
            return Err(errno::EINVAL);
        }
        let (start, count) = (set.start.get(), set.count.get());
        match set.flags.get() {
            FLAGS_NONE if start == 0 && count == 0 => {
                self.clear(bus);
                Ok(())
            }
            FLAGS_EVENTFD if set.index.get() == INTERRUPT_MSIX => {
                self.route(start, count, signals, bus)
            }
            _ => Err(errno::EINVAL),
        }
    }

    fn route(
        &mut self,
        start: u32,
        count: u32,
        signals: &[OwnedFd],
        bus: &impl Bus,
    ) -> Result<(), u32> {
        let held = u32::try_from(self.is_routed.len()).unwrap_or(u32::MAX);
        let end = start.checked_add(count).filter(|end| *end <= held);
        let is_possible = signals.is_empty() || signals.len() == count as usize;
        let (Some(end), true) = (end, is_possible) else {
            return Err(errno::EINVAL);
        };
        if !signals.iter().all(|signal| is_eventfd(signal.as_fd())) {
            return Err(errno::EINVAL);
        }
        for (position, vector) in (start..end).enumerate() {
            let signal = signals.get(position).unwrap_or(&self.nobody);
            let vector = u16::try_from(vector).map_err(|_| errno::EINVAL)?;
            bus.route_interrupt(vector, signal.as_fd())
                .map_err(|_refused| errno::EIO)?;
            self.is_routed[usize::from(vector)] = !signals.is_empty();
        }
        Ok(())
    }

    /// Takes every descriptor away.
    pub(super) fn clear(&mut self, bus: &impl Bus) {
        for (vector, is_routed) in (0..=u16::MAX).zip(&mut self.is_routed) {
            if *is_routed {
                // Refused only by a controller that is gone, which fires nothing.
                let _is_gone = bus.route_interrupt(vector, self.nobody.as_fd()).is_err();
                *is_routed = false;
            }
        }
    }
}

/// Whether it counts events: anything else could block whoever writes to it.
fn is_eventfd(descriptor: BorrowedFd<'_>) -> bool {
    let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    std::fs::read_link(link).is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]")
}

const FLAGS_NONE: u32 = InterruptSet::DATA_NONE | InterruptSet::ACTION_TRIGGER;
const FLAGS_EVENTFD: u32 = InterruptSet::DATA_EVENTFD | InterruptSet::ACTION_TRIGGER;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eventfd_is_told_from_other_descriptors() {
        let signal = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        assert!(is_eventfd(signal.as_fd()));
        let file = tempfile::tempfile().expect("a file");
        assert!(!is_eventfd(file.as_fd()));
    }
}
