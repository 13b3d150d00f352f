//! Physical region pages: how a command names its memory (Base 2.0 §4.1.1).

use lode_bus::{DmaMemory, DmaSpan};
use lode_nvme_spec::{DataPointer, prp};
use lode_units::Iova;
use zerocopy::little_endian::U64;
use zerocopy::{Immutable, IntoBytes};

/// One list for each slot of a queue, preallocated in DMA memory. A list never crosses a page,
/// so that it needs no chaining.
#[derive(Debug)]
pub(crate) struct PrpLists {
    memory: DmaMemory,
    offset: usize,
    stride_bytes: usize,
    page_bytes: u64,
}

impl PrpLists {
    /// Lists in `memory` from `offset` on, for transfers of up to `transfer_max_bytes`.
    pub(crate) fn new(
        memory: DmaMemory,
        offset: usize,
        page_shift: u32,
        transfer_max_bytes: u32,
    ) -> Self {
        let stride_bytes = Self::stride_bytes(page_shift, transfer_max_bytes);
        debug_assert!(offset.is_multiple_of(stride_bytes), "lists are aligned");
        Self {
            memory,
            offset,
            stride_bytes,
            page_bytes: 1 << page_shift,
        }
    }

    /// How far apart the lists of two slots lie: a power of two that divides the page.
    ///
    /// A transfer that begins inside a page touches one page more than its length has; the
    /// first page is named by the command itself.
    pub(crate) fn stride_bytes(page_shift: u32, transfer_max_bytes: u32) -> usize {
        let entries = (transfer_max_bytes >> page_shift).max(1);
        let bytes = entries.saturating_mul(prp::ENTRY_BYTES).next_power_of_two();
        usize::try_from(bytes.max(STRIDE_MIN_BYTES)).expect("a list is shorter than a page")
    }

    /// The entries of a command whose data lie at `span`; writes the list of `slot` when there
    /// are more than two pages. `span` is not longer than the lists were made for and begins at
    /// a multiple of 4.
    #[inline]
    pub(crate) fn describe(&self, slot: usize, span: DmaSpan) -> DataPointer {
        let start = span.iova.get();
        let length = u64::from(span.length_bytes);
        let in_first = self.page_bytes - (start & (self.page_bytes - 1));
        if length <= in_first {
            return DataPointer::new(start, 0);
        }
        let second = start + in_first;
        let rest = length - in_first;
        if rest <= self.page_bytes {
            return DataPointer::new(start, second);
        }
        let list = self.write_list(slot, second, rest);
        DataPointer::new(start, list.get())
    }

    /// Where the list of `slot` lies, in the memory and for the device. A command that has no
    /// list may keep something else there.
    fn place(&self, slot: usize) -> (usize, Iova) {
        let offset = self.offset + slot * self.stride_bytes;
        (offset, Iova::new(self.memory.iova().get() + offset as u64))
    }

    /// Writes `value` into the small piece of memory of `slot`; returns where it lies.
    #[inline]
    pub(crate) fn write_scratch<T: IntoBytes + Immutable>(&self, slot: usize, value: &T) -> Iova {
        let (offset, iova) = self.place(slot);
        self.memory.write(offset, value);
        iova
    }

    /// Names the pages of `rest` bytes from the page boundary `page` on. Kept out of the way of
    /// the short transfers.
    #[inline(never)]
    fn write_list(&self, slot: usize, page: u64, rest: u64) -> Iova {
        let (mut offset, iova) = self.place(slot);
        let end = offset + self.stride_bytes;
        let mut chunk = [U64::ZERO; CHUNK];
        let mut next = page;
        let last = page + rest;
        while next < last {
            let mut filled = 0;
            for entry in &mut chunk {
                if next >= last {
                    break;
                }
                entry.set(next);
                next += self.page_bytes;
                filled += 1;
            }
            let bytes = chunk[..filled].as_bytes();
            assert!(offset + bytes.len() <= end, "a transfer fits its list");
            self.memory.copy_from_slice(offset, bytes);
            offset += bytes.len();
        }
        iova
    }
}

/// Room for one range of Dataset Management, and no two slots in one cache line.
const STRIDE_MIN_BYTES: u32 = 64;
/// Entries gathered on the stack before they are copied out: a cache line's worth, four times.
const CHUNK: usize = 32;

#[cfg(test)]
mod tests {
    use lode_bus::{IovaSpace, PagePreference};
    use proptest::prelude::*;

    use super::*;

    const TRANSFER_MAX: u32 = 1 << 20;

    fn lists(page_shift: u32, slots: usize) -> PrpLists {
        let stride = PrpLists::stride_bytes(page_shift, TRANSFER_MAX);
        let memory = IovaSpace::new()
            .allocate(stride * slots, PagePreference::Ordinary)
            .expect("memory");
        PrpLists::new(memory, 0, page_shift, TRANSFER_MAX)
    }

    /// Reads entries the way a controller does and returns the address of every byte run.
    fn walk(lists: &PrpLists, pointer: DataPointer, length: u64) -> Vec<(u64, u64)> {
        let page = lists.page_bytes;
        let first = pointer.prp1.get();
        let mut runs = vec![(first, (page - first % page).min(length))];
        let mut left = length - runs[0].1;
        if left == 0 {
            assert_eq!(pointer.prp2.get(), 0, "an unused entry is zero");
        } else if left <= page {
            runs.push((pointer.prp2.get(), left));
        } else {
            let list = pointer.prp2.get();
            let mut offset = usize::try_from(list - lists.memory.iova().get()).expect("small");
            assert_eq!(
                list / page,
                (list + (left - 1) / page * 8) / page,
                "one page"
            );
            while left > 0 {
                let entry = lists.memory.read::<U64>(offset).get();
                runs.push((entry, left.min(page)));
                left -= left.min(page);
                offset += 8;
            }
        }
        runs
    }

    fn check(page_shift: u32, offset: u64, length: u32) {
        let lists = lists(page_shift, 3);
        let start = (1 << 30) + offset;
        let span = DmaSpan {
            iova: Iova::new(start),
            length_bytes: length,
        };
        let mut at = start;
        for (index, (address, bytes)) in walk(&lists, lists.describe(1, span), u64::from(length))
            .into_iter()
            .enumerate()
        {
            assert_eq!(address, at, "run {index}");
            assert!(index == 0 || address.is_multiple_of(lists.page_bytes));
            at += bytes;
        }
        assert_eq!(at, start + u64::from(length));
    }

    proptest! {
        #[test]
        fn entries_name_exactly_the_bytes_of_the_span(
            page_shift in 12_u32..=16,
            offset_words in 0_u64..1 << 14,
            length_blocks in 1_u32..=2048,
        ) {
            let page = 1_u64 << page_shift;
            check(page_shift, offset_words * 4 % page, length_blocks * 512);
        }
    }

    #[test]
    fn the_edges_between_one_two_and_many_pages_are_exact() {
        for offset in [0, 4, 512, 4092] {
            for length in [512, 4096, 4608, 8192, 8704, 12288, TRANSFER_MAX] {
                check(12, offset, length);
            }
        }
    }

    #[test]
    fn the_lists_of_two_slots_do_not_overlap() {
        let lists = lists(12, 3);
        let span = |base: u64| DmaSpan {
            iova: Iova::new(base + 4),
            length_bytes: TRANSFER_MAX,
        };
        let first = lists.describe(0, span(1 << 30));
        let before = walk(&lists, first, u64::from(TRANSFER_MAX));
        lists.describe(1, span(1 << 31));
        assert_eq!(walk(&lists, first, u64::from(TRANSFER_MAX)), before);
    }
}
