//! From a request to its first commands: past the barriers, looked up, classified.

use lode_block::{BlockDevice, Durability};
use lode_extent::{LogicalBlock, LookupError, Piece, PieceKind};
use lode_units::limits::ALLOCATION_UNIT_BYTES;

use super::edges::fetched;
use super::guests::Farewell;
use super::{Pieces, PoolHost};
use crate::classify::{PieceFacts, Reasons};
use crate::core::ShardCore;
use crate::error::IoError;
use crate::op::{OpIndex, Step};
use crate::port::UnitRange;
use crate::request::DataOperation;
use crate::volume::Hold;

impl<D: BlockDevice> PoolHost<D> {
    /// Starts a request, or resumes one that waited before its commands were known.
    #[inline]
    pub(crate) fn start(&mut self, index: OpIndex, core: &mut ShardCore) {
        if !self.admit(index, core) {
            return;
        }
        if !self.take_edges(index, core) {
            return;
        }
        match core.ops.get(index).operation {
            DataOperation::Read => self.start_read(index, core),
            DataOperation::Write if core.ops.get(index).edges.is_some() => {
                if self.hold_units(index, core) {
                    self.start_merge(index, core);
                }
            }
            DataOperation::Write => self.start_write(index, core),
            DataOperation::Flush => {
                core.ops.get_mut(index).needs_flush = self.cache.is_volatile;
                self.enter_settle(index, core);
            }
            DataOperation::CompareAndWrite => self.start_compare(index, core),
            DataOperation::WriteZeroes => {
                self.note_end(index, core);
                let op = core.ops.get_mut(index);
                op.reasons |= Reasons::UNMAP;
                if op.edges.is_some() {
                    self.start_merge(index, core);
                    return;
                }
                op.begin(Step::Zero, op.offset, op.range_end());
                self.transfer(index, core);
            }
            DataOperation::Discard => {
                self.note_end(index, core);
                let op = core.ops.get_mut(index);
                op.reasons |= Reasons::UNMAP;
                self.enter_unmap(index, core);
            }
        }
    }

    /// Lets a request past the barriers of its volume, or parks it. A barrier itself also waits
    /// for what is in flight in its range.
    #[inline]
    fn admit(&mut self, index: OpIndex, core: &mut ShardCore) -> bool {
        let op = core.ops.get_mut(index);
        let Some(volume) = self.volumes.get_mut(op.volume.slot, op.volume.generation) else {
            self.complete(index, Err(IoError::UnknownVolume), core);
            return false;
        };
        let (first, end) = (op.offset / UNIT, op.range_end().div_ceil(UNIT));
        if !op.is_admitted {
            if volume.has_barrier(index, first, end) {
                core.ops.set_may_defer(index, true);
                volume.blocked.push_back(core.queued(index));
                core.stats.range_waits.increment();
                return false;
            }
            op.is_admitted = true;
            op.is_sub_block = volume.is_sub_block;
            volume.active += 1;
            if is_barrier(op.operation) {
                op.holds_range = true;
                volume.hold(index, first, end, Hold::Barrier);
            }
        }
        if is_barrier(op.operation) && op.step == Step::Start && self.must_wait(index, core) {
            let slot = core.ops.get(index).volume;
            if let Some(volume) = self.volumes.get_mut(slot.slot, slot.generation) {
                volume.blocked.push_back(core.queued(index));
            }
            core.stats.range_waits.increment();
            return false;
        }
        true
    }

    /// Whether a barrier has to wait for what uses its range, here or under the lease of another
    /// core.
    fn must_wait(&mut self, index: OpIndex, core: &mut ShardCore) -> bool {
        let op = core.ops.get(index);
        let (handle, recall) = (op.volume, op.recall);
        let units = UnitRange {
            first: op.offset / UNIT,
            end: units_to(op.range_end()),
        };
        let recall = match recall {
            Some(recall) => recall,
            None => self.recall(handle, units, Farewell::No, core),
        };
        core.ops.get_mut(index).recall = Some(recall);
        watch_overlapping(index, core) || self.recalls.is_pending(recall)
    }

    /// Notes whether a request that unmaps reaches the end of its volume.
    fn note_end(&self, index: OpIndex, core: &mut ShardCore) {
        let op = core.ops.get_mut(index);
        let volume = self.volumes.get(op.volume.slot, op.volume.generation);
        op.reaches_end = volume.is_some_and(|volume| volume.size_bytes == op.range_end());
    }

    #[inline]
    fn start_read(&mut self, index: OpIndex, core: &mut ShardCore) {
        let mut pieces = Pieces::new();
        if !self.look_up(index, &mut pieces, core) {
            return;
        }
        core.ops.set_may_defer(index, false);
        let op = core.ops.get_mut(index);
        let (start, end) = fetched(op);
        op.begin(Step::Read, start, end);
        self.transfer_pieces(index, &pieces, core);
    }

    fn start_compare(&mut self, index: OpIndex, core: &mut ShardCore) {
        let length = usize::try_from(core.ops.get(index).length).unwrap_or(usize::MAX);
        let Some(scratch) = core.memory.comparisons.take(length) else {
            let index = core.queued(index);
            core.memory.comparisons.wait(index);
            return;
        };
        let op = core.ops.get_mut(index);
        op.scratch = Some(scratch);
        op.reasons |= Reasons::COMPARE;
        let (start, end) = fetched(op);
        op.begin(Step::Compare, start, end);
        self.transfer(index, core);
    }

