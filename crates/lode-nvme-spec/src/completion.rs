//! The completion queue entry.

use std::mem::offset_of;

use lode_units::{CommandId, QueueId};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::status::Status;

/// What dword 3 of a completion says: all that there is to know of a command whose result is
/// its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandEnd {
    /// The command that ended.
    pub command_id: CommandId,
    /// How it ended.
    pub status: Status,
    /// The phase tag.
    pub phase: bool,
}

impl CommandEnd {
    /// Decodes dword 3.
    #[must_use]
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the dword is taken apart into its two words"
    )]
    pub const fn from_dword_3(dword: u32) -> Self {
        let status_and_phase = (dword >> 16) as u16;
        Self {
            command_id: CommandId::new(dword as u16),
            status: Status::from_raw(status_and_phase >> 1),
            phase: status_and_phase & 1 == 1,
        }
    }
}

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
    /// Where dword 3 lies, in bytes: command identifier, phase tag and status.
    pub const DWORD_3_OFFSET: usize = 12;

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

    /// Dword 3: command identifier, phase tag and status. Whoever posts a completion makes this
    /// one visible last, in one piece.
    #[must_use]
    pub const fn dword_3(&self) -> u32 {
        self.command_id.get() as u32 | (self.status_and_phase.get() as u32) << 16
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
const _: () = assert!(offset_of!(CompletionEntry, command_id) == CompletionEntry::DWORD_3_OFFSET);
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

    #[test]
    fn dword_3_says_what_the_whole_entry_says() {
        let status = Status::new(StatusCode::Media(MediaStatus::UnrecoveredRead)).with_no_retry();
        for phase in [false, true] {
            let entry = CompletionEntry::new(QueueId::new(3), CommandId::new(0xF009), 5, status, 0)
                .with_phase(phase);
            let end = CommandEnd::from_dword_3(entry.dword_3());
            assert_eq!(end.command_id, entry.command_id());
            assert_eq!((end.status, end.phase), (entry.status(), phase));
            let bytes = entry.as_bytes();
            let tail = &bytes[CompletionEntry::DWORD_3_OFFSET..];
            assert_eq!(tail, entry.dword_3().to_le_bytes());
        }
    }
}
