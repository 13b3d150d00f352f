//! Carries out the metadata operations that a pool asks for.

use std::collections::VecDeque;

use lode_block::{BlockDevice, Completion, DeviceError, ErrorKind, Operation, Request};
use lode_bus::{DmaBuffer, DmaSpan};
use lode_extent::{IoFailure, MetadataIo, MetadataOp, Pool};
use lode_units::Lba;

use crate::core::ShardCore;
use crate::lane::{Lane, NotSubmitted};
use crate::shard::METADATA_OPERATIONS_MAX;
use crate::tag::CommandOwner;

/// The metadata operations of one pool that are under way, each in a slot of its own.
#[derive(Debug)]
pub(crate) struct MetadataPump {
    slots: Vec<Option<Running>>,
    /// Slots in use.
    running: usize,
    /// Slots whose commands are not all submitted.
    unsent: VecDeque<u16>,
    /// An operation that found no free buffer.
    held_back: Option<MetadataIo>,
}

#[derive(Debug)]
struct Running {
    io: MetadataIo,
    buffer: Option<DmaBuffer>,
    length_bytes: u32,
    sent_bytes: u32,
    outstanding: u32,
    retries: u8,
    failure: Option<DeviceError>,
}

impl MetadataPump {
    pub(crate) fn new() -> Self {
        Self {
            slots: std::iter::repeat_with(|| None).take(SLOTS).collect(),
            running: 0,
            unsent: VecDeque::with_capacity(SLOTS),
            held_back: None,
        }
    }

    /// Whether anything is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.running == 0 && self.held_back.is_none()
    }

    /// Takes what the pool asks for, as far as there is room, and submits commands.
    pub(crate) fn pump<D: BlockDevice>(
        &mut self,
        pool: &mut Pool,
        lanes: &mut [Lane<D>],
        core: &mut ShardCore,
    ) {
        while let Some(io) = self.held_back.take().or_else(|| pool.next_io()) {
            if let Err(io) = self.start(io, core) {
                self.held_back = Some(io);
                break;
            }
        }
        for _ in 0..self.unsent.len() {
            let Some(slot) = self.unsent.pop_front() else {
                break;
            };
            self.send(slot, pool, lanes, core);
        }
    }

    /// Gives the operation a slot and, unless it is a flush, a buffer.
    fn start(&mut self, io: MetadataIo, core: &mut ShardCore) -> Result<(), MetadataIo> {
        let Some(slot) = self.slots.iter().position(Option::is_none) else {
            return Err(io);
        };
        let length = match &io.op {
            MetadataOp::Read { count, .. } => *count as usize * BLOCK_BYTES,
            MetadataOp::Write { data, .. } => data.len(),
            MetadataOp::Flush => 0,
        };
        let mut buffer = None;
        if length > 0 {
            buffer = core.memory.metadata.take(length);
            let Some(buffer) = &buffer else {
                return Err(io);
            };
            if let MetadataOp::Write { data, .. } = &io.op {
                buffer.copy_from_slice(0, data);
            }
        }
        let length_bytes = u32::try_from(length).expect("a metadata operation is bounded");
        self.slots[slot] = Some(Running {
            io,
            buffer,
            length_bytes,
            sent_bytes: 0,
            outstanding: 0,
            retries: 0,
            failure: None,
        });
        self.running += 1;
        self.unsent
            .push_back(u16::try_from(slot).expect("there are few slots"));
        Ok(())
    }

    /// Submits the commands of a slot until the device's queue is full.
    fn send<D: BlockDevice>(
        &mut self,
        slot: u16,
        pool: &mut Pool,
        lanes: &mut [Lane<D>],
        core: &mut ShardCore,
    ) {
        let Some(running) = self.slots[usize::from(slot)].as_mut() else {
            return;
        };
        let lane = &mut lanes[running.io.device.index()];
        loop {
            let is_flush = matches!(running.io.op, MetadataOp::Flush);
            let all_sent = running.sent_bytes >= running.length_bytes;
            if all_sent && !(is_flush && running.outstanding == 0 && running.failure.is_none()) {
                break;
            }
            let length = (running.length_bytes - running.sent_bytes).min(lane.transfer_max_bytes());
            match lane.submit_reserved(running.request(slot, length, lane)) {
                Ok(()) => {
                    running.sent_bytes += length;
                    running.outstanding += 1;
                    if is_flush {
                        break;
                    }
                }
                Err(NotSubmitted::Full) => {
                    self.unsent.push_back(slot);
                    return;
                }
                Err(NotSubmitted::Failed(error)) => {
                    running.failure = Some(error);
                    running.sent_bytes = running.length_bytes;
                }
            }
        }
        if running.outstanding == 0 {
            self.conclude(slot, pool, core);
        }
    }

    /// Takes the completion of one command of a slot.
    pub(crate) fn completed(
        &mut self,
        slot: u16,
        completion: &Completion,
        pool: &mut Pool,
        core: &mut ShardCore,
    ) {
        let Some(running) = self.slots[usize::from(slot)].as_mut() else {
            return;
        };
        running.outstanding -= 1;
        if let Err(error) = completion.result {
            running.failure.get_or_insert(error);
            running.sent_bytes = running.length_bytes;
        }
        let is_sent = running.sent_bytes >= running.length_bytes;
        if running.outstanding > 0 || !is_sent || self.unsent.contains(&slot) {
            return;
        }
        self.conclude(slot, pool, core);
    }

    /// Repeats an operation none of whose commands is in flight where the device asks for that, a
    /// bounded number of times; otherwise ends it.
    fn conclude(&mut self, slot: u16, pool: &mut Pool, core: &mut ShardCore) {
        let Some(running) = self.slots[usize::from(slot)].as_mut() else {
            return;
        };
        let asks_for_retry = running
            .failure
            .is_some_and(|error| error.kind == ErrorKind::Retry);
        if asks_for_retry && running.retries < RETRIES_MAX {
            running.retries += 1;
            running.failure = None;
            running.sent_bytes = 0;
            core.stats.retries.increment();
            self.unsent.push_back(slot);
            return;
        }
        self.finish(slot, pool, core);
    }

    /// Tells the pool the outcome and frees the slot.
    fn finish(&mut self, slot: u16, pool: &mut Pool, core: &mut ShardCore) {
        let Some(running) = self.slots[usize::from(slot)].take() else {
            return;
        };
        self.running -= 1;
        let reads = matches!(running.io.op, MetadataOp::Read { .. });
        match (running.failure, &running.buffer) {
            (Some(error), _) => pool.complete_io(running.io.id, Err(failure_of(error))),
            (None, Some(buffer)) if reads => {
                let mut data = Vec::new();
                buffer.append_to(0, running.length_bytes as usize, &mut data);
                pool.complete_io(running.io.id, Ok(Some(&data)));
            }
            (None, _) => pool.complete_io(running.io.id, Ok(None)),
        }
        if let Some(buffer) = running.buffer {
            core.memory.metadata.give_back(buffer);
        }
    }
}

