//! The mapped registers of a function.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use lode_bus::Registers;
use memmap2::{MmapOptions, MmapRaw};

use crate::lost_window::WindowWatch;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the order of register writes after memory writes is argued for x86-64 only");

/// A window of registers. Dropped when its last handle is, which also lets go of the device.
#[derive(Debug)]
pub(crate) struct Window {
    /// Before the mapping, so that it is dropped first.
    watch: WindowWatch,
    map: MmapRaw,
}

impl Window {
    /// Maps `length_bytes` at `offset` of a device's descriptor.
    ///
    /// # Errors
    /// When the kernel refuses, or too many windows are mapped.
    pub(crate) fn map(device: &File, offset: u64, length_bytes: usize) -> io::Result<Self> {
        let map = MmapOptions::new()
            .offset(offset)
            .len(length_bytes)
            .map_raw(device)?;
        let start = map.as_mut_ptr();
        // The fault handler knows the window by its address alone.
        start.expose_provenance();
        Ok(Self {
            watch: WindowWatch::new(start, length_bytes)?,
            map,
        })
    }

    /// Whether an access found the device gone.
    pub(crate) fn is_lost(&self) -> bool {
        self.watch.is_lost()
    }

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

/// A handle to the registers of a VFIO device (BAR 0 and 1 as one window).
///
/// Keeps the device open while it lives: the kernel gives the function back only after the last
/// handle is dropped.
#[derive(Clone, Debug)]
pub struct VfioRegisters {
    window: Arc<Window>,
}

impl VfioRegisters {
    pub(crate) const fn new(window: Arc<Window>) -> Self {
        Self { window }
    }

    /// A pointer for a read; `None` where it would read all ones.
    fn readable<T>(&self, offset: u32) -> Option<*mut T> {
        let pointer = self.window.pointer(offset)?;
        (!self.window.is_lost()).then_some(pointer)
    }
}

impl Registers for VfioRegisters {
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

impl VfioRegisters {
    /// A value that was read while the window was lost may stem from an earlier write to its
    /// replacement.
    fn unless_lost<T>(&self, value: T, ones: T) -> T {
        if self.window.is_lost() { ones } else { value }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const LENGTH_BYTES: usize = 8192;

    /// A file in place of a device's BAR.
    fn registers() -> (File, VfioRegisters) {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(LENGTH_BYTES as u64).expect("length");
        let window = Window::map(&file, 0, LENGTH_BYTES).expect("a window");
        (file, VfioRegisters::new(Arc::new(window)))
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
        assert!(registers.window.is_lost());
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
        assert!(lost.window.is_lost());
        kept.write_u32(0x1000, 5);
        assert_eq!(kept.read_u32(0x1000), 5);
        assert!(!kept.window.is_lost());
    }

    #[test]
    fn a_window_given_back_is_watched_no_more() {
        for _ in 0..2 * crate::lost_window::WINDOWS_MAX {
            let (_file, registers) = registers();
            assert_eq!(registers.read_u32(0), 0);
        }
    }
}
