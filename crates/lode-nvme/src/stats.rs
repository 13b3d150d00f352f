//! Counters, plain numbers with one writer each.

use lode_block::{ErrorKind, Operation};

/// What a queue has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Requests accepted.
    pub submitted: u64,
    /// Requests ended, well or not, by operation: see [`operation_index`].
    pub completed: [u64; OPERATION_COUNT],
    /// Requests ended with an error, by kind: see [`error_index`].
    pub errors: [u64; ERROR_KIND_COUNT],
    /// Requests that the media failed, by operation: see [`operation_index`].
    pub media_errors: [u64; OPERATION_COUNT],
    /// Writes with Force Unit Access.
    pub fua_writes: u64,
    /// Submission doorbell registers written.
    pub submission_doorbells: u64,
    /// Completion doorbell registers written.
    pub completion_doorbells: u64,
    /// Calls of poll that found at least one completion.
    pub productive_polls: u64,
    /// Commands that passed their deadline.
    pub timeouts: u64,
    /// Aborts asked for.
    pub aborts_requested: u64,
    /// Resets asked for because an aborted command did not end.
    pub resets_requested: u64,
    /// Completions that named no command in flight: late, twice, or never sent.
    pub stale_completions: u64,
    /// Requests ended because the controller was reset or failed.
    pub recovered: u64,
}

impl QueueStats {
    /// Requests ended, all operations together.
    #[must_use]
    pub fn completed_total(&self) -> u64 {
        self.completed.iter().sum()
    }
}

/// What a controller has gone through since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerStats {
    /// Admin commands sent.
    pub admin_commands: u64,
    /// Admin commands that failed.
    pub admin_errors: u64,
    /// Admin commands without an answer.
    pub admin_timeouts: u64,
    /// Admin completions that named no command in flight.
    pub stale_completions: u64,
    /// Abort commands sent.
    pub aborts_sent: u64,
    /// Abort commands after which the controller said that it aborted nothing.
    pub aborts_refused: u64,
    /// Controller resets begun, after the first bring-up.
    pub resets: u64,
    /// Controller resets that led back to a working controller.
    pub resets_completed: u64,
    /// Resets of the whole function.
    pub function_resets: u64,
    /// Asynchronous events: errors.
    pub error_events: u64,
    /// Asynchronous events: health.
    pub health_events: u64,
    /// Asynchronous events: notices.
    pub notice_events: u64,
    /// Asynchronous events of other types.
    pub other_events: u64,
    /// Events that the caller did not take in time.
    pub events_dropped: u64,
    /// Register reads that returned all ones.
    pub all_ones_reads: u64,
    /// Memories that could not be hidden from a failed device.
    pub unmap_failures: u64,
}

/// How many operations there are.
pub const OPERATION_COUNT: usize = 7;
/// How many kinds of errors there are.
pub const ERROR_KIND_COUNT: usize = 11;

/// The position of `operation` in [`QueueStats::completed`].
#[must_use]
pub const fn operation_index(operation: Operation) -> usize {
    match operation {
        Operation::Read => 0,
        Operation::Write => 1,
        Operation::WriteThrough => 2,
        Operation::Compare => 3,
        Operation::WriteZeroes => 4,
        Operation::Deallocate => 5,
        Operation::Flush => 6,
    }
}

/// The position of `kind` in [`QueueStats::errors`]; kinds of later versions share the last.
#[must_use]
pub const fn error_index(kind: ErrorKind) -> usize {
    match kind {
        ErrorKind::Media => 0,
        ErrorKind::CompareMismatch => 1,
        ErrorKind::NoSpace => 2,
        ErrorKind::Retry => 3,
        ErrorKind::TimedOut => 4,
        ErrorKind::Gone => 5,
        ErrorKind::ReadOnly => 6,
        ErrorKind::Invalid => 7,
        ErrorKind::Unsupported => 8,
        ErrorKind::Internal => 9,
        _ => ERROR_KIND_COUNT - 1,
    }
}