impl Running {
    /// The next command of this operation.
    fn request<D: BlockDevice>(&self, slot: u16, length: u32, lane: &Lane<D>) -> Request {
        let (operation, block) = match &self.io.op {
            MetadataOp::Read { block, .. } => (Operation::Read, *block),
            MetadataOp::Write {
                block,
                force_unit_access: true,
                ..
            } => (Operation::WriteThrough, *block),
            MetadataOp::Write { block, .. } => (Operation::Write, *block),
            MetadataOp::Flush => (Operation::Flush, 0),
        };
        let shift = lane.geometry().block_size.shift();
        let start_bytes = block * BLOCK_BYTES as u64 + u64::from(self.sent_bytes);
        let data = self.buffer.as_ref().map_or(DmaSpan::EMPTY, |buffer| {
            buffer.span().part(self.sent_bytes, length)
        });
        Request {
            tag: CommandOwner::Metadata(slot).tag(),
            operation,
            lba: Lba::new(start_bytes >> shift),
            block_count: length >> shift,
            data,
        }
    }
}

fn failure_of(error: DeviceError) -> IoFailure {
    match error.kind {
        ErrorKind::Media => IoFailure::Media,
        ErrorKind::Gone => IoFailure::Unavailable,
        ErrorKind::NoSpace => IoFailure::CapacityExceeded,
        _ => IoFailure::Other,
    }
}

const BLOCK_BYTES: usize = 4096;
const RETRIES_MAX: u8 = 8;
/// Flushes take a slot as well, but no buffer.
const SLOTS: usize = METADATA_OPERATIONS_MAX * 2;
