//! Registers that are mapped into this process: a BAR, or what another process serves in its place.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use memmap2::{MmapOptions, MmapRaw};

use crate::bus::Registers;
use crate::lost_pages::PageWatch;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the order of register writes after memory writes is argued for x86-64 only");

/// A handle to a window of registers. The window is unmapped, and lets go of its device, when the
/// last handle is dropped.
///
/// Accesses are aligned, inside the window, and volatile; an access outside reads all ones or does
/// nothing. A window whose pages vanish reads all ones from then on.
#[derive(Clone, Debug)]
pub struct MappedRegisters {
    window: Arc<Window>,
}

#[derive(Debug)]
struct Window {
    /// Before the mapping, so that it is dropped first.
    watch: PageWatch,
    map: MmapRaw,
}

impl MappedRegisters {
    /// Maps `length_bytes` at `offset` of a descriptor, readable and writable.
    ///
    /// # Errors
    /// When the kernel refuses, or too many mappings are watched.
    pub fn map(file: &impl AsRawFd, offset: u64, length_bytes: usize) -> io::Result<Self> {
        let map = MmapOptions::new()
            .offset(offset)
            .len(length_bytes)
            .map_raw(file.as_raw_fd())?;
        let start = map.as_mut_ptr();
        // The fault handler knows the window by its address alone.
        start.expose_provenance();
        let watch = PageWatch::new(start, length_bytes)?;
        let window = Arc::new(Window { watch, map });
        Ok(Self { window })
    }

    /// Whether an access found the pages gone. Does not enter the kernel.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.window.watch.is_lost()
    }

    /// A pointer for a read; `None` where it would read all ones.
    fn readable<T>(&self, offset: u32) -> Option<*mut T> {
        let pointer = self.window.pointer(offset)?;
        (!self.is_lost()).then_some(pointer)
    }

    /// A value that was read while the window was lost may stem from an earlier write to its
    /// replacement.
    fn unless_lost<T>(&self, value: T, ones: T) -> T {
        if self.is_lost() { ones } else { value }
    }
}

impl Window {
    /// Where the register of type `T` at `offset` lies; `None` when it is misaligned or outside.
    fn pointer<T>(&self, offset: u32) -> Option<*mut T> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(size_of::<T>())?;
        if end > self.map.len() || !offset.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: the offset was just checked to lie inside the mapping.
        Some(unsafe { self.map.as_mut_ptr().add(offset) }.cast())
    }
}

impl Registers for MappedRegisters {
    fn length_bytes(&self) -> u64 {
        self.window.map.len() as u64
    }

    fn read_u32(&self, offset: u32) -> u32 {
        let Some(pointer) = self.readable::<u32>(offset) else {
            return u32::MAX;
        };
        // SAFETY: `pointer` is aligned (a window begins at a page) and inside the live mapping;
        // no reference to it exists.
        let value = unsafe { pointer.read_volatile() };
        // Reads of memory that the device wrote before it changed the register come after.
        fence(Ordering::Acquire);
        self.unless_lost(u32::from_le(value), u32::MAX)
    }

    fn read_u64(&self, offset: u32) -> u64 {
        let Some(pointer) = self.readable::<u64>(offset) else {
            return u64::MAX;
        };
        // SAFETY: as in `read_u32`.
        let value = unsafe { pointer.read_volatile() };
        fence(Ordering::Acquire);
        self.unless_lost(u64::from_le(value), u64::MAX)
    }

    fn write_u32(&self, offset: u32, value: u32) {
        let Some(pointer) = self.window.pointer::<u32>(offset) else {
            return;
        };
        // The partner is the device: queue entries are in memory before it learns of them. On
        // x86-64 stores to ordinary memory become visible before a later store to uncached
        // memory, so that only the compiler has to be held back.
        fence(Ordering::Release);
        // SAFETY: as in `read_u32`.
        unsafe { pointer.write_volatile(value.to_le()) };
    }

    fn write_u64(&self, offset: u32, value: u64) {
        let Some(pointer) = self.window.pointer::<u64>(offset) else {
            return;
        };
        fence(Ordering::Release);
        // SAFETY: as in `read_u32`.
        unsafe { pointer.write_volatile(value.to_le()) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    const LENGTH_BYTES: usize = 8192;

    /// A file in place of a device's BAR.
    fn registers() -> (File, MappedRegisters) {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(LENGTH_BYTES as u64).expect("length");
        let registers = MappedRegisters::map(&file, 0, LENGTH_BYTES).expect("a window");
        (file, registers)
    }

    #[test]
    fn registers_are_little_endian_words_of_the_window() {
        let (file, registers) = registers();
        registers.write_u32(0x1000, 0x0102_0304);
        registers.write_u64(0x28, 0x1122_3344_5566_7788);
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes[..4], 0x1000).expect("read");
        assert_eq!(&bytes[..4], [4, 3, 2, 1]);
        file.read_exact_at(&mut bytes, 0x28).expect("read");
        assert_eq!(u64::from_le_bytes(bytes), 0x1122_3344_5566_7788);
        assert_eq!(registers.read_u32(0x2C), 0x1122_3344);
        assert_eq!(registers.read_u64(0x28), 0x1122_3344_5566_7788);
        assert_eq!(registers.length_bytes(), LENGTH_BYTES as u64);
    }

    #[test]
    fn an_access_outside_or_misaligned_reads_ones_and_writes_nothing() {
        let (file, registers) = registers();
        for offset in [8190, 8192, 8189, 2, u32::MAX] {
            assert_eq!(registers.read_u32(offset), u32::MAX);
            registers.write_u32(offset, 7);
        }
        for offset in [8188, 8192, 4, u32::MAX - 7] {
            assert_eq!(registers.read_u64(offset), u64::MAX);
            registers.write_u64(offset, 7);
        }
        let mut bytes = vec![1; LENGTH_BYTES];
        file.read_exact_at(&mut bytes, 0).expect("read");
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_window_whose_pages_vanish_reads_ones_from_then_on() {
        let (file, registers) = registers();
        registers.write_u32(0x14, 0x46_0001);
        assert_eq!(registers.read_u32(0x14), 0x46_0001);
        file.set_len(0).expect("the device vanishes");
        assert_eq!(registers.read_u32(0x14), u32::MAX);
        assert!(registers.is_lost());
        registers.write_u32(0x14, 1);
        assert_eq!(registers.read_u32(0x14), u32::MAX);
        assert_eq!(registers.read_u64(0), u64::MAX);
    }

    #[test]
    fn a_write_to_vanished_pages_is_survived_too() {
        let (file, lost) = registers();
        let (_other_file, kept) = registers();
        file.set_len(0).expect("the device vanishes");
        lost.write_u32(0x1000, 1);
        assert!(lost.is_lost());
        kept.write_u32(0x1000, 5);
        assert_eq!(kept.read_u32(0x1000), 5);
        assert!(!kept.is_lost());
    }

    #[test]
    fn a_window_given_back_is_watched_no_more() {
        for _ in 0..2 * crate::lost_pages::WATCHES_MAX {
            let (_file, registers) = registers();
            assert_eq!(registers.read_u32(0), 0);
        }
    }
}
