//! Where a command's data lie in the host's memory: physical region pages
//! (NVMe Base 2.0 §4.1.1), and the copies in and out.

use lode_bus::DmaMemory;
use lode_nvme_spec::DataPointer;
use zerocopy::{FromBytes, IntoBytes};

use crate::dma::{DmaFault, DmaTable, Hint, Segment};

/// Why a data pointer cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrpError {
    /// An offset where none may be, or an address that is not aligned.
    Offset,
    /// An address that is not mapped.
    Fault,
}

impl From<DmaFault> for PrpError {
    fn from(_fault: DmaFault) -> Self {
        Self::Fault
    }
}

/// The runs of one transfer, in order. Its room is allocated once.
#[derive(Debug)]
pub(crate) struct Segments {
    list: Vec<Segment>,
}

impl Segments {
    /// Room for a transfer of `transfer_max` bytes over pages of at least 4 KiB.
    pub(crate) fn for_transfers_of(transfer_max: usize) -> Self {
        Self {
            list: Vec::with_capacity(transfer_max / SMALLEST_PAGE_BYTES + 1),
        }
    }

    /// The runs.
    pub(crate) fn as_slice(&self) -> &[Segment] {
        &self.list
    }

    /// Finds the runs of `length` bytes behind `pointer`, with host pages of `page` bytes.
    /// Everything is resolved before a byte moves, so that a bad pointer spoils nothing.
    pub(crate) fn resolve(
        &mut self,
        dma: &DmaTable,
        hint: &mut Hint,
        pointer: DataPointer,
        page: u64,
        length: usize,
    ) -> Result<(), PrpError> {
        self.list.clear();
        let (prp1, prp2) = (pointer.prp1.get(), pointer.prp2.get());
        if !prp1.is_multiple_of(4) {
            return Err(PrpError::Offset);
        }
        let page_bytes = usize::try_from(page).expect("a page of at most 128 MiB");
        let first = length.min(page_bytes - offset_in(prp1, page_bytes));
        self.push(dma, hint, prp1, first)?;
        let rest = length - first;
        if rest == 0 {
            return Ok(());
        }
        if rest <= page_bytes {
            return self.push_page(dma, hint, prp2, page_bytes, rest);
        }
        self.resolve_list(dma, hint, prp2, page_bytes, rest)
    }

    /// Walks a PRP list; the last entry of a list page that does not suffice points to the next.
    fn resolve_list(
        &mut self,
        dma: &DmaTable,
        hint: &mut Hint,
        list: u64,
        page_bytes: usize,
        mut rest: usize,
    ) -> Result<(), PrpError> {
        if !list.is_multiple_of(8) {
            return Err(PrpError::Offset);
        }
        let mut entry_at = list;
        let mut list_hint = *hint;
        while rest > 0 {
            let entry: u64 = dma
                .read::<zerocopy::little_endian::U64>(entry_at, &mut list_hint)?
                .get();
            let is_last_of_page = offset_in(entry_at, page_bytes) + 8 == page_bytes;
            if is_last_of_page && rest > page_bytes {
                // Each list page after the first yields at least one data page, so this ends.
                if offset_in(entry, page_bytes) != 0 {
                    return Err(PrpError::Offset);
                }
                entry_at = entry;
                continue;
            }
            let length = rest.min(page_bytes);
            self.push_page(dma, hint, entry, page_bytes, length)?;
            rest -= length;
            entry_at = entry_at.wrapping_add(8);
        }
        Ok(())
    }

    /// Adds a page that must begin at a page border.
    fn push_page(
        &mut self,
        dma: &DmaTable,
        hint: &mut Hint,
        address: u64,
        page_bytes: usize,
        length: usize,
    ) -> Result<(), PrpError> {
        if offset_in(address, page_bytes) != 0 {
            return Err(PrpError::Offset);
        }
        self.push(dma, hint, address, length)
    }

    /// Adds `length` bytes at `address`, joined to the last run where they continue it.
    fn push(
        &mut self,
        dma: &DmaTable,
        hint: &mut Hint,
        mut address: u64,
        mut length: usize,
    ) -> Result<(), PrpError> {
        while length > 0 {
            let run = dma.run(address, length, hint)?;
            match self.list.last_mut() {
                Some(last)
                    if last.entry == run.entry && last.offset + last.length == run.offset =>
                {
                    last.length += run.length;
                }
                _ => self.list.push(run),
            }
            length -= run.length;
            address = address.wrapping_add(run.length as u64);
        }
        Ok(())
    }
}

