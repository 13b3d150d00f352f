//! Space for a write that is not in place, and the units that it holds meanwhile.

use lode_block::BlockDevice;
use lode_extent::{ExtentError, Piece};

use super::PoolHost;
use super::start::{UNIT, is_in_place, units_to};
use crate::core::ShardCore;
use crate::error::IoError;
use crate::op::{Op, OpIndex, Step};
use crate::volume::Hold;

impl<D: BlockDevice> PoolHost<D> {
    /// Takes space for every piece that is not written in place. Widens the request to whole
    /// units where its ends are new: what it does not write there must read as zeros. `false`
    /// when the request was parked or ended.
    pub(super) fn reserve(
        &mut self,
        index: OpIndex,
        pieces: &[Piece],
        core: &mut ShardCore,
    ) -> bool {
        if !self.hold_units(index, core) {
            return false;
        }
        let op = core.ops.get_mut(index);
        let handle = op.volume;
        let volume = self.volumes.get(handle.slot, handle.generation);
        let Some(id) = volume.map(|volume| volume.id) else {
            self.complete(index, Err(IoError::UnknownVolume), core);
            return false;
        };
        if op.allocations.is_empty() {
            for piece in pieces.iter().filter(|piece| !is_in_place(piece)) {
                match self.pool.allocate(id, piece.logical, piece.count) {
                    Ok(allocation) => core.ops.get_mut(index).allocations.push(allocation),
                    Err(error) => {
                        self.reserve_failed(index, &error, core);
                        return false;
                    }
                }
            }
        }
        widen(core.ops.get_mut(index), pieces);
        true
    }

    /// Holds the units of a write against other writes that hold theirs. `false` when the request
    /// was parked until it can.
    pub(super) fn hold_units(&mut self, index: OpIndex, core: &mut ShardCore) -> bool {
        let op = core.ops.get_mut(index);
        if op.holds_range {
            return true;
        }
        let (first, end) = (op.offset / UNIT, units_to(op.range_end()));
        let handle = op.volume;
        let Some(volume) = self.volumes.get_mut(handle.slot, handle.generation) else {
            self.complete(index, Err(IoError::UnknownVolume), core);
            return false;
        };
        if volume.is_held(index, first, end) {
            self.step_back(index, core);
            return false;
        }
        op.holds_range = true;
        volume.hold(index, first, end, Hold::Allocation);
        true
    }

    /// Parks a write that has submitted nothing until the units that it needs are free, as if it
    /// had just come: a barrier that waited for it goes first. Left admitted, it would wait for
    /// the barrier's range while the barrier waits for its end; with memory for its ends, it could
    /// keep that from the very request that holds the units.
    fn step_back(&mut self, index: OpIndex, core: &mut ShardCore) {
        let op = core.ops.get_mut(index);
        op.step = Step::Start;
        let was_admitted = std::mem::take(&mut op.is_admitted);
        let was_watched = std::mem::take(&mut op.is_watched);
        let (handle, edges) = (op.volume, op.edges.take());
        if let Some(volume) = self.volumes.get_mut(handle.slot, handle.generation) {
            volume.active -= u32::from(was_admitted);
            if was_watched {
                core.ready.extend(volume.blocked.drain(..));
            }
            volume.blocked.push_back(core.queued(index));
        }
        if let Some(edges) = edges {
            core.memory.ends.give_back(edges);
        }
        core.stats.range_waits.increment();
    }

    /// Parks a request that found no space or no metadata, or ends it.
    fn reserve_failed(&mut self, index: OpIndex, error: &ExtentError, core: &mut ShardCore) {
        self.cancel_allocations(index, core);
        core.ops.get_mut(index).step = Step::Start;
        match error {
            ExtentError::NotResident(missing) => {
                self.pool.load(*missing);
                self.release_allocation_hold(index, core);
                self.wait_for_metadata(index, core);
            }
            ExtentError::JournalFull => {
                self.commit_wanted = true;
                self.release_allocation_hold(index, core);
                self.wait_for_metadata(index, core);
            }
            ExtentError::NoSpace { pending_blocks, .. } => {
                let op = core.ops.get_mut(index);
                if *pending_blocks == 0 || op.space_waits >= SPACE_WAITS_MAX {
                    self.complete(index, Err(IoError::NoSpace), core);
                    return;
                }
                op.space_waits += 1;
                self.release_allocation_hold(index, core);
                self.wait_for_space(index, core);
            }
            ExtentError::UnknownVolume { .. } => {
                self.complete(index, Err(IoError::UnknownVolume), core);
            }
            ExtentError::ObjectDamaged { .. } | ExtentError::MetadataDamaged { .. } => {
                self.complete(index, Err(IoError::Damaged), core);
            }
            _ => self.complete(index, Err(IoError::PoolUnavailable), core),
        }
    }

    /// Parks a request until what has been freed so far can be used again.
    fn wait_for_space(&mut self, index: OpIndex, core: &mut ShardCore) {
        self.commit_wanted = true;
        let ticket = self.pool.recorded();
        if ticket <= self.pool.durable() {
            // Only a checkpoint frees what is pending now.
            self.pool.checkpoint();
            self.wait_for_metadata(index, core);
        } else {
            self.space_waiters.push_back((ticket, core.queued(index)));
        }
    }
}

/// Lets a write cover the whole of its first and last unit where those are new.
fn widen(op: &mut Op, pieces: &[Piece]) {
    if pieces.first().is_some_and(|piece| !is_in_place(piece)) {
        op.start = op.offset / UNIT * UNIT;
    }
    if pieces.last().is_some_and(|piece| !is_in_place(piece)) {
        op.end = units_to(op.range_end()) * UNIT;
    }
    op.cursor = op.start;
}

/// How often a write waits for what is being freed: for a commit, and for the checkpoint that gives
/// back what only that can. Others may take it first.
const SPACE_WAITS_MAX: u8 = 4;
