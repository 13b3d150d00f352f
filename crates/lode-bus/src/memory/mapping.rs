//! Access to DMA memory: the only place that touches it through pointers.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use lode_units::Iova;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::memory::pages::{PageKind, Pages};

/// A contiguous piece of memory that devices may be given access to, with the I/O virtual
/// address under which they see it. Clones are handles to the same memory.
///
/// All accesses are copies or atomic words. Two sides may race for the same bytes only where a
/// queue protocol orders them (the phase tag of a completion, the value of a doorbell); a race
/// outside of that is a fault of the device and can spoil data, nothing else.
#[derive(Clone, Debug)]
pub struct DmaMemory {
    shared: Arc<Mapping>,
}

#[derive(Debug)]
struct Mapping {
    pages: Pages,
    iova: Iova,
}

impl DmaMemory {
    pub(super) fn new(pages: Pages, iova: Iova) -> Self {
        let shared = Arc::new(Mapping { pages, iova });
        Self { shared }
    }

    /// Maps `length_bytes` from `offset` on of a file that another process shares, for a
    /// controller that sees it at `iova`. Both must be whole pages.
    ///
    /// The other process goes on writing there whenever it likes, as a device does. When it takes
    /// the pages away, they read as ones and what is written is lost. Enters the kernel.
    ///
    /// # Errors
    /// When the kernel refuses, or too many such memories are mapped.
    pub fn adopt(
        file: BorrowedFd<'_>,
        offset: u64,
        length_bytes: usize,
        iova: Iova,
    ) -> io::Result<Self> {
        Pages::foreign(file, offset, length_bytes).map(|pages| Self::new(pages, iova))
    }

    /// Where devices see the first byte.
    #[must_use]
    pub fn iova(&self) -> Iova {
        self.shared.iova
    }

    /// The length in bytes: whole pages.
    #[must_use]
    pub fn length_bytes(&self) -> usize {
        self.shared.pages.map.len()
    }

    /// The kind of pages behind it.
    #[must_use]
    pub fn page_kind(&self) -> PageKind {
        self.shared.pages.kind
    }