/// A transfer's runs with the memories that they lie in, taken piece by piece from the front.
#[derive(Debug)]
pub(crate) struct Transfer<'a> {
    dma: &'a DmaTable,
    segments: &'a [Segment],
    consumed: usize,
}

impl<'a> Transfer<'a> {
    /// The transfer over `segments`, which were resolved against this very `dma`.
    pub(crate) fn new(dma: &'a DmaTable, segments: &'a Segments) -> Self {
        Self {
            dma,
            segments: segments.as_slice(),
            consumed: 0,
        }
    }

    /// The next piece of at most `length` bytes: a memory, where in it, how long.
    pub(crate) fn take(&mut self, length: usize) -> Option<(&'a DmaMemory, usize, usize)> {
        let segment = self.segments.first()?;
        let offset = segment.offset + self.consumed;
        let taken = length.min(segment.length - self.consumed);
        self.consumed += taken;
        if self.consumed == segment.length {
            self.segments = &self.segments[1..];
            self.consumed = 0;
        }
        Some((self.dma.memory(segment.entry), offset, taken))
    }

    /// Passes over `length` bytes.
    pub(crate) fn skip(&mut self, length: usize) {
        let mut done = 0;
        while let Some((_memory, _at, taken)) = self.next_of(length, done) {
            done += taken;
        }
    }

    /// Copies the host's next bytes out as a value.
    pub(crate) fn read<T: FromBytes + IntoBytes>(&mut self) -> T {
        let mut value = T::new_zeroed();
        self.copy_slice_out(value.as_mut_bytes());
        value
    }

    /// Copies the next `length` bytes of the host out to `target`.
    pub(crate) fn copy_out(&mut self, target: &DmaMemory, offset: usize, length: usize) {
        let mut done = 0;
        while let Some((memory, at, taken)) = self.next_of(length, done) {
            target.copy_from(offset + done, memory, at, taken);
            done += taken;
        }
    }

    /// Copies `length` bytes of `source` into the host's next bytes.
    pub(crate) fn copy_in(&mut self, source: &DmaMemory, offset: usize, length: usize) {
        let mut done = 0;
        while let Some((memory, at, taken)) = self.next_of(length, done) {
            memory.copy_from(at, source, offset + done, taken);
            done += taken;
        }
    }

    /// Copies a slice into the host's next bytes.
    pub(crate) fn copy_slice_in(&mut self, source: &[u8]) {
        let mut done = 0;
        while let Some((memory, at, taken)) = self.next_of(source.len(), done) {
            memory.copy_from_slice(at, &source[done..done + taken]);
            done += taken;
        }
    }

    /// Writes zeros to the host's next `length` bytes.
    pub(crate) fn zero_in(&mut self, length: usize) {
        let mut done = 0;
        while let Some((memory, at, taken)) = self.next_of(length, done) {
            memory.fill_zero(at, taken);
            done += taken;
        }
    }

    /// Copies the host's next bytes into a slice.
    pub(crate) fn copy_slice_out(&mut self, target: &mut [u8]) {
        let mut done = 0;
        while let Some((memory, at, taken)) = self.next_of(target.len(), done) {
            memory.copy_to_slice(at, &mut target[done..done + taken]);
            done += taken;
        }
    }

    /// Whether the host's next `length` bytes equal those of `held`.
    pub(crate) fn equals(&mut self, held: &DmaMemory, offset: usize, length: usize) -> bool {
        let mut chunk = [0; COMPARE_CHUNK_BYTES];
        let mut done = 0;
        while done < length {
            let part = COMPARE_CHUNK_BYTES.min(length - done);
            self.copy_slice_out(&mut chunk[..part]);
            if !held.equals(offset + done, &chunk[..part]) {
                return false;
            }
            done += part;
        }
        true
    }

    fn next_of(&mut self, length: usize, done: usize) -> Option<(&'a DmaMemory, usize, usize)> {
        if done == length {
            return None;
        }
        self.take(length - done)
    }
}

fn offset_in(address: u64, page_bytes: usize) -> usize {
    usize::try_from(address % page_bytes as u64).expect("an offset in a page")
}

const SMALLEST_PAGE_BYTES: usize = 4096;
const COMPARE_CHUNK_BYTES: usize = 512;

#[cfg(test)]
mod tests {
    use lode_bus::{IovaSpace, PagePreference};

