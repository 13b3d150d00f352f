//! Volumes whose blocks are smaller than the device's: what a request covers only in part goes
//! through memory of our own, one unit for each of its two ends.
//!
//! A read fetches these units whole and copies out the part that was asked for. A write fetches
//! them, puts its part in, and writes them whole; since that would undo a write that another
//! request makes to the same unit meanwhile, every write to such a volume holds its units.

use lode_block::BlockDevice;
use lode_bus::DmaBuffer;
use lode_extent::LogicalBlock;

use super::PoolHost;
use super::start::{UNIT, is_in_place, units_to};
use crate::command::Submitted;
use crate::core::ShardCore;
use crate::memory::ENDS_BYTES;
use crate::op::{Op, OpIndex, Step};
use crate::request::DataOperation;

impl<D: BlockDevice> PoolHost<D> {
    /// Gives a request memory for its ends when it needs some. `false` when it was parked until
    /// there is some.
    #[inline]
    pub(super) fn take_edges(&mut self, index: OpIndex, core: &mut ShardCore) -> bool {
        !core.ops.get(index).is_sub_block || take_edges(index, core)
    }

    /// Starts to fetch the ends of a request that writes.
    pub(super) fn start_merge(&mut self, index: OpIndex, core: &mut ShardCore) {
        let op = core.ops.get_mut(index);
        op.begin(
            Step::Merge,
            op.offset / UNIT * UNIT,
            units_to(op.range_end()) * UNIT,
        );
        self.transfer(index, core);
    }

    /// Fetches the ends, those that are there: a hole gives zeros.
    pub(super) fn fetch_edges(&mut self, index: OpIndex, core: &mut ShardCore) {
        while core.ops.get(index).cursor < core.ops.get(index).end {
            let op = core.ops.get_mut(index);
            let Some(at) = edge_offset(op, op.cursor) else {
                // From behind the first unit on to the last one.
                op.cursor = op.cursor.max(op.range_end() / UNIT * UNIT);
                if edge_offset(op, op.cursor).is_none() {
                    op.cursor = op.end;
                }
                continue;
            };
            let (handle, unit) = (op.volume, op.cursor / UNIT);
            let Some(volume) = self.volumes.get(handle.slot, handle.generation) else {
                break;
            };
            let mut pieces = super::Pieces::new();
            let outcome = self
                .pool
                .lookup(volume.id, LogicalBlock::new(unit), 1, &mut pieces);
            if !self.looked_up(index, outcome, core) {
                return;
            }
            let Some(piece) = pieces.first().filter(|piece| is_in_place(piece)) else {
                let op = core.ops.get_mut(index);
                if let Some(edges) = &op.edges {
                    edges.fill_zero(at, UNIT_BYTES);
                }
                op.cursor += UNIT;
                continue;
            };
            let end = (unit + 1) * UNIT;
            if self.submit_stretch(index, piece.physical, end, core) == Submitted::Parked {
                return;
            }
        }
        self.finish_if_done(index, core);
    }

    /// The ends are there: the request's own part is put in, and they are written.
    pub(super) fn merged(&mut self, index: OpIndex, core: &mut ShardCore) {
        put_in(core.ops.get(index));
        let op = core.ops.get_mut(index);
        if op.operation == DataOperation::WriteZeroes {
            op.begin(
                Step::Zero,
                op.offset / UNIT * UNIT,
                units_to(op.range_end()) * UNIT,
            );
            self.transfer(index, core);
        } else {
            self.start_write(index, core);
        }
    }
}

/// Gives a request to a volume of small blocks memory for its ends when it has any. `false` when
/// it was parked until there is some.
pub(crate) fn take_edges(index: OpIndex, core: &mut ShardCore) -> bool {
    let op = core.ops.get(index);
    if op.edges.is_some() || !(has_head(op) || has_tail(op)) {
        return true;
    }
    let Some(edges) = core.memory.ends.take(ENDS_BYTES) else {
        let index = core.queued(index);
        core.memory.ends.wait(index);
        return false;
    };
    core.ops.get_mut(index).edges = Some(edges);
    true
}

/// The bytes that a request fetches: with memory for its ends, whole units.
pub(crate) const fn fetched(op: &Op) -> (u64, u64) {
    if op.edges.is_none() {
        return (op.offset, op.range_end());
    }
    (op.offset / UNIT * UNIT, units_to(op.range_end()) * UNIT)
}

/// Puts the ends that a read has fetched where its caller expects them.
#[inline]
pub(crate) fn deliver_edges(op: &Op) {
    if let (Some(buffer), Some(_)) = (&op.buffer, &op.edges) {
        copy_out(op, buffer);
    }
}

/// Where in the memory for the ends the unit of byte `at` lies, when it is one of them.
#[inline]
pub(crate) fn edge_offset(op: &Op, at: u64) -> Option<usize> {
    op.edges.as_ref()?;
    let unit = at / UNIT;
    let is_first = unit == op.offset / UNIT;
    let is_last = unit == (op.range_end() - 1) / UNIT;
    if is_first && (has_head(op) || (is_last && has_tail(op))) {
        Some(0)
    } else if is_last && has_tail(op) {
        Some(UNIT_BYTES)
    } else {
        None
    }
}

/// Copies the parts that a read or a comparison asked for from the ends to where the rest of it
/// is.
pub(super) fn copy_out(op: &Op, target: &DmaBuffer) {
    for_each_edge(op, |edges, at, start, length| {
        let mut bytes = [0; UNIT_BYTES];
        edges.copy_to_slice(at, &mut bytes[..length]);
        target.copy_from_slice(to_index(start - op.offset), &bytes[..length]);
    });
}

/// Copies a write's own parts into its ends; zeros for a write of zeros.
fn put_in(op: &Op) {
    for_each_edge(op, |edges, at, start, length| {
        let Some(buffer) = op.buffer.as_ref() else {
            edges.fill_zero(at, length);
            return;
        };
        let mut bytes = [0; UNIT_BYTES];
        let from = to_index(start - op.offset) + op.buffer_base as usize;
        buffer.copy_to_slice(from, &mut bytes[..length]);
        edges.copy_from_slice(at, &bytes[..length]);
    });
}

/// Calls `action` for each end with where its part begins in the memory for the ends and in the
/// volume, and how long it is.
fn for_each_edge(op: &Op, action: impl Fn(&DmaBuffer, usize, u64, usize)) {
    let Some(edges) = &op.edges else { return };
    let first = op.offset / UNIT;
    let last = (op.range_end() - 1) / UNIT;
    let units = if first == last {
        [Some(first), None]
    } else {
        [Some(first), Some(last)]
    };
    for unit in units.into_iter().flatten() {
        let Some(at) = edge_offset(op, unit * UNIT) else {
            continue;
        };
        let start = op.offset.max(unit * UNIT);
        let end = op.range_end().min((unit + 1) * UNIT);
        action(
            edges,
            at + to_index(start % UNIT),
            start,
            to_index(end - start),
        );
    }
}

const fn has_head(op: &Op) -> bool {
    !op.offset.is_multiple_of(UNIT)
}

const fn has_tail(op: &Op) -> bool {
    !op.range_end().is_multiple_of(UNIT)
}

fn to_index(value: u64) -> usize {
    usize::try_from(value).expect("a position within one buffer fits a usize")
}

const UNIT_BYTES: usize = crate::core::ZERO_BYTES;