    /// What another process maps, from its first byte on, to share this memory; `None` when this
    /// memory belongs to this process alone. It can neither be shortened nor extended.
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.shared.pages.file()
    }

    /// The address of the first byte in this process, for system calls that pin or map it.
    /// Dereferencing it is for those calls alone.
    #[must_use]
    pub fn host_address(&self) -> *mut u8 {
        self.shared.pages.map.as_mut_ptr()
    }

    /// Copies `source` in at `offset`.
    ///
    /// # Panics
    /// When it does not fit.
    pub fn copy_from_slice(&self, offset: usize, source: &[u8]) {
        let target = self.pointer(offset, source.len());
        // SAFETY: `pointer` checked that the range lies inside the live mapping; `source` is a
        // Rust slice and cannot overlap memory of which no reference exists.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
    }

    /// Copies out from `offset` until `target` is full.
    ///
    /// # Panics
    /// When the memory ends first.
    pub fn copy_to_slice(&self, offset: usize, target: &mut [u8]) {
        let source = self.pointer(offset, target.len());
        // SAFETY: as in `copy_from_slice`, the other way round.
        unsafe { std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
    }

    /// Copies out `length_bytes` from `offset` to the end of `target`, which may reallocate.
    ///
    /// # Panics
    /// When the memory ends first.
    pub fn append_to(&self, offset: usize, length_bytes: usize, target: &mut Vec<u8>) {
        let source = self.pointer(offset, length_bytes);
        target.reserve(length_bytes);
        let spare = target.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: the source range was checked, `reserve` made room for as many bytes at `spare`.
        unsafe { std::ptr::copy_nonoverlapping(source, spare, length_bytes) };
        let length = target.len() + length_bytes;
        // SAFETY: the bytes up to `length` have just been written.
        unsafe { target.set_len(length) };
    }

    /// Copies `length_bytes` from `source` at `source_offset` to `offset` here. The two ranges
    /// may overlap.
    ///
    /// # Panics
    /// When either range does not fit.
    pub fn copy_from(
        &self,
        offset: usize,
        source: &Self,
        source_offset: usize,
        length_bytes: usize,
    ) {
        let from = source.pointer(source_offset, length_bytes);
        let to = self.pointer(offset, length_bytes);
        // SAFETY: both ranges were checked against their live mappings; `copy` allows overlap.
        unsafe { std::ptr::copy(from, to, length_bytes) };
    }

    /// Writes zeros.
    ///
    /// # Panics
    /// When the range does not lie inside the memory.
    pub fn fill_zero(&self, offset: usize, length_bytes: usize) {
        let target = self.pointer(offset, length_bytes);
        // SAFETY: `pointer` checked the range.
        unsafe { std::ptr::write_bytes(target, 0, length_bytes) };
    }

    /// Whether the bytes from `offset` equal `expected`.
    ///
    /// # Panics
    /// When the range does not lie inside the memory.
    #[must_use]
    pub fn equals(&self, offset: usize, expected: &[u8]) -> bool {
        let mut chunk = [0; COMPARE_CHUNK_BYTES];
        expected
            .chunks(COMPARE_CHUNK_BYTES)
            .enumerate()
            .all(|(index, part)| {
                let held = &mut chunk[..part.len()];
                self.copy_to_slice(offset + index * COMPARE_CHUNK_BYTES, held);
                held == part
            })
    }

    /// Copies a value out.
    ///
    /// # Panics
    /// When it does not lie inside the memory.
    #[must_use]
    pub fn read<T: FromBytes + IntoBytes>(&self, offset: usize) -> T {
        let mut value = T::new_zeroed();
        self.copy_to_slice(offset, value.as_mut_bytes());
        value
    }

    /// Copies a value in.
    ///
    /// # Panics
    /// When it does not fit.
    pub fn write<T: IntoBytes + Immutable>(&self, offset: usize, value: &T) {
        self.copy_from_slice(offset, value.as_bytes());
    }

    /// Reads an aligned 16-bit word. With `Acquire`, everything that the other side wrote before
    /// it stored this word (a completion before its phase tag) is visible afterwards.
    ///
    /// # Panics
    /// When the word is misaligned or outside.
    #[must_use]
    pub fn load_u16(&self, offset: usize, ordering: Ordering) -> u16 {
        let pointer = self.aligned_pointer::<u16>(offset);
        // SAFETY: aligned, inside the live mapping, and every concurrent access to the word is
        // atomic or a device's.
        let word = unsafe { AtomicU16::from_ptr(pointer) };
        u16::from_le(word.load(ordering))
    }

    /// Stores an aligned 16-bit word; with `Release`, earlier writes are visible before it.
    ///
    /// # Panics
    /// When the word is misaligned or outside.
    pub fn store_u16(&self, offset: usize, value: u16, ordering: Ordering) {
        let pointer = self.aligned_pointer::<u16>(offset);
        // SAFETY: as in `load_u16`.
        let word = unsafe { AtomicU16::from_ptr(pointer) };
        word.store(value.to_le(), ordering);
    }

    /// Reads an aligned 32-bit word, as [`DmaMemory::load_u16`].
    ///
    /// # Panics
    /// When the word is misaligned or outside.
    #[must_use]
    pub fn load_u32(&self, offset: usize, ordering: Ordering) -> u32 {
        let pointer = self.aligned_pointer::<u32>(offset);
        // SAFETY: as in `load_u16`.
        let word = unsafe { AtomicU32::from_ptr(pointer) };
        u32::from_le(word.load(ordering))
    }

    /// Stores an aligned 32-bit word, as [`DmaMemory::store_u16`].
    ///
    /// # Panics
    /// When the word is misaligned or outside.
    pub fn store_u32(&self, offset: usize, value: u32, ordering: Ordering) {
        let pointer = self.aligned_pointer::<u32>(offset);
        // SAFETY: as in `load_u16`.
        let word = unsafe { AtomicU32::from_ptr(pointer) };
        word.store(value.to_le(), ordering);
    }

    /// Replaces an aligned 32-bit word and returns what it held, in one step that no other access
    /// comes between. What the other side wrote before that word is visible afterwards.
    ///
    /// # Panics
    /// When the word is misaligned or outside.
    #[must_use]
    pub fn swap_u32(&self, offset: usize, value: u32) -> u32 {
        let pointer = self.aligned_pointer::<u32>(offset);
        // SAFETY: as in `load_u16`.
        let word = unsafe { AtomicU32::from_ptr(pointer) };
        u32::from_le(word.swap(value.to_le(), Ordering::AcqRel))
    }

    #[inline]
    fn aligned_pointer<T>(&self, offset: usize) -> *mut T {
        if !offset.is_multiple_of(align_of::<T>()) {
            misaligned(offset);
        }
        self.pointer(offset, size_of::<T>()).cast()
    }

    #[inline]
    fn pointer(&self, offset: usize, length_bytes: usize) -> *mut u8 {
        let end = offset.checked_add(length_bytes);
        if end.is_none_or(|end| end > self.length_bytes()) {
            outside(offset, length_bytes, self.length_bytes());
        }
        // SAFETY: `offset` was just checked to lie inside the mapping or at its end.
        unsafe { self.shared.pages.map.as_mut_ptr().add(offset) }
    }
}

