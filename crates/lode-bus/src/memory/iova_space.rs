//! The I/O virtual addresses of this process, handed out once each.

use std::io;
use std::sync::Mutex;

use lode_units::Iova;

use crate::error::BusError;
use crate::memory::mapping::DmaMemory;
use crate::memory::pages::{PagePreference, Pages};

/// Hands out I/O virtual addresses, so that one piece of memory has the same address for every
/// controller of the process.
///
/// Addresses start low, where the narrowest IOMMU can still translate them, and skip
/// 0xFEE0_0000–0xFEEF_FFFF, which x86 reserves for message-signalled interrupts. They are never
/// reused: a late access to memory that was given back cannot hit its successor.
#[derive(Debug)]
pub struct IovaSpace {
    next: Mutex<u64>,
}

impl IovaSpace {
    /// An empty space.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            next: Mutex::new(FIRST),
        }
    }

    /// Allocates at least `length_bytes` of zeroed memory, rounded up to whole pages, at the next
    /// free address. Another process can be given access to it ([`DmaMemory::file`]). Enters the
    /// kernel; not for the data path.
    ///
    /// # Errors
    /// When the system has no memory or the address space is used up.
    pub fn allocate(
        &self,
        length_bytes: usize,
        preference: PagePreference,
    ) -> Result<DmaMemory, BusError> {
        self.placed(length_bytes, |length| Pages::shareable(length, preference))
    }

    /// As [`IovaSpace::allocate`], but of ordinary pages that cannot be shared with another
    /// process: for what no controller outside of this one is to see.
    ///
    /// # Errors
    /// As [`IovaSpace::allocate`].
    pub fn allocate_private(&self, length_bytes: usize) -> Result<DmaMemory, BusError> {
        self.placed(length_bytes, Pages::private)
    }

    fn placed(
        &self,
        length_bytes: usize,
        allocate: impl FnOnce(usize) -> io::Result<Pages>,
    ) -> Result<DmaMemory, BusError> {
        let no_address = BusError::NoAddress { length_bytes };
        let length = u64::try_from(length_bytes)
            .ok()
            .filter(|length| *length <= LAST);
        let Some(length) = length else {
            return Err(no_address);
        };
        let mut next = self
            .next
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let start = place(*next, length);
        let Some(end) = start.checked_add(length).filter(|end| *end <= LAST) else {
            return Err(no_address);
        };
        let pages = allocate(length_bytes).map_err(|source| BusError::NoMemory {
            length_bytes,
            source,
        })?;
        *next = end.next_multiple_of(ALIGNMENT);
        Ok(DmaMemory::new(pages, Iova::new(start)))
    }
}

impl Default for IovaSpace {
    fn default() -> Self {
        Self::new()
    }
}

/// The first address at or after `next` where `length` bytes avoid the interrupt window.
const fn place(next: u64, length: u64) -> u64 {
    if next < INTERRUPT_WINDOW_END && next.saturating_add(length) > INTERRUPT_WINDOW_START {
        return INTERRUPT_WINDOW_END;
    }
    next
}

/// Address 0 stays free: it is what a forgotten pointer holds.
const FIRST: u64 = 0x20_0000;
/// The narrowest address width in use is 39 bits.
const LAST: u64 = 1 << 39;
/// The size of a huge page, so that huge mappings stay aligned on the device's side too.
const ALIGNMENT: u64 = 0x20_0000;
const INTERRUPT_WINDOW_START: u64 = 0xFEE0_0000;
const INTERRUPT_WINDOW_END: u64 = 0xFF00_0000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_range_touches_the_interrupt_window() {
        assert_eq!(place(0xFED0_0000, 0x10_0000), 0xFED0_0000);
        assert_eq!(place(0xFED0_0000, 0x10_0001), INTERRUPT_WINDOW_END);
        assert_eq!(place(0xFEE0_0000, 1), INTERRUPT_WINDOW_END);
        assert_eq!(place(INTERRUPT_WINDOW_END, 1), INTERRUPT_WINDOW_END);
    }

    #[test]
    fn addresses_do_not_overlap() {
        let space = IovaSpace::new();
        let first = space
            .allocate(4096, PagePreference::Ordinary)
            .expect("a page");
        let second = space
            .allocate(8192, PagePreference::Ordinary)
            .expect("two pages");
        let first_end = first.iova().get() + first.length_bytes() as u64;
        assert!(second.iova().get() >= first_end);
    }

    #[test]
    fn an_absurd_length_is_an_error() {
        let space = IovaSpace::new();
        let outcome = space.allocate(usize::MAX, PagePreference::Ordinary);
        assert!(matches!(outcome, Err(BusError::NoAddress { .. })));
    }
}
