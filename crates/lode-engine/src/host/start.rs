//! From an admitted request to its commands: check, look up, classify, reserve.

use lode_block::{BlockDevice, Durability};
use lode_extent::{ExtentError, LogicalBlock, LookupError, Piece, PieceKind, PoolState};
use lode_units::limits::{ALLOCATION_UNIT_BYTES, IO_LENGTH_MAX_BYTES, RANGE_LENGTH_MAX_BYTES};

use super::{Pieces, PoolHost};
use crate::classify::{PieceFacts, Reasons, WriteFacts, classify_write};
use crate::core::{COMPARE_MAX_BYTES, ShardCore};
use crate::error::IoError;
use crate::op::{Op, OpIndex, Step};
use crate::request::{DataOperation, DataRequest};
use crate::volume::{Hold, Volume};

impl<D: BlockDevice> PoolHost<D> {
    /// Checks what a request says about itself. Cheap and without effect.
    #[inline]
    pub(crate) fn check(&self, request: &DataRequest) -> Result<Durability, IoError> {
        let handle = request.volume;
        let volume = self
            .volumes
            .get(handle.slot, handle.generation)
            .filter(|volume| !volume.is_closing)
            .ok_or(IoError::UnknownVolume)?;
        let durability = request.durability.max(volume.durability);
        if request.operation == DataOperation::Read {
            check_range(request, volume)?;
            return Ok(Durability::None);
        }
        if *self.pool.state() != PoolState::Ready {
            return Err(IoError::PoolUnavailable);
        }
        if request.operation == DataOperation::Flush {
            let can_flush = self.can_promise(Durability::Data);
            return if can_flush {
                Ok(Durability::Data)
            } else {
                Err(IoError::FlushFailed)
            };
        }
        check_range(request, volume)?;
        if self.can_promise(durability) {
            Ok(durability)
        } else {
            Err(IoError::FlushFailed)
        }
    }

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
                volume.blocked.push_back(core.queued(index));
                core.stats.range_waits.increment();
                return false;
            }
            op.is_admitted = true;
            volume.active += 1;
            if is_barrier(op.operation) {
                op.holds_range = true;
                volume.hold(index, first, end, Hold::Barrier);
            }
        }
        if is_barrier(op.operation) && op.step == Step::Start && watch_overlapping(index, core) {
            let slot = core.ops.get(index).volume;
            if let Some(volume) = self.volumes.get_mut(slot.slot, slot.generation) {
                volume.blocked.push_back(core.queued(index));
            }
            core.stats.range_waits.increment();
            return false;
        }
        true
    }

    #[inline]
    fn start_read(&mut self, index: OpIndex, core: &mut ShardCore) {
        let mut pieces = Pieces::new();
        if !self.look_up(index, &mut pieces, core) {
            return;
        }
        let op = core.ops.get_mut(index);
        let (start, end) = fetched(op);
        op.begin(Step::Read, start, end);
        self.transfer_pieces(index, &pieces, core);
    }

    fn start_compare(&mut self, index: OpIndex, core: &mut ShardCore) {
        let length = usize::try_from(core.ops.get(index).length).unwrap_or(usize::MAX);
        let Some(scratch) = core.buffers.take(length) else {
            self.scratch_waiters.push_back(core.queued(index));
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
        let class = classify_write(&WriteFacts {
            pieces: facts,
            cache: self.cache,
            durability: op.durability,
            extends: false,
            has_cached_pages: false,
        });
        op.reasons |= class.completion_work;
        op.command = class.command;
        // New blocks are flushed by the commit that records them.
        op.needs_flush = class.needs_flush && facts.has_written;
        if class.is_inline() && !is_volatile && !facts.has_dirty_metadata {
            op.achieved = Durability::Data;
        }
        let (start, end) = fetched(op);
        op.begin(Step::Write, start, end);
        let owes_space = facts.has_unallocated || facts.has_unwritten || facts.has_shared;
        if self.is_sub_block(index, core) && !self.hold_units(index, core) {
            return;
        }
        if owes_space && !self.reserve(index, &pieces, core) {
            return;
        }
        self.transfer_pieces(index, &pieces, core);
    }

    /// Finds how the range of a request is mapped. `false` when the request was parked or ended.
    #[inline]
    pub(super) fn look_up(
        &mut self,
        index: OpIndex,
        pieces: &mut Pieces,
        core: &mut ShardCore,
    ) -> bool {
        let op = core.ops.get(index);
        let Some(volume) = self.volumes.get(op.volume.slot, op.volume.generation) else {
            self.complete(index, Err(IoError::UnknownVolume), core);
            return false;
        };
        let first = op.offset / UNIT;
        let count = units_to(op.range_end()) - first;
        let count = u32::try_from(count).expect("a transfer is bounded by 1 MiB");
        let outcome = self
            .pool
            .lookup(volume.id, LogicalBlock::new(first), count, pieces);
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
        self.metadata_waiters.push_back(core.queued(index));
    }

    /// Takes space for every piece that is not written in place. Widens the request to whole
    /// units where its ends are new: what it does not write there must read as zeros. `false`
    /// when the request was parked or ended.
    fn reserve(&mut self, index: OpIndex, pieces: &[Piece], core: &mut ShardCore) -> bool {
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
    fn hold_units(&mut self, index: OpIndex, core: &mut ShardCore) -> bool {
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
            op.step = Step::Start;
            volume.blocked.push_back(core.queued(index));
            core.stats.range_waits.increment();
            return false;
        }
        op.holds_range = true;
        volume.hold(index, first, end, Hold::Allocation);
        true
    }

    fn is_sub_block(&self, index: OpIndex, core: &ShardCore) -> bool {
        let handle = core.ops.get(index).volume;
        let is_possible = self.device_block_bytes > SMALLEST_BLOCK_BYTES;
        let volume = self.volumes.get(handle.slot, handle.generation);
        is_possible && volume.is_some_and(|volume| volume.is_sub_block)
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
                if *pending_blocks == 0 || op.waited_for_space {
                    self.complete(index, Err(IoError::NoSpace), core);
                    return;
                }
                op.waited_for_space = true;
                self.release_allocation_hold(index, core);
                self.wait_for_space(index, core);
            }
            ExtentError::UnknownVolume { .. } => {
                self.complete(index, Err(IoError::UnknownVolume), core);
            }
            ExtentError::ObjectDamaged { .. } => self.complete(index, Err(IoError::Damaged), core),
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

#[inline]
fn check_range(request: &DataRequest, volume: &Volume) -> Result<(), IoError> {
    let (offset_bytes, length_bytes) = (request.offset_bytes, request.length_bytes);
    if length_bytes == 0 {
        return Err(IoError::ZeroLength);
    }
    let length_max_bytes = match request.operation {
        DataOperation::Read | DataOperation::Write | DataOperation::Flush => IO_LENGTH_MAX_BYTES,
        DataOperation::CompareAndWrite => COMPARE_MAX_BYTES,
        DataOperation::WriteZeroes | DataOperation::Discard => RANGE_LENGTH_MAX_BYTES,
    };
    if length_bytes > length_max_bytes {
        return Err(IoError::TooLong {
            length_bytes,
            length_max_bytes,
        });
    }
    if !volume.block_size.divides(offset_bytes | length_bytes) {
        let block_size_bytes = volume.block_size.bytes();
        return Err(IoError::Unaligned {
            offset_bytes,
            length_bytes,
            block_size_bytes,
        });
    }
    let size_bytes = volume.size_bytes;
    if offset_bytes
        .checked_add(length_bytes)
        .is_none_or(|end| end > size_bytes)
    {
        return Err(IoError::OutOfRange {
            offset_bytes,
            length_bytes,
            size_bytes,
        });
    }
    let held = request
        .buffer
        .as_ref()
        .map_or(0, |buffer| buffer.length_bytes() as u64);
    let needed = match request.operation {
        DataOperation::Read | DataOperation::Write => length_bytes,
        DataOperation::CompareAndWrite => length_bytes * 2,
        DataOperation::WriteZeroes | DataOperation::Discard | DataOperation::Flush => 0,
    };
    if held < needed {
        Err(IoError::NoBuffer)
    } else {
        Ok(())
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

/// The bytes that the commands of a request cover: whole units where its ends are fetched.
#[inline]
const fn fetched(op: &Op) -> (u64, u64) {
    if op.edges.is_none() {
        return (op.offset, op.range_end());
    }
    (op.offset / UNIT * UNIT, units_to(op.range_end()) * UNIT)
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
pub(super) const fn units_to(end: u64) -> u64 {
    end.div_ceil(UNIT)
}

/// The smallest block of any device: no volume's is smaller.
const SMALLEST_BLOCK_BYTES: u32 = 512;
pub(super) const UNIT: u64 = ALLOCATION_UNIT_BYTES;
