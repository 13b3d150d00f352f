//! The address translation between the host and this controller: what an IOMMU does for a real
//! one.
//!
//! Invariants:
//! 1. Entries are sorted by address and do not overlap.
//! 2. An access outside of every entry moves no byte and is counted.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lode_bus::{BusError, DmaMemory};
use zerocopy::{FromBytes, IntoBytes};

/// An access to an address that is not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DmaFault;

/// The position of the entry that was hit last; each queue keeps its own.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hint(usize);

/// A run of bytes inside one mapped memory. Valid while the table is not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The position of the memory in the table.
    pub(crate) entry: usize,
    /// Where in the memory the run begins.
    pub(crate) offset: usize,
    /// How long it is, in bytes.
    pub(crate) length: usize,
}

#[derive(Clone, Debug)]
struct Entry {
    start: u64,
    end: u64,
    memory: DmaMemory,
}

/// Every memory that the host has made visible.
#[derive(Clone, Debug, Default)]
pub(crate) struct DmaTable {
    entries: Vec<Entry>,
    /// Counted by all copies together.
    faults: Arc<AtomicU64>,
}

impl DmaTable {
    /// Makes `memory` visible.
    ///
    /// Fails when its addresses overlap what is visible already, or at the bound of the table.
    pub(crate) fn map(&mut self, memory: &DmaMemory) -> Result<(), BusError> {
        let refused = |kind: io::ErrorKind| BusError::Map {
            iova: memory.iova(),
            length_bytes: memory.length_bytes(),
            source: kind.into(),
        };
        let start = memory.iova().get();
        let length = u64::try_from(memory.length_bytes()).unwrap_or(u64::MAX);
        let end = start
            .checked_add(length)
            .ok_or_else(|| refused(io::ErrorKind::InvalidInput))?;
        if self.entries.len() >= ENTRIES_MAX {
            return Err(refused(io::ErrorKind::QuotaExceeded));
        }
        let position = self.entries.partition_point(|entry| entry.end <= start);
        let overlaps = self
            .entries
            .get(position)
            .is_some_and(|next| next.start < end);
        if overlaps {
            return Err(refused(io::ErrorKind::AlreadyExists));
        }
        let memory = memory.clone();
        self.entries.insert(position, Entry { start, end, memory });
        Ok(())
    }

    /// Hides `memory`; nothing happens when it was not visible.
    pub(crate) fn unmap(&mut self, memory: &DmaMemory) {
        let start = memory.iova().get();
        self.entries.retain(|entry| entry.start != start);
    }

    /// Hides everything.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// How many accesses were blocked.
    pub(crate) fn fault_count(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// The memory of a segment's entry.
    pub(crate) fn memory(&self, entry: usize) -> &DmaMemory {
        &self.entries[entry].memory
    }

    /// Copies a value in from `iova`.
    pub(crate) fn read<T: FromBytes + IntoBytes>(
        &self,
        iova: u64,
        hint: &mut Hint,
    ) -> Result<T, DmaFault> {
        let segment = self.whole(iova, size_of::<T>(), hint)?;
        Ok(self.memory(segment.entry).read(segment.offset))
    }

    /// The run of exactly `length` bytes at `iova`, which must lie inside one memory.
    pub(crate) fn whole(
        &self,
        iova: u64,
        length: usize,
        hint: &mut Hint,
    ) -> Result<Segment, DmaFault> {
        let segment = self.run(iova, length, hint)?;
        if segment.length == length {
            Ok(segment)
        } else {
            Err(self.fault())
        }
    }

    /// The longest run at `iova` of at most `length` bytes inside one memory.
    pub(crate) fn run(
        &self,
        iova: u64,
        length: usize,
        hint: &mut Hint,
    ) -> Result<Segment, DmaFault> {
        let hit = |entry: &&Entry| entry.start <= iova && iova < entry.end;
        let (position, entry) = match self.entries.get(hint.0).filter(hit) {
            Some(entry) => (hint.0, entry),
            None => {
                let position = self.entries.partition_point(|entry| entry.end <= iova);
                match self.entries.get(position).filter(hit) {
                    Some(entry) => (position, entry),
                    None => return Err(self.fault()),
                }
            }
        };
        hint.0 = position;
        let distance = |from: u64, to: u64| {
            usize::try_from(to - from).expect("both addresses lie in one memory of this process")
        };
        Ok(Segment {
            entry: position,
            offset: distance(entry.start, iova),
            length: length.min(distance(iova, entry.end)),
        })
    }

    /// Counts a blocked access.
    fn fault(&self) -> DmaFault {
        self.faults.fetch_add(1, Ordering::Relaxed);
        DmaFault
    }

    /// Invariant 1.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        for pair in self.entries.windows(2) {
            assert!(pair[0].end <= pair[1].start, "entries are sorted and apart");
        }
    }
}

/// The most memories that can be visible at once, as in a VFIO container.
const ENTRIES_MAX: usize = 65_535;

#[cfg(test)]
mod tests {
    use lode_bus::{IovaSpace, PagePreference};

    use super::*;

    fn memories(count: usize) -> Vec<DmaMemory> {
        let space = IovaSpace::new();
        (0..count)
            .map(|_| {
                space
                    .allocate(8192, PagePreference::Ordinary)
                    .expect("pages")
            })
            .collect()
    }

    #[test]
    fn a_mapped_address_is_found_in_its_memory_whatever_the_hint() {
        let memories = memories(5);
        let mut table = DmaTable::default();
        for index in [3, 0, 4, 1, 2] {
            table.map(&memories[index]).expect("room");
            table.check();
        }
        let mut hint = Hint(99);
        for (index, memory) in memories.iter().enumerate() {
            let segment = table
                .run(memory.iova().get() + 100, 16, &mut hint)
                .expect("mapped");
            assert_eq!(
                (segment.entry, segment.offset, segment.length),
                (index, 100, 16)
            );
        }
        assert_eq!(table.fault_count(), 0);
    }

    #[test]
    fn an_unmapped_address_is_blocked_and_counted() {
        let memories = memories(2);
        let mut table = DmaTable::default();
        table.map(&memories[0]).expect("room");
        table.map(&memories[1]).expect("room");
        table.unmap(&memories[0]);
        let mut hint = Hint::default();
        let outcome = table.read::<u64>(memories[0].iova().get(), &mut hint);
        assert_eq!(outcome, Err(DmaFault));
        let past_the_end = memories[1].iova().get() + 8190;
        assert_eq!(table.whole(past_the_end, 8, &mut hint), Err(DmaFault));
        assert_eq!(table.fault_count(), 2);
    }

    #[test]
    fn a_memory_is_mapped_once() {
        let memories = memories(1);
        let mut table = DmaTable::default();
        table.map(&memories[0]).expect("room");
        assert!(matches!(table.map(&memories[0]), Err(BusError::Map { .. })));
        table.unmap(&memories[0]);
        table.map(&memories[0]).expect("free again");
    }
}
