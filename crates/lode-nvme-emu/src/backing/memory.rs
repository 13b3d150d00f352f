//! Blocks in this process's memory.

use lode_bus::{BusError, DmaMemory, IovaSpace};

use crate::error::EmulatorError;

/// Zeroed memory, when it is large on huge pages where the system has them. Reads and writes are
/// copies from memory to memory.
#[derive(Debug)]
pub(super) struct MemoryStore {
    memory: DmaMemory,
}

impl MemoryStore {
    pub(super) fn allocate(length_bytes: u64) -> Result<Self, EmulatorError> {
        let length = usize::try_from(length_bytes).unwrap_or(usize::MAX);
        let store = Self {
            memory: staging(length)?,
        };
        if length >= HUGE_FROM_BYTES {
            store.prefer_huge_pages();
        }
        Ok(store)
    }

    pub(super) fn read(&self, position: u64, target: &DmaMemory, offset: usize, length: usize) {
        target.copy_from(offset, &self.memory, self.index(position), length);
    }

    pub(super) fn read_slice(&self, position: u64, target: &mut [u8]) {
        self.memory.copy_to_slice(self.index(position), target);
    }

    pub(super) fn write(&self, position: u64, source: &DmaMemory, offset: usize, length: usize) {
        self.memory
            .copy_from(self.index(position), source, offset, length);
    }

    /// Large ranges go back to the system, which hands out zeroed pages again.
    pub(super) fn zero(&self, position: u64, length: u64) {
        let start = self.index(position);
        let length = self.index(length);
        if length < RELEASE_FROM_BYTES {
            self.memory.fill_zero(start, length);
            return;
        }
        let end = start + length;
        let inner_start = start.next_multiple_of(PAGE_BYTES);
        let inner_end = end / PAGE_BYTES * PAGE_BYTES;
        self.memory.fill_zero(start, inner_start - start);
        self.memory.fill_zero(inner_end, end - inner_end);
        if !self.release(inner_start, inner_end - inner_start) {
            self.memory.fill_zero(inner_start, inner_end - inner_start);
        }
    }

    /// Asks for huge pages: random access to ordinary ones spends more on address translation than
    /// on the copy. A wish; nothing depends on it.
    fn prefer_huge_pages(&self) {
        let address = self.memory.host_address().cast();
        let length = self.memory.length_bytes();
        // SAFETY: the range is exactly the live mapping, and the advice changes no content.
        let outcome = unsafe { libc::madvise(address, length, libc::MADV_HUGEPAGE) };
        let _has_ordinary_pages = outcome != 0;
    }

    /// Gives whole pages back; they read as zeros afterwards. Returns whether that worked.
    fn release(&self, start: usize, length: usize) -> bool {
        let end = start.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= self.memory.length_bytes()),
            "released pages lie inside the memory"
        );
        let address = self.memory.host_address().wrapping_add(start);
        // SAFETY: the range was just checked to lie inside the live mapping, which is private and
        // anonymous, so that its pages come back zeroed; no Rust reference to them exists.
        let outcome = unsafe { libc::madvise(address.cast(), length, libc::MADV_DONTNEED) };
        outcome == 0
    }

    fn index(&self, position: u64) -> usize {
        usize::try_from(position).expect("the memory was allocated, so its length fits")
    }
}

/// Zeroed memory with an address space of its own: no controller can reach it.
pub(super) fn staging(length_bytes: usize) -> Result<DmaMemory, EmulatorError> {
    let space = IovaSpace::new();
    space
        .allocate_private(length_bytes)
        .map_err(|error: BusError| EmulatorError::Memory(error))
}

const PAGE_BYTES: usize = 4096;
/// Below this, zeroing a huge page at the first touch costs more than ordinary pages do.
const HUGE_FROM_BYTES: usize = 128 << 20;
/// Below this a plain fill is cheaper than a system call and the page faults after it.
const RELEASE_FROM_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroing_touches_exactly_its_range_whether_filled_or_released() {
        for (start, length) in [(5_usize, 100_usize), (4095, 200_001), (8192, 131_072)] {
            let store = MemoryStore::allocate(400_000).expect("memory");
            let source = staging(400_000).expect("memory");
            source.copy_from_slice(0, &vec![7; 400_000]);
            store.write(0, &source, 0, 400_000);
            store.zero(start as u64, length as u64);
            let mut expected = vec![7_u8; 400_000];
            expected[start..start + length].fill(0);
            assert!(store.memory.equals(0, &expected), "{length} at {start}");
        }
    }
}