// Out of the way: with its message in place, a check would cost each access more than itself.
#[cold]
#[inline(never)]
fn outside(offset: usize, length_bytes: usize, whole: usize) -> ! {
    panic!("{length_bytes} bytes at {offset} do not lie inside a memory of {whole}")
}

#[cold]
#[inline(never)]
fn misaligned(offset: usize) -> ! {
    panic!("a word at {offset} is misaligned")
}

const COMPARE_CHUNK_BYTES: usize = 512;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::memory::PagePreference;

    fn memory() -> DmaMemory {
        let pages = Pages::shareable(5000, PagePreference::Ordinary).expect("pages");
        DmaMemory::new(pages, Iova::new(0x20_0000))
    }

    #[test]
    fn memory_is_zeroed_and_rounded_to_pages() {
        let memory = memory();
        assert_eq!(memory.length_bytes(), 8192);
        assert!(memory.equals(0, &[0; 8192]));
    }

    #[test]
    fn words_are_little_endian_in_memory() {
        let memory = memory();
        memory.store_u32(8, 0x0102_0304, Ordering::Release);
        assert!(memory.equals(8, &[4, 3, 2, 1]));
        assert_eq!(memory.load_u16(10, Ordering::Acquire), 0x0102);
        memory.store_u16(8, 0xAABB, Ordering::Release);
        assert_eq!(memory.load_u32(8, Ordering::Acquire), 0x0102_AABB);
    }

    #[test]
    fn values_come_back_as_written() {
        let memory = memory();
        memory.write(100, &0x1122_3344_5566_7788_u64);
        assert_eq!(memory.read::<u64>(100), 0x1122_3344_5566_7788);
        memory.copy_from(104, &memory, 100, 8);
        assert_eq!(memory.read::<u64>(104), 0x1122_3344_5566_7788);
    }

    #[test]
    #[should_panic(expected = "do not lie inside a memory")]
    fn access_past_the_end_is_refused() {
        memory().fill_zero(8190, 3);
    }

    #[test]
    #[should_panic(expected = "is misaligned")]
    fn a_misaligned_word_is_refused() {
        let _word = memory().load_u32(2, Ordering::Relaxed);
    }

    #[test]
    fn memory_that_is_shared_is_the_same_memory() {
        let memory = memory();
        let file = memory.file().expect("shareable");
        let other = DmaMemory::adopt(file, 4096, 4096, Iova::new(0x1000)).expect("a mapping");
        memory.copy_from_slice(4096, b"from here");
        assert!(other.equals(0, b"from here"));
        assert_eq!(other.swap_u32(8, 7), u32::from(b'e'));
        assert_eq!(memory.load_u32(4104, Ordering::Acquire), 7);
        assert!(other.file().is_none(), "it is not ours to share");
    }

    #[test]
    fn memory_whose_owner_takes_it_away_reads_ones() {
        let owner = tempfile::tempfile().expect("a file");
        owner.set_len(8192).expect("length");
        let memory =
            DmaMemory::adopt(owner.as_fd(), 0, 8192, Iova::new(0x1000)).expect("a mapping");
        memory.copy_from_slice(4090, &[1; 12]);
        owner.set_len(0).expect("the pages vanish");
        assert!(memory.equals(4090, &[0xFF; 12]));
        memory.copy_from_slice(0, b"lost");
    }
}
