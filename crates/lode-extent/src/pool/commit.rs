//! Group commit: one transaction at a time, its data before it, itself on the medium after.
//!
//! ```text
//! Idle ──► FlushData ──► Write ──► FlushJournal ──► Idle
//! ```
//! With the next transaction begun only when this one is durable, a valid journal block proves
//! that every earlier transaction was durable.

use crate::core::Core;
use crate::error::IoFailure;
use crate::format::block::Block;
use crate::io::METADATA_IO_BLOCKS_MAX;
use crate::io_queue::{InFlight, Purpose};
use crate::journal::CommitStep;
use crate::pool::Pool;
use crate::volume::PoolState;

impl Pool {
    /// Starts the next commit where one is wanted and none runs.
    pub(super) fn drive_commit(&mut self) {
        let Some(core) = self.core.as_mut() else {
            return;
        };
        if core.journal.step == CommitStep::Idle && core.journal.front(&core.geometry).is_some() {
            core.journal.step = CommitStep::FlushData;
            self.flush_data();
            self.advance_commit();
        }
    }

    pub(super) fn commit_done(&mut self, io: InFlight, outcome: Result<(), IoFailure>) {
        if let Err(failure) = outcome {
            self.fail_io(io, failure);
            return;
        }
        if self.is_failed() {
            return;
        }
        self.core_mut().journal.outstanding -= 1;
        self.advance_commit();
    }

    fn advance_commit(&mut self) {
        while self.core_mut().journal.outstanding == 0 {
            let journal = &mut self.core_mut().journal;
            match journal.step {
                CommitStep::Idle => return,
                CommitStep::FlushData => {
                    journal.step = CommitStep::Write;
                    self.write_transaction();
                }
                CommitStep::Write => {
                    journal.step = CommitStep::FlushJournal;
                    self.flush_journal();
                }
                CommitStep::FlushJournal => {
                    journal.step = CommitStep::Idle;
                    self.settle_commit();
                    return;
                }
            }
        }
    }

    /// The data that the transaction makes reachable goes to the medium first: forcing the
    /// journal's own write there does nothing for it.
    fn flush_data(&mut self) {
        let is_skipped = self.is_data_flush_skipped();
        let core = self.core.as_mut().expect("a commit runs");
        let batch = core.journal.front(&core.geometry).expect("a commit runs");
        let wanted = std::mem::take(&mut batch.flush_first);
        for (index, &position) in self.caller_position.iter().enumerate() {
            let is_wanted = wanted & (1 << index) != 0;
            if is_wanted && self.devices[position].has_volatile_cache && !is_skipped {
                self.io.flush(position, Purpose::Commit);
                core.journal.outstanding += 1;
            }
        }
    }

    fn write_transaction(&mut self) {
        let position = self.caller_position[0];
        let device = self.devices[position];
        let force_unit_access = device.has_volatile_cache && device.supports_fua;
        let core = self.core.as_mut().expect("a commit runs");
        let batch = core.journal.front(&core.geometry).expect("a commit runs");
        let blocks = std::mem::take(&mut batch.blocks);
        let places = (batch.first_sequence..)
            .map(|sequence| core.geometry.journal_block(sequence))
            .zip(blocks);
        let writes = coalesce(places);
        core.journal.outstanding = writes.len();
        for (block, data) in writes {
            self.counters.journal_bytes += u64::try_from(data.len()).expect("a short write");
            self.io
                .write(position, block, data, force_unit_access, Purpose::Commit);
        }
    }

    fn flush_journal(&mut self) {
        let position = self.caller_position[0];
        let device = self.devices[position];
        if device.has_volatile_cache && !device.supports_fua {
            self.io.flush(position, Purpose::Commit);
            self.core_mut().journal.outstanding = 1;
        }
    }

    fn settle_commit(&mut self) {
        let is_freed_early = self.is_space_freed_early();
        let core: &mut Core = self.core.as_mut().expect("a commit runs");
        let batch = core.journal.settle();
        for run in batch.freed {
            if !is_freed_early {
                core.space
                    .release(&core.geometry, run)
                    .expect("a freed run is busy and not owned");
            }
        }
        self.counters.journal_commits += 1;
    }

    pub(super) fn is_failed(&self) -> bool {
        matches!(self.state, PoolState::Failed(_))
    }
}

/// Joins blocks with adjacent places to writes that are not too long.
pub(super) fn coalesce(blocks: impl Iterator<Item = (u64, Box<Block>)>) -> Vec<(u64, Box<[u8]>)> {
    let limit = usize::try_from(METADATA_IO_BLOCKS_MAX).expect("a small number") * 4096;
    let mut writes: Vec<(u64, Vec<u8>)> = Vec::new();
    for (place, block) in blocks {
        match writes.last_mut() {
            Some((start, data))
                if data.len() < limit
                    && *start + u64::try_from(data.len() / 4096).expect("a short write")
                        == place =>
            {
                data.extend_from_slice(&block[..]);
            }
            _ => writes.push((place, block.to_vec())),
        }
    }
    writes
        .into_iter()
        .map(|(place, data)| (place, data.into_boxed_slice()))
        .collect()
}
