//! From mapped pieces to commands: cut at the borders of pieces and at what one command of the
//! device can carry, submit until the device's queue is full, go on when it has room.

use lode_block::{BlockDevice, DeviceError, Operation, Request};
use lode_bus::DmaSpan;
use lode_extent::{LogicalBlock, Piece, PieceKind, PoolBlock};
use lode_units::{DeviceIndex, Lba};

use super::edges::edge_offset;
use super::start::{UNIT, is_in_place, units_to};
use super::{Pieces, PoolHost};
use crate::classify::DataCommand;
use crate::core::ShardCore;
use crate::lane::NotSubmitted;
use crate::op::{Failure, Op, OpIndex, Step};
use crate::request::DataOperation;
use crate::tag::{CommandOwner, SECTOR_BYTES};

/// What became of a stretch that was to be submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Submitted {
    /// All of it, or it failed and the request notes that.
    Yes,
    /// The device's queue is full; the request is parked.
    Parked,
}

impl<D: BlockDevice> PoolHost<D> {
    /// Submits what is left of the present step, looking the mapping up again: the request holds
    /// what could change it.
    pub(super) fn transfer(&mut self, index: OpIndex, core: &mut ShardCore) {
        let op = core.ops.get(index);
        if op.cursor >= op.end {
            self.finish_if_done(index, core);
            return;
        }
        match op.step {
            Step::Zero => return self.zero_edges(index, core),
            Step::Merge => return self.fetch_edges(index, core),
            _ => {}
        }
        let mut pieces = Pieces::new();
        let (first, end) = (op.cursor / UNIT, units_to(op.end));
        let handle = op.volume;
        let Some(volume) = self.volumes.get(handle.slot, handle.generation) else {
            let gone = crate::error::IoError::UnknownVolume;
            self.end_or_drain(index, gone, core);
            return;
        };
        let count = u32::try_from(end - first).expect("a transfer is bounded by 1 MiB");
        let outcome = self
            .pool
            .lookup(volume.id, LogicalBlock::new(first), count, &mut pieces);
        if self.looked_up(index, outcome, core) {
            self.transfer_pieces(index, &pieces, core);
        }
    }

    /// Submits what is left of the present step along `pieces`.
    #[inline]
    pub(super) fn transfer_pieces(
        &mut self,
        index: OpIndex,
        pieces: &[Piece],
        core: &mut ShardCore,
    ) {
        for piece in pieces {
            let piece_end = (piece.logical.get() + u64::from(piece.count)) * UNIT;
            while core.ops.get(index).cursor < piece_end.min(core.ops.get(index).end) {
                if self.transfer_stretch(index, piece, piece_end, core) == Submitted::Parked {
                    return;
                }
            }
        }
        self.finish_if_done(index, core);
    }

    /// Submits one command, or fills one hole of a read.
    #[inline]
    fn transfer_stretch(
        &mut self,
        index: OpIndex,
        piece: &Piece,
        piece_end: u64,
        core: &mut ShardCore,
    ) -> Submitted {
        let op = core.ops.get_mut(index);
        let unit = op.cursor / UNIT;
        let end = piece_end.min(op.end);
        if op.step != Step::Write && piece.kind != PieceKind::Written {
            fill_hole(op, end);
            return Submitted::Yes;
        }
        let (physical, end) = if op.step != Step::Write || is_in_place(piece) {
            (
                PoolBlock::new(piece.physical.get() + (unit - piece.logical.get())),
                end,
            )
        } else {
            let (physical, run_end) = allocated(op, unit);
            (physical, end.min(run_end))
        };
        self.submit_stretch(index, physical, end, core)
    }

