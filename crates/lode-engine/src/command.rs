//! One command of a request: cut at what the device can carry, at the place that the caller has
//! found for it.

use lode_block::{BlockDevice, DeviceError, Operation, Request};
use lode_bus::{DmaBuffer, DmaSpan};
use lode_units::{DeviceIndex, Lba};

use crate::classify::DataCommand;
use crate::core::ShardCore;
use crate::host::{UNIT, edge_offset};
use crate::lane::{Lane, NotSubmitted};
use crate::op::{Failure, Op, OpIndex, Step};
use crate::request::VolumeHandle;
use crate::stats::{ShardStats, VolumeStats};
use crate::tag::{CommandOwner, SECTOR_BYTES};

/// What became of a stretch that was to be submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Submitted {
    /// All of it, or it failed and the request notes that.
    Yes,
    /// The device's queue is full; the request is parked.
    Parked,
}

/// Submits the command that begins at the request's cursor and ends at `end` at the latest.
/// `figures_of` has a volume's figures: asked for when a write is forced to the media.
#[inline]
pub(crate) fn submit_stretch<'a, D: BlockDevice>(
    lanes: &mut [Lane<D>],
    place: (DeviceIndex, u64),
    index: OpIndex,
    end: u64,
    figures_of: impl FnOnce(VolumeHandle) -> Option<&'a VolumeStats>,
    core: &mut ShardCore,
) -> Submitted {
    let (device, block) = place;
    let lane = &mut lanes[device.index()];
    let op = core.ops.get_mut(index);
    let length = (end - op.cursor).min(u64::from(lane.transfer_max_bytes()));
    let (data, length) = data_span(op, length, &core.zeros);
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
    match lane.submit_data(request) {
        Ok(()) => {
            op.cursor += length;
            op.outstanding += 1;
            let volume = op.volume;
            count(operation, &core.stats);
            if operation == Operation::WriteThrough
                && let Some(figures) = figures_of(volume)
            {
                figures.write_through_commands.increment();
            }
            Submitted::Yes
        }
        Err(NotSubmitted::Full) => {
            core.stats.queue_full_waits.increment();
            let index = core.queued(index);
            lane.park(index, core.ops.get(index));
            Submitted::Parked
        }
        Err(NotSubmitted::Failed(error)) => {
            fail_at_cursor(op, device, length, error);
            Submitted::Yes
        }
    }
}

/// Counts a command that a device has taken.
#[inline]
fn count(operation: Operation, stats: &ShardStats) {
    match operation {
        Operation::Read => stats.read_commands.increment(),
        Operation::WriteThrough => {
            stats.write_commands.increment();
            stats.write_through_commands.increment();
        }
        _ => stats.write_commands.increment(),
    }
}

/// Up to where the request's own memory holds its data: an end that is fetched whole lies
/// elsewhere.
#[inline]
pub(crate) fn middle_end(op: &Op) -> u64 {
    match edge_offset(op, op.range_end() - 1) {
        Some(_) => op.range_end() / UNIT * UNIT,
        None => op.range_end(),
    }
}

/// The memory of the command that begins at the cursor, and its length: it ends where the
/// request's own data begin or end, since zeros and fetched ends come from elsewhere.
#[inline]
fn data_span(op: &Op, length: u64, zeros: &DmaBuffer) -> (DmaSpan, u64) {
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
        return (zeros.span().part(0, narrow(length)), length);
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

#[inline]
fn narrow(value: u64) -> u32 {
    u32::try_from(value).expect("a position within one request fits 32 bits")
}
