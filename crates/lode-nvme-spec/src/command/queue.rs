//! Commands that create and delete I/O queues.

use lode_units::{Iova, QueueId};
use zerocopy::little_endian::U32;

use crate::bits::{bit, field, word_at};
use crate::opcode::AdminOpcode;
use crate::submission::{DataPointer, SubmissionEntry};

/// Create I/O Completion Queue (Base 2.0 §5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateCompletionQueue {
    /// PRP entry 1: where the queue lies.
    pub base: Iova,
    /// Dword 10 bits 15:0, QID.
    pub queue: QueueId,
    /// Dword 10 bits 31:16, QSIZE, plus one: 1 to 65536.
    pub entries: u32,
    /// Dword 11 bit 0, PC.
    pub is_contiguous: bool,
    /// Dword 11 bit 1, IEN.
    pub enables_interrupts: bool,
    /// Dword 11 bits 31:16, IV.
    pub interrupt_vector: u16,
}

impl CreateCompletionQueue {
    /// Encodes the command.
    #[must_use]
    pub fn encode(self) -> SubmissionEntry {
        let mut entry = SubmissionEntry::new(AdminOpcode::CreateCompletionQueue.raw());
        entry.data_pointer = DataPointer::one_page(self.base);
        entry.dword_10 = queue_and_size(self.queue, self.entries);
        entry.dword_11 = U32::new(
            u32::from(self.is_contiguous)
                | u32::from(self.enables_interrupts) << 1
                | u32::from(self.interrupt_vector) << 16,
        );
        entry
    }

    /// Decodes the command.
    #[must_use]
    pub fn decode(entry: &SubmissionEntry) -> Self {
        let dword_11 = u64::from(entry.dword_11.get());
        Self {
            base: Iova::new(entry.data_pointer.prp1.get()),
            queue: queue_of(entry),
            entries: entries_of(entry),
            is_contiguous: bit(dword_11, 0),
            enables_interrupts: bit(dword_11, 1),
            interrupt_vector: word_at(dword_11, 16),
        }
    }
}

/// Create I/O Submission Queue (Base 2.0 §5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateSubmissionQueue {
    /// PRP entry 1: where the queue lies.
    pub base: Iova,
    /// Dword 10 bits 15:0, QID.
    pub queue: QueueId,
    /// Dword 10 bits 31:16, QSIZE, plus one: 1 to 65536.
    pub entries: u32,
    /// Dword 11 bit 0, PC.
    pub is_contiguous: bool,
    /// Dword 11 bits 2:1, QPRIO: only with weighted arbitration.
    pub priority: u8,
    /// Dword 11 bits 31:16, CQID: where completions go.
    pub completion_queue: QueueId,
}

impl CreateSubmissionQueue {
    /// Encodes the command.
    #[must_use]
    pub fn encode(self) -> SubmissionEntry {
        let mut entry = SubmissionEntry::new(AdminOpcode::CreateSubmissionQueue.raw());
        entry.data_pointer = DataPointer::one_page(self.base);
        entry.dword_10 = queue_and_size(self.queue, self.entries);
        entry.dword_11 = U32::new(
            u32::from(self.is_contiguous)
                | u32::from(self.priority & 0x3) << 1
                | u32::from(self.completion_queue.get()) << 16,
        );
        entry
    }

    /// Decodes the command.
    #[must_use]
    pub fn decode(entry: &SubmissionEntry) -> Self {
        let dword_11 = u64::from(entry.dword_11.get());
        Self {
            base: Iova::new(entry.data_pointer.prp1.get()),
            queue: queue_of(entry),
            entries: entries_of(entry),
            is_contiguous: bit(dword_11, 0),
            priority: field(dword_11, 1, 2),
            completion_queue: QueueId::new(word_at(dword_11, 16)),
        }
    }
}

/// Delete I/O Completion Queue (Base 2.0 §5.6) or Delete I/O Submission Queue (§5.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteQueue {
    /// Dword 10 bits 15:0, QID.
    pub queue: QueueId,
}

impl DeleteQueue {
    /// Encodes the deletion of a submission queue.
    #[must_use]
    pub fn encode_submission(self) -> SubmissionEntry {
        self.encode(AdminOpcode::DeleteSubmissionQueue)
    }

    /// Encodes the deletion of a completion queue, whose submission queues must be gone.
    #[must_use]
    pub fn encode_completion(self) -> SubmissionEntry {
        self.encode(AdminOpcode::DeleteCompletionQueue)
    }

    /// Decodes either command.
    #[must_use]
    pub fn decode(entry: &SubmissionEntry) -> Self {
        Self {
            queue: queue_of(entry),
        }
    }

    fn encode(self, opcode: AdminOpcode) -> SubmissionEntry {
        let mut entry = SubmissionEntry::new(opcode.raw());
        entry.dword_10 = U32::new(u32::from(self.queue.get()));
        entry
    }
}

fn queue_and_size(queue: QueueId, entries: u32) -> U32 {
    U32::new(u32::from(queue.get()) | (entries.saturating_sub(1) & 0xFFFF) << 16)
}

fn queue_of(entry: &SubmissionEntry) -> QueueId {
    QueueId::new(word_at(u64::from(entry.dword_10.get()), 0))
}

fn entries_of(entry: &SubmissionEntry) -> u32 {
    u32::from(word_at(u64::from(entry.dword_10.get()), 16)) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_queue_command_comes_back() {
        for entries in [1, 2, 256, 65536] {
            let command = CreateCompletionQueue {
                base: Iova::new(0x1234_5000),
                queue: QueueId::new(9),
                entries,
                is_contiguous: true,
                enables_interrupts: entries > 2,
                interrupt_vector: 17,
            };
            assert_eq!(CreateCompletionQueue::decode(&command.encode()), command);
        }
    }

    #[test]
    fn a_submission_queue_command_comes_back() {
        let command = CreateSubmissionQueue {
            base: Iova::new(0x1234_5000),
            queue: QueueId::new(9),
            entries: 65536,
            is_contiguous: true,
            priority: 2,
            completion_queue: QueueId::new(8),
        };
        let entry = command.encode();
        assert_eq!(CreateSubmissionQueue::decode(&entry), command);
        assert_eq!(entry.dword_10.get(), 0xFFFF_0009);
        assert_eq!(entry.dword_11.get(), 0x0008_0005);
    }

    #[test]
    fn deletions_differ_by_opcode_alone() {
        let delete = DeleteQueue {
            queue: QueueId::new(3),
        };
        assert_eq!(delete.encode_submission().opcode, 0x00);
        assert_eq!(delete.encode_completion().opcode, 0x04);
        assert_eq!(DeleteQueue::decode(&delete.encode_completion()), delete);
    }
}