    /// Submits the command that begins at the request's cursor and ends at `end` at the latest.
    #[inline]
    pub(super) fn submit_stretch(
        &mut self,
        index: OpIndex,
        physical: PoolBlock,
        end: u64,
        core: &mut ShardCore,
    ) -> Submitted {
        let (device, block) = self.pool.locate(physical);
        let lane = &mut self.lanes[device.index()];
        let op = core.ops.get(index);
        let length = (end - op.cursor).min(u64::from(lane.transfer_max_bytes()));
        let (data, length) = data_span(op, length, core);
        let operation = operation_of(op);
        let shift = lane.geometry().block_size.shift();
        let byte = block * UNIT + op.cursor % UNIT;
        let owner = CommandOwner::Op {
            index,
            sector: narrow((op.cursor - op.start) / SECTOR_BYTES),
            count: u16::try_from(length / SECTOR_BYTES).unwrap_or(u16::MAX),
        };
        let request = Request {
            tag: owner.tag(),
            operation,
            lba: Lba::new(byte >> shift),
            block_count: narrow(length >> shift),
            data,
        };
        let outcome = lane.submit_data(request);
        self.submitted(index, device, operation, length, outcome, core)
    }

    /// Notes what became of a command.
    #[inline]
    fn submitted(
        &mut self,
        index: OpIndex,
        device: DeviceIndex,
        operation: Operation,
        length: u64,
        outcome: Result<(), NotSubmitted>,
        core: &mut ShardCore,
    ) -> Submitted {
        match outcome {
            Ok(()) => {
                match operation {
                    Operation::Read => core.stats.read_commands.increment(),
                    Operation::WriteThrough => {
                        core.stats.write_commands.increment();
                        core.stats.write_through_commands.increment();
                    }
                    _ => core.stats.write_commands.increment(),
                }
                let op = core.ops.get_mut(index);
                op.cursor += length;
                op.outstanding += 1;
                Submitted::Yes
            }
            Err(NotSubmitted::Full) => {
                core.stats.queue_full_waits.increment();
                self.lanes[device.index()]
                    .waiters
                    .push_back(core.queued(index));
                Submitted::Parked
            }
            Err(NotSubmitted::Failed(error)) => {
                fail_at_cursor(core.ops.get_mut(index), device, length, error);
                Submitted::Yes
            }
        }
    }

    /// Zeroes the units that a write-zeroes covers only in part, where they hold data. Whole
    /// units are passed over: they will be unmapped.
    fn zero_edges(&mut self, index: OpIndex, core: &mut ShardCore) {
        loop {
            let op = core.ops.get_mut(index);
            if op.cursor >= op.end {
                break;
            }
            let unit = op.cursor / UNIT;
            let unit_end = ((unit + 1) * UNIT).min(op.end);
            let handle = op.volume;
            let Some(volume) = self.volumes.get(handle.slot, handle.generation) else {
                break;
            };
            let is_whole = op.cursor.is_multiple_of(UNIT)
                && (unit_end.is_multiple_of(UNIT) || op.reaches_end)
                && edge_offset(op, op.cursor).is_none();
            if is_whole {
                let whole_end = match edge_offset(op, op.range_end() - 1) {
                    Some(_) => op.range_end() / UNIT * UNIT,
                    None => whole_units_end(op),
                };
                op.cursor = whole_end.max(unit_end).min(op.end);
                continue;
            }
            let mut pieces = Pieces::new();
            let outcome = self
                .pool
                .lookup(volume.id, LogicalBlock::new(unit), 1, &mut pieces);
            if !self.looked_up(index, outcome, core) {
                return;
            }
            let written = pieces.first().filter(|piece| is_in_place(piece));
            let Some(piece) = written else {
                core.ops.get_mut(index).cursor = unit_end;
                continue;
            };
            if self.submit_stretch(index, piece.physical, unit_end, core) == Submitted::Parked {
                return;
            }
        }
        self.finish_if_done(index, core);
    }

    /// Ends the step when nothing of it is left, as when a read met only holes.
    #[inline]
    pub(super) fn finish_if_done(&mut self, index: OpIndex, core: &mut ShardCore) {
        if core.ops.get(index).is_step_done() {
            self.step_done(index, core);
        }
    }
}

/// Fills the part of a read that lies in a hole, up to `end`.
fn fill_hole(op: &mut Op, end: u64) {
    if let (Some(at), Some(edges)) = (edge_offset(op, op.cursor), &op.edges) {
        edges.fill_zero(at, index_of(UNIT));
        op.cursor = (op.cursor / UNIT + 1) * UNIT;
        return;
    }
    let end = end.min(middle_end(op));
    let target = if op.step == Step::Compare {
        &op.scratch
    } else {
        &op.buffer
    };
    if let Some(buffer) = target {
        buffer.fill_zero(index_of(op.cursor - op.offset), index_of(end - op.cursor));
    }
    op.cursor = end;
}

