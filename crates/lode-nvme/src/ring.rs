//! The two rings of a queue pair as the host sees them (Base 2.0 §3.3.1).

use std::sync::atomic::Ordering;

use lode_bus::DmaMemory;
use lode_nvme_spec::{CommandEnd, CompletionEntry, SubmissionEntry};
use lode_units::Iova;

/// A submission queue: the host writes at the tail.
#[derive(Debug)]
pub(crate) struct SubmissionRing {
    memory: DmaMemory,
    offset: usize,
    entries: u32,
    tail: u32,
}

impl SubmissionRing {
    pub(crate) fn new(memory: DmaMemory, offset: usize, entries: u16) -> Self {
        Self {
            memory,
            offset,
            entries: u32::from(entries),
            tail: 0,
        }
    }

    /// The length of a ring of `entries` entries in memory.
    pub(crate) const fn length_bytes(entries: u16) -> usize {
        entries as usize * ENTRY_BYTES
    }

    pub(crate) fn base(&self) -> Iova {
        Iova::new(self.memory.iova().get() + self.offset as u64)
    }

    /// Writes `entry` at the tail. The caller has made sure that the ring is not full: it never
    /// has more commands in flight than the ring has entries, less one.
    #[inline]
    pub(crate) fn push(&mut self, entry: &SubmissionEntry) {
        let at = self.offset + self.tail as usize * ENTRY_BYTES;
        self.memory.write(at, entry);
        self.tail += 1;
        if self.tail == self.entries {
            self.tail = 0;
        }
    }

    /// Where the next entry goes: the doorbell's value.
    #[inline]
    pub(crate) const fn tail(&self) -> u32 {
        self.tail
    }

    /// Back to the state of a queue that was just created.
    pub(crate) const fn restart(&mut self) {
        self.tail = 0;
    }
}

/// A completion queue: the host reads at the head.
#[derive(Debug)]
pub(crate) struct CompletionRing {
    memory: DmaMemory,
    offset: usize,
    entries: u32,
    head: u32,
    /// The phase tag of an entry that is new in this pass (§3.3.3.2.2).
    phase: bool,
}

impl CompletionRing {
    pub(crate) fn new(memory: DmaMemory, offset: usize, entries: u16) -> Self {
        Self {
            memory,
            offset,
            entries: u32::from(entries),
            head: 0,
            phase: true,
        }
    }

    /// The length of a ring of `entries` entries in memory.
    pub(crate) const fn length_bytes(entries: u16) -> usize {
        entries as usize * size_of::<CompletionEntry>()
    }

    pub(crate) fn base(&self) -> Iova {
        Iova::new(self.memory.iova().get() + self.offset as u64)
    }

    /// Takes the entry at the head when the controller has posted one.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<CompletionEntry> {
        let at = self.place();
        self.pop_end().map(|_end| self.memory.read(at))
    }

    /// [`CompletionRing::pop`] for commands whose result is their status: the one dword is read
    /// that tells everything.
    #[inline]
    pub(crate) fn pop_end(&mut self) -> Option<CommandEnd> {
        // Acquire pairs with the controller's ordered write of the dword that holds the phase
        // tag: the other dwords of the entry, and the data it speaks of, are visible after it.
        let dword_3 = self.memory.load_u32(
            self.place() + CompletionEntry::DWORD_3_OFFSET,
            Ordering::Acquire,
        );
        let end = CommandEnd::from_dword_3(dword_3);
        if end.phase != self.phase {
            return None;
        }
        self.head += 1;
        if self.head == self.entries {
            self.head = 0;
            self.phase = !self.phase;
        }
        Some(end)
    }

    #[inline]
    const fn place(&self) -> usize {
        self.offset + self.head as usize * size_of::<CompletionEntry>()
    }

    /// Up to where entries were taken: the doorbell's value.
    #[inline]
    pub(crate) const fn head(&self) -> u32 {
        self.head
    }

    /// Back to the state of a queue that is about to be created: no entry, first pass.
    pub(crate) fn restart(&mut self) {
        self.head = 0;
        self.phase = true;
        let length = self.entries as usize * size_of::<CompletionEntry>();
        self.memory.fill_zero(self.offset, length);
    }
}

const ENTRY_BYTES: usize = size_of::<SubmissionEntry>();

#[cfg(test)]
mod tests {
    use lode_bus::{IovaSpace, PagePreference};
    use lode_nvme_spec::Status;
    use lode_units::{CommandId, QueueId};

    use super::*;

    fn memory() -> DmaMemory {
        IovaSpace::new()
            .allocate(4096, PagePreference::Ordinary)
            .expect("memory")
    }

    fn post(memory: &DmaMemory, index: usize, id: u16, phase: bool) {
        let entry =
            CompletionEntry::new(QueueId::new(1), CommandId::new(id), 0, Status::SUCCESS, 0);
        memory.write(index * 16, &entry.with_phase(phase));
    }

    #[test]
    fn an_entry_is_taken_once_and_only_when_its_phase_is_new() {
        let memory = memory();
        let mut ring = CompletionRing::new(memory.clone(), 0, 3);
        let mut expected = 0;
        for pass in 0..4 {
            for index in 0..3 {
                assert!(ring.pop().is_none(), "pass {pass} index {index}");
                post(&memory, index, expected, pass % 2 == 0);
                let entry = ring.pop().expect("the entry just posted");
                assert_eq!(entry.command_id(), CommandId::new(expected));
                expected += 1;
            }
        }
    }

    #[test]
    fn a_restarted_ring_sees_nothing_of_its_past() {
        let memory = memory();
        let mut ring = CompletionRing::new(memory.clone(), 0, 3);
        post(&memory, 0, 1, true);
        post(&memory, 1, 2, true);
        assert!(ring.pop().is_some());
        ring.restart();
        assert!(ring.pop().is_none());
        assert_eq!(ring.head(), 0);
    }

    #[test]
    fn the_tail_wraps_at_the_last_entry() {
        let memory = memory();
        let mut ring = SubmissionRing::new(memory.clone(), 64, 2);
        ring.push(&SubmissionEntry::new(7));
        assert_eq!(ring.tail(), 1);
        ring.push(&SubmissionEntry::new(8));
        assert_eq!(ring.tail(), 0);
        assert_eq!(memory.read::<SubmissionEntry>(64).opcode, 7);
        assert_eq!(memory.read::<SubmissionEntry>(128).opcode, 8);
    }
}
