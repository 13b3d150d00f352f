//! Checkpoints: cut in memory, written beside the old one, made the pool's state by a superblock.
//!
//! ```text
//! Idle ──cut──► Writing ──► Draining ──► Publishing ──► Idle
//! ```
//! Draining waits until every change that the cut holds is durable in the journal, so that a
//! superblock never runs ahead of the journal that it cuts short.

use crate::core::{Cut, CutFault};
use crate::error::{ExtentError, IoFailure};
use crate::format::block::Block;
use crate::io_queue::{InFlight, Purpose};
use crate::pool::Pool;
use crate::pool::commit::coalesce;
use crate::pool::publish::PublishReason;
use crate::types::PoolBlock;
use crate::volume::PoolState;

/// Where a checkpoint stands.
#[derive(Debug)]
pub(crate) enum Checkpoint {
    Idle,
    Writing { cut: Box<Cut>, outstanding: usize },
    Draining { cut: Box<Cut> },
    Publishing { cut: Box<Cut> },
}

impl Pool {
    pub(super) fn drive_checkpoint(&mut self) {
        match &self.checkpoint {
            Checkpoint::Idle => self.begin_checkpoint(),
            Checkpoint::Draining { .. } => self.drained(),
            Checkpoint::Writing { .. } | Checkpoint::Publishing { .. } => {}
        }
    }

    fn begin_checkpoint(&mut self) {
        let is_export = self.state == PoolState::Exporting;
        if is_export && self.export_settled() {
            return;
        }
        let is_wanted = self.is_checkpoint_wanted || is_export;
        let core = self.core_mut();
        if !is_wanted && !core.is_checkpoint_due() {
            return;
        }
        match core.cut() {
            Ok(cut) => self.write_cut(cut),
            Err(CutFault::Absent(what)) => self.request(what),
            Err(CutFault::NoSpace) if core.space.has_damage() => self.checkpoint_stuck(is_export),
            // Blocks are being freed by a commit: it is tried again when that ends.
            Err(CutFault::NoSpace) => self.core_mut().journal.want_commit(),
            Err(CutFault::Conflict) => self.fail(ExtentError::Contradiction),
        }
    }

    /// No block is known to be free for the nodes, because the map that says which are cannot be
    /// read: until it can, changes are refused once the journal is full.
    fn checkpoint_stuck(&mut self, is_export: bool) {
        self.is_checkpoint_stuck = true;
        if is_export && let Some(block) = self.damaged_block {
            let error = self.metadata_damaged(block);
            self.fail(error);
        }
    }

    fn write_cut(&mut self, mut cut: Cut) {
        self.is_checkpoint_wanted = false;
        self.is_checkpoint_stuck = false;
        let written = std::mem::take(&mut cut.written);
        self.counters.nodes_written += u64::try_from(written.len()).expect("nodes in memory");
        let outstanding = self.write_blocks(written);
        let cut = Box::new(cut);
        if outstanding == 0 {
            self.checkpoint = Checkpoint::Draining { cut };
            self.drained();
        } else {
            self.checkpoint = Checkpoint::Writing { cut, outstanding };
        }
        if self.is_publish_early() {
            self.drained();
        }
    }

    /// Asks for the writes of blocks in the order of their places; gives their number.
    fn write_blocks(&mut self, written: Vec<(PoolBlock, Box<Block>)>) -> usize {
        let core = self.core.as_ref().expect("a checkpoint runs");
        let mut by_device: Vec<Vec<(u64, Box<Block>)>> = Vec::new();
        by_device.resize_with(self.devices.len(), Vec::new);
        for (place, block) in written {
            let (device, offset) = core
                .geometry
                .locate(place)
                .expect("a block's place lies in the pool");
            by_device[device].push((offset, block));
        }
        let mut asked = 0;
        for (device, blocks) in by_device.into_iter().enumerate() {
            let position = self.caller_position.get(device).copied().unwrap_or(0);
            for (block, data) in coalesce(blocks.into_iter()) {
                self.io
                    .write(position, block, data, false, Purpose::Checkpoint);
                asked += 1;
            }
        }
        asked
    }

    pub(super) fn checkpoint_written(&mut self, io: InFlight, outcome: Result<(), IoFailure>) {
        if let Err(failure) = outcome {
            self.fail_io(io, failure);
            return;
        }
        let Checkpoint::Writing { outstanding, .. } = &mut self.checkpoint else {
            return;
        };
        *outstanding -= 1;
        if *outstanding > 0 || self.is_failed() {
            return;
        }
        let writing = std::mem::replace(&mut self.checkpoint, Checkpoint::Idle);
        if let Checkpoint::Writing { cut, .. } = writing {
            self.checkpoint = Checkpoint::Draining { cut };
            self.drained();
        }
    }

    /// Goes on to the superblock once the journal has caught up with the cut.
    fn drained(&mut self) {
        let waiting = std::mem::replace(&mut self.checkpoint, Checkpoint::Idle);
        let is_early = self.is_publish_early();
        let cut = match waiting {
            Checkpoint::Draining { cut } => cut,
            Checkpoint::Writing { cut, .. } if is_early => cut,
            other => {
                self.checkpoint = other;
                return;
            }
        };
        if self.core_mut().journal.durable() < cut.settled_by && !is_early {
            self.checkpoint = Checkpoint::Draining { cut };
            return;
        }
        let superblock = cut.superblock.clone();
        self.checkpoint = Checkpoint::Publishing { cut };
        self.begin_publish(superblock, PublishReason::Checkpoint);
    }

    pub(super) fn checkpoint_published(&mut self) {
        let done = std::mem::replace(&mut self.checkpoint, Checkpoint::Idle);
        if let Checkpoint::Publishing { cut } = done {
            let core = self.core_mut();
            core.release_retired(&cut.retired);
            core.journal.advance_tail(cut.superblock.journal_tail);
            self.counters.checkpoints += 1;
        }
    }

    /// Publishes the clean mark once a checkpoint holds everything; says whether it is that far.
    fn export_settled(&mut self) -> bool {
        if self.publish.is_some() {
            return true;
        }
        let core = self.core_mut();
        if !core.is_checkpointed() {
            return false;
        }
        let mut superblock = core.superblock.clone();
        superblock.is_clean = true;
        self.begin_publish(superblock, PublishReason::Export);
        true
    }

    pub(super) fn exported(&mut self) {
        self.state = PoolState::Exported;
    }
}
