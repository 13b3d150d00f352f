//! Which memory of this process the server has been given.

use std::collections::BTreeMap;

use lode_bus::DmaMemory;

/// The memories by address. One that is mapped twice is given once and counted.
///
/// No two entries overlap: addresses come from one [`lode_bus::IovaSpace`], and others are
/// refused by [`DmaTable::admit`].
#[derive(Debug, Default)]
pub(super) struct DmaTable {
    entries: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    /// Keeps the memory allocated while the server can see it.
    memory: DmaMemory,
    uses: u32,
}

/// What is to be done for a memory that is mapped or hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The server must be told.
    Tell,
    /// Nothing.
    Nothing,
    /// Another memory is there.
    Taken,
}

impl DmaTable {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Counts one more use of a memory that the server has.
    pub(super) fn admit(&mut self, memory: &DmaMemory) -> Step {
        let (start, end) = extent(memory);
        if let Some(entry) = self.entries.get_mut(&start)
            && is_same(&entry.memory, memory)
        {
            entry.uses = entry.uses.saturating_add(1);
            return Step::Nothing;
        }
        let before = self.entries.range(..end).next_back();
        match before {
            Some((_, entry)) if extent(&entry.memory).1 > start => Step::Taken,
            _ => Step::Tell,
        }
    }

    /// The server has `memory` now.
    pub(super) fn insert(&mut self, memory: &DmaMemory) {
        let entry = Entry {
            memory: memory.clone(),
            uses: 1,
        };
        self.entries.insert(extent(memory).0, entry);
        debug_assert!(self.check(), "entries are apart");
    }

    /// Counts one use less.
    pub(super) fn release(&mut self, memory: &DmaMemory) -> Step {
        match self.entries.get_mut(&extent(memory).0) {
            Some(entry) if is_same(&entry.memory, memory) => {
                if entry.uses > 1 {
                    entry.uses -= 1;
                    return Step::Nothing;
                }
                Step::Tell
            }
            _ => Step::Nothing,
        }
    }

    /// The server has let go of `memory`.
    pub(super) fn remove(&mut self, memory: &DmaMemory) {
        self.entries.remove(&extent(memory).0);
    }

    /// Copies from `address` on; false when not all of it lies in one memory that was given.
    pub(super) fn read(&self, address: u64, target: &mut [u8]) -> bool {
        let place = self.find(address, target.len());
        if let Some((memory, offset)) = place {
            memory.copy_to_slice(offset, target);
        }
        place.is_some()
    }

    /// Copies to `address` on; false as in [`DmaTable::read`].
    pub(super) fn write(&self, address: u64, source: &[u8]) -> bool {
        let place = self.find(address, source.len());
        if let Some((memory, offset)) = place {
            memory.copy_from_slice(offset, source);
        }
        place.is_some()
    }

    fn find(&self, address: u64, length: usize) -> Option<(&DmaMemory, usize)> {
        let (start, entry) = self.entries.range(..=address).next_back()?;
        let offset = usize::try_from(address - start).ok()?;
        let end = offset.checked_add(length)?;
        (end <= entry.memory.length_bytes()).then_some((&entry.memory, offset))
    }

    /// Whether no two entries overlap and each is in use.
    fn check(&self) -> bool {
        let mut border = 0;
        self.entries.iter().all(|(key, entry)| {
            let (start, end) = extent(&entry.memory);
            let is_apart = *key == start && start >= border && entry.uses > 0;
            border = end;
            is_apart
        })
    }
}

fn extent(memory: &DmaMemory) -> (u64, u64) {
    let start = memory.iova().get();
    (start, start.saturating_add(memory.length_bytes() as u64))
}

fn is_same(one: &DmaMemory, other: &DmaMemory) -> bool {
    one.host_address() == other.host_address()
}

#[cfg(test)]
mod tests {
    use lode_bus::{IovaSpace, PagePreference};

    use super::*;

    fn memory(space: &IovaSpace) -> DmaMemory {
        space
            .allocate(8192, PagePreference::Ordinary)
            .expect("pages")
    }

    #[test]
    fn the_server_is_told_at_the_first_use_and_after_the_last() {
        let memory = memory(&IovaSpace::new());
        let mut table = DmaTable::default();
        assert_eq!(table.admit(&memory), Step::Tell);
        table.insert(&memory);
        assert_eq!(table.admit(&memory), Step::Nothing);
        assert_eq!(table.release(&memory), Step::Nothing);
        assert_eq!(table.release(&memory), Step::Tell);
        table.remove(&memory);
        assert_eq!(table.release(&memory), Step::Nothing);
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn another_memory_at_a_taken_address_is_not_admitted() {
        let mut table = DmaTable::default();
        table.insert(&memory(&IovaSpace::new()));
        let other = memory(&IovaSpace::new());
        assert_eq!(table.admit(&other), Step::Taken);
        assert_eq!(table.release(&other), Step::Nothing);
    }

    #[test]
    fn the_server_reaches_what_it_was_given_and_nothing_around_it() {
        let memory = memory(&IovaSpace::new());
        let start = memory.iova().get();
        let mut table = DmaTable::default();
        table.insert(&memory);
        assert!(table.write(start + 8190, b"ab"));
        let mut target = [0; 3];
        assert!(table.read(start + 8189, &mut target));
        assert_eq!(&target, b"\0ab");
        assert!(!table.read(start + 8190, &mut target));
        assert!(!table.write(start - 1, b"a"));
        assert!(!table.read(u64::MAX, &mut target));
        assert!(!table.write(start + 8192, b"a"));
    }
}