    use super::*;

    const PAGE: u64 = 4096;

    struct Host {
        dma: DmaTable,
        memory: DmaMemory,
        base: u64,
    }

    fn host(pages: usize) -> Host {
        let memory = IovaSpace::new()
            .allocate(pages * 4096, PagePreference::Ordinary)
            .expect("pages");
        let mut dma = DmaTable::default();
        dma.map(&memory).expect("room");
        let base = memory.iova().get();
        Host { dma, memory, base }
    }

    fn resolve(host: &Host, prp1: u64, prp2: u64, length: usize) -> Result<Vec<Segment>, PrpError> {
        let mut segments = Segments::for_transfers_of(1 << 20);
        let pointer = DataPointer::new(prp1, prp2);
        segments.resolve(&host.dma, &mut Hint::default(), pointer, PAGE, length)?;
        Ok(segments.list)
    }

    #[test]
    fn one_page_and_two_pages_need_no_list() {
        let host = host(8);
        let one = resolve(&host, host.base + 512, 0, 3584).expect("one page");
        assert_eq!((one.len(), one[0].offset, one[0].length), (1, 512, 3584));
        let two = resolve(&host, host.base + 512, host.base + 3 * PAGE, 4096).expect("two pages");
        assert_eq!(
            (two[0].length, two[1].offset, two[1].length),
            (3584, 3 * 4096, 512)
        );
    }

    #[test]
    fn adjacent_pages_become_one_run() {
        let host = host(8);
        for page in 0..3_u64 {
            let at = usize::try_from(7 * PAGE + page * 8).expect("small");
            host.memory.write(at, &(host.base + (page + 1) * PAGE));
        }
        let runs = resolve(&host, host.base, host.base + 7 * PAGE, 4 * 4096).expect("a list");
        assert_eq!((runs.len(), runs[0].length), (1, 4 * 4096));
    }

    #[test]
    fn a_list_that_ends_at_its_page_continues_where_its_last_entry_points() {
        let host = host(16);
        let last_slot = 15 * 4096 - 16;
        host.memory.write(last_slot, &(host.base + 5 * PAGE));
        host.memory.write(last_slot + 8, &(host.base + 2 * PAGE));
        host.memory.write(2 * 4096, &(host.base + 9 * PAGE));
        host.memory.write(2 * 4096 + 8, &(host.base + 7 * PAGE));
        let list = host.base + u64::try_from(last_slot).expect("small");
        let runs = resolve(&host, host.base, list, 4 * 4096).expect("a chained list");
        let pages: Vec<_> = runs.iter().map(|run| run.offset / 4096).collect();
        assert_eq!(pages, [0, 5, 9, 7]);
    }

    #[test]
    fn offsets_where_none_may_be_are_refused() {
        let host = host(8);
        assert_eq!(resolve(&host, host.base + 2, 0, 512), Err(PrpError::Offset));
        let second = host.base + PAGE + 4;
        assert_eq!(
            resolve(&host, host.base, second, 8192),
            Err(PrpError::Offset)
        );
        assert_eq!(
            resolve(&host, host.base, host.base + 4, 16384),
            Err(PrpError::Offset)
        );
    }

    #[test]
    fn an_unmapped_page_or_list_is_a_fault() {
        let host = host(4);
        assert_eq!(resolve(&host, 0x1000, 0, 512), Err(PrpError::Fault));
        assert_eq!(
            resolve(&host, host.base, 0x1000, 16384),
            Err(PrpError::Fault)
        );
    }

    #[test]
    fn a_transfer_is_taken_in_pieces_of_any_size() {
        let host = host(4);
        let pattern: Vec<u8> = (0..8192_u32)
            .map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1])
            .collect();
        host.memory.copy_from_slice(0, &pattern[..4096]);
        host.memory.copy_from_slice(8192, &pattern[4096..]);
        let mut segments = Segments::for_transfers_of(1 << 20);
        let pointer = DataPointer::new(host.base, host.base + 2 * PAGE);
        segments
            .resolve(&host.dma, &mut Hint::default(), pointer, PAGE, 8192)
            .expect("two pages");
        let mut transfer = Transfer::new(&host.dma, &segments);
        let mut out = vec![0; 8192];
        for part in out.chunks_mut(1000) {
            transfer.copy_slice_out(part);
        }
        assert_eq!(out, pattern);
        assert!(transfer.take(1).is_none());
    }
}
