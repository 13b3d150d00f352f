//! The completion queue entry.

use std::mem::offset_of;

use lode_units::{CommandId, QueueId};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::status::Status;

/// A completion as it lies in a completion queue (Base 2.0 §3.3.3.2, figure 89).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CompletionEntry {
    /// Bytes 3:0: what the command says of its result.
    pub dword_0: U32,
    /// Bytes 7:4: more of it; reserved for most commands.
    pub dword_1: U32,
    /// Bytes 9:8: how far the controller has read the submission queue.
    pub submission_head: U16,
    /// Bytes 11:10: the submission queue of the command.
    pub submission_queue_id: U16,
    /// Bytes 13:12: the command identifier.
    pub command_id: U16,
    /// Bytes 15:14: bit 0 phase tag, bits 15:1 status.
    pub status_and_phase: U16,
}

impl CompletionEntry {
    /// Where the word with the phase tag lies, in bytes.
    pub const STATUS_OFFSET: usize = 14;

    /// The completion of `command_id`, without its phase tag.
    #[must_use]
    pub const fn new(
        queue: QueueId,
        command_id: CommandId,
        submission_head: u16,
        status: Status,
        dword_0: u32,
    ) -> Self {
        Self {
            dword_0: U32::new(dword_0),
            dword_1: U32::ZERO,
            submission_head: U16::new(submission_head),
            submission_queue_id: U16::new(queue.get()),
            command_id: U16::new(command_id.get()),
            status_and_phase: U16::new(status.raw() << 1),
        }
    }

    /// The same completion with its phase tag set to `phase`.
    #[must_use]
    pub const fn with_phase(mut self, phase: bool) -> Self {
        let status = self.status_and_phase.get() & !1;
        self.status_and_phase = U16::new(status | phase as u16);
        self
    }

    /// The phase tag.
    #[must_use]
    pub const fn phase(&self) -> bool {
        self.status_and_phase.get() & 1 == 1
    }

    /// How the command ended.
    #[must_use]
    pub const fn status(&self) -> Status {
        Status::from_raw(self.status_and_phase.get() >> 1)
    }

    /// The command that ended.
    #[must_use]
    pub const fn command_id(&self) -> CommandId {
        CommandId::new(self.command_id.get())
    }

    /// The submission queue on which it was given.
    #[must_use]
    pub const fn submission_queue(&self) -> QueueId {
        QueueId::new(self.submission_queue_id.get())
    }
}

const _: () = assert!(size_of::<CompletionEntry>() == 16);
const _: () = assert!(offset_of!(CompletionEntry, submission_head) == 8);
const _: () = assert!(offset_of!(CompletionEntry, submission_queue_id) == 10);
const _: () = assert!(offset_of!(CompletionEntry, command_id) == 12);
const _: () =
    assert!(offset_of!(CompletionEntry, status_and_phase) == CompletionEntry::STATUS_OFFSET);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{MediaStatus, StatusCode};

    #[test]
    fn the_phase_tag_and_the_status_share_a_word_without_touching() {
        let status = Status::new(StatusCode::Media(MediaStatus::UnrecoveredRead)).with_no_retry();
        let entry = CompletionEntry::new(QueueId::new(3), CommandId::new(9), 5, status, 0);
        for phase in [false, true] {
            let phased = entry.with_phase(phase);
            assert_eq!(phased.phase(), phase);
            assert_eq!(phased.status(), status);
        }
        assert_eq!(entry.with_phase(true).as_bytes()[14..], [0x03, 0x85]);
        assert_eq!(entry.submission_queue(), QueueId::new(3));
    }
}