    /// Looks up, classifies, and reserves what is not there yet.
    pub(crate) fn start_write(&mut self, index: OpIndex, core: &mut ShardCore) {
        let mut pieces = Pieces::new();
        if !self.look_up(index, &mut pieces, core) {
            return;
        }
        let facts = PieceFacts::of(&pieces);
        let is_volatile = self.cache.is_volatile;
        let op = core.ops.get_mut(index);
        let class = self.classify(facts, op.durability);
        op.reasons |= class.completion_work;
        op.command = class.command;
        // New blocks are flushed by the commit that records them.
        op.needs_flush = class.needs_flush && facts.has_written;
        if class.is_inline() && !is_volatile && !facts.has_dirty_metadata {
            op.achieved = Durability::Data;
        }
        let (start, end) = fetched(op);
        op.begin(Step::Write, start, end);
        let (may_defer, is_sub_block) = (!op.reasons.is_empty(), op.is_sub_block);
        core.ops.set_may_defer(index, may_defer);
        let owes_space = facts.has_unallocated || facts.has_unwritten || facts.has_shared;
        if is_sub_block && !self.hold_units(index, core) {
            return;
        }
        if owes_space && !self.reserve(index, &pieces, core) {
            return;
        }
        self.transfer_pieces(index, &pieces, core);
    }

    /// Finds how the range of a request is mapped. `false` when the request was parked or ended.
    #[inline]
    fn look_up(&mut self, index: OpIndex, pieces: &mut Pieces, core: &mut ShardCore) -> bool {
        let op = core.ops.get(index);
        let (first, end) = (op.offset / UNIT, units_to(op.range_end()));
        let handle = op.volume;
        let Some(volume) = self.volumes.get_mut(handle.slot, handle.generation) else {
            self.complete(index, Err(IoError::UnknownVolume), core);
            return false;
        };
        let count = u32::try_from(end - first).expect("a transfer is bounded by 1 MiB");
        if let Some(piece) = volume.recent.covering(first, count) {
            pieces.push(piece);
            return true;
        }
        let block = LogicalBlock::new(first);
        let outcome = self.pool.lookup(volume.id, block, count, pieces);
        if let [piece] = pieces.as_slice()
            && is_in_place(piece)
            && volume.recent.wants(first)
        {
            let extent = self.pool.written_extent(volume.id, block);
            let reliable = extent.filter(|extent| extent.flags.is_empty());
            volume.recent.remember(first, reliable);
        }
        self.looked_up(index, outcome, core)
    }

    /// Goes on after a lookup, or parks or ends the request.
    #[inline]
    pub(super) fn looked_up(
        &mut self,
        index: OpIndex,
        outcome: Result<(), LookupError>,
        core: &mut ShardCore,
    ) -> bool {
        let error = match outcome {
            Ok(()) => return true,
            Err(LookupError::NotResident(missing)) => {
                self.pool.load(missing);
                self.wait_for_metadata(index, core);
                return false;
            }
            Err(LookupError::UnknownVolume(_)) => IoError::UnknownVolume,
            Err(_) => IoError::Damaged,
        };
        self.end_or_drain(index, error, core);
        false
    }

    /// Parks a request until a metadata operation has ended.
    pub(super) fn wait_for_metadata(&mut self, index: OpIndex, core: &mut ShardCore) {
        core.stats.metadata_waits.increment();
        core.ops.set_may_defer(index, true);
        self.metadata_waiters.push_back(core.queued(index));
    }
}

/// Marks every other admitted request that overlaps the range of a barrier, so that its end
/// wakes the barrier. Whether there is any.
fn watch_overlapping(barrier: OpIndex, core: &mut ShardCore) -> bool {
    let op = core.ops.get(barrier);
    let (handle, offset, end) = (op.volume, op.offset, op.range_end());
    let (first_byte, end_byte) = (offset / UNIT * UNIT, end.div_ceil(UNIT) * UNIT);
    let mut any = false;
    for (index, op) in core.ops.iter_mut() {
        let overlaps = op.offset < end_byte && first_byte < op.range_end();
        let precedes = op.is_admitted && !(is_barrier(op.operation) && op.step == Step::Start);
        if index != barrier && op.volume == handle && overlaps && precedes {
            op.is_watched = true;
            any = true;
        }
    }
    any
}

/// Whether a write goes where the piece lies.
#[inline]
pub(super) fn is_in_place(piece: &Piece) -> bool {
    piece.kind == PieceKind::Written && !piece.flags.contains(lode_extent::PieceFlags::SHARED)
}

#[inline]
pub(super) const fn is_barrier(operation: DataOperation) -> bool {
    matches!(
        operation,
        DataOperation::CompareAndWrite | DataOperation::WriteZeroes | DataOperation::Discard
    )
}

/// The number of whole units that reach up to byte `end`.
#[inline]
pub(crate) const fn units_to(end: u64) -> u64 {
    end.div_ceil(UNIT)
}

pub(crate) const UNIT: u64 = ALLOCATION_UNIT_BYTES;
