//! The controller's end of a completion queue.

use std::sync::atomic::Ordering;

use lode_nvme_spec::CompletionEntry;

use crate::dma::{DmaFault, DmaTable, Hint};

/// A completion queue: where the next entry goes, and its phase.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    base: u64,
    entries: u32,
    tail: u32,
    phase: bool,
    /// The vector to fire, when interrupts are enabled for this queue.
    vector: Option<u16>,
    hint: Hint,
}

impl CompletionQueue {
    /// An empty queue of `entries` at the address `base`.
    pub(crate) fn new(base: u64, entries: u32, vector: Option<u16>) -> Self {
        Self {
            base,
            entries,
            tail: 0,
            phase: true,
            vector,
            hint: Hint::default(),
        }
    }

    pub(crate) const fn entries(&self) -> u32 {
        self.entries
    }

    pub(crate) const fn vector(&self) -> Option<u16> {
        self.vector
    }

    /// How many completions fit while the host has read up to `head`.
    pub(crate) const fn room(&self, head: u32) -> u32 {
        let held = if self.tail >= head {
            self.tail - head
        } else {
            self.tail + self.entries - head
        };
        self.entries - 1 - held
    }

    /// Posts a completion; the caller has made sure that there is room.
    pub(crate) fn post(
        &mut self,
        dma: &DmaTable,
        completion: CompletionEntry,
    ) -> Result<(), DmaFault> {
        let entry = completion.with_phase(self.phase);
        // A base near the end of the address space wraps into a fault, not into a panic.
        let at = self
            .base
            .wrapping_add(u64::from(self.tail) * ENTRY_BYTES as u64);
        let segment = dma.whole(at, ENTRY_BYTES, &mut self.hint)?;
        let memory = dma.memory(segment.entry);
        memory.write(segment.offset, &entry.dword_0);
        memory.write(segment.offset + 4, &entry.dword_1);
        memory.write(segment.offset + 8, &entry.submission_head);
        memory.write(segment.offset + 10, &entry.submission_queue_id);
        // Pairs with the host's acquiring load of this dword: data and entry are visible first.
        memory.store_u32(
            segment.offset + CompletionEntry::DWORD_3_OFFSET,
            entry.dword_3(),
            Ordering::Release,
        );
        self.tail += 1;
        if self.tail == self.entries {
            self.tail = 0;
            self.phase = !self.phase;
        }
        Ok(())
    }
}

const ENTRY_BYTES: usize = size_of::<CompletionEntry>();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_holds_one_entry_fewer_than_its_size() {
        let mut queue = CompletionQueue::new(0, 4, None);
        assert_eq!(queue.room(0), 3);
        queue.tail = 3;
        assert_eq!(queue.room(0), 0);
        assert_eq!(queue.room(2), 2);
        queue.tail = 1;
        assert_eq!(queue.room(2), 0);
        assert_eq!(queue.room(1), 3);
    }
}
