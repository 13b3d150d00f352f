//! Along the pieces of a request: fill holes, submit commands for what is there or was reserved,
//! until a device's queue is full; go on when it has room.

use lode_block::BlockDevice;
use lode_extent::{LogicalBlock, Piece, PieceKind, PoolBlock};

use super::edges::edge_offset;
use super::start::{UNIT, is_in_place, units_to};
use super::{Pieces, PoolHost};
use crate::command::{self, Submitted, middle_end};
use crate::core::ShardCore;
use crate::op::{Op, OpIndex, Step};
use crate::request::{DataOperation, VolumeHandle};

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
            loop {
                let op = core.ops.get(index);
                let end = piece_end.min(op.end);
                if op.cursor >= end {
                    break;
                }
                if self.transfer_stretch(index, piece, end, core) == Submitted::Parked {
                    return;
                }
            }
        }
        self.finish_if_done(index, core);
    }

    /// Submits one command, or fills one hole of a read, up to `end` at most.
    #[inline]
    fn transfer_stretch(
        &mut self,
        index: OpIndex,
        piece: &Piece,
        end: u64,
        core: &mut ShardCore,
    ) -> Submitted {
        let op = core.ops.get_mut(index);
        let unit = op.cursor / UNIT;
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
        let place = self.pool.locate(physical);
        let volumes = &self.volumes;
        let figures_of = |of: VolumeHandle| Some(&*volumes.get(of.slot, of.generation)?.stats);
        command::submit_stretch(&mut self.lanes, place, index, end, figures_of, core)
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