/// Up to where the request's own memory holds its data: an end that is fetched whole lies
/// elsewhere.
#[inline]
fn middle_end(op: &Op) -> u64 {
    match edge_offset(op, op.range_end() - 1) {
        Some(_) => op.range_end() / UNIT * UNIT,
        None => op.range_end(),
    }
}

/// Where a unit that was reserved for this request lies, and the byte of the volume at which its
/// run ends.
fn allocated(op: &Op, unit: u64) -> (PoolBlock, u64) {
    op.allocations
        .iter()
        .flat_map(|allocation| allocation.runs())
        .find_map(|run| {
            let into = unit.checked_sub(run.logical.get())?;
            let is_inside = into < u64::from(run.count);
            let end = (run.logical.get() + u64::from(run.count)) * UNIT;
            is_inside.then(|| (PoolBlock::new(run.physical.get() + into), end))
        })
        .expect("a write reserves every unit that it does not write in place")
}

/// The memory of the command that begins at the cursor, and its length: it ends where the
/// request's own data begin or end, since zeros and fetched ends come from elsewhere.
#[inline]
fn data_span(op: &Op, length: u64, core: &ShardCore) -> (DmaSpan, u64) {
    let cursor = op.cursor;
    if let (Some(at), Some(edges)) = (edge_offset(op, cursor), &op.edges) {
        let within = cursor % UNIT;
        let length = length.min(UNIT - within);
        let from = narrow(at as u64 + within);
        return (edges.span().part(from, narrow(length)), length);
    }
    if op.step == Step::Zero || cursor < op.offset || cursor >= op.range_end() {
        let limit = if cursor < op.offset {
            op.offset - cursor
        } else {
            UNIT - cursor % UNIT
        };
        let length = length.min(limit).min(UNIT);
        return (core.zeros(narrow(length)), length);
    }
    let length = length.min(middle_end(op) - cursor);
    let from = narrow(cursor - op.offset);
    let (buffer, base) = match op.step {
        Step::Compare => (&op.scratch, 0),
        _ => (&op.buffer, op.buffer_base),
    };
    let span = buffer
        .as_ref()
        .map(|buffer| buffer.span().part(base + from, narrow(length)));
    (
        span.expect("a request that moves data has its buffer"),
        length,
    )
}

#[inline]
const fn operation_of(op: &Op) -> Operation {
    match (op.step, op.command) {
        (Step::Write, DataCommand::WriteThrough) => Operation::WriteThrough,
        (Step::Write | Step::Zero, _) => Operation::Write,
        _ => Operation::Read,
    }
}

fn fail_at_cursor(op: &mut Op, device: DeviceIndex, length: u64, error: DeviceError) {
    let offset = op.cursor;
    op.fail(Failure {
        device,
        offset,
        length,
        error,
    });
}

/// Where the whole units of a request stop: the last unit of a volume counts as whole when the
/// request reaches the volume's end.
fn whole_units_end(op: &Op) -> u64 {
    let end = op.range_end();
    if op.reaches_end {
        units_to(end) * UNIT
    } else {
        end / UNIT * UNIT
    }
}

#[inline]
fn narrow(value: u64) -> u32 {
    u32::try_from(value).expect("a position within one request fits 32 bits")
}

fn index_of(value: u64) -> usize {
    usize::try_from(value).expect("a position within one buffer fits a usize")
}

/// The whole units of a request that unmaps: the first, and the one behind the last.
pub(super) fn whole_units(op: &Op) -> (u64, u64) {
    debug_assert!(
        matches!(
            op.operation,
            DataOperation::Discard | DataOperation::WriteZeroes
        ),
        "only these unmap"
    );
    let first = units_to(op.offset);
    let end = whole_units_end(op) / UNIT;
    (first, end.max(first))
}
