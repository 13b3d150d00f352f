//! The device operations that wait to be handed out, and what those under way are for.

use std::collections::{BTreeMap, VecDeque};

use lode_units::DeviceIndex;

use crate::error::IoOperation;
use crate::io::{DeviceSpec, METADATA_IO_BLOCKS_MAX, MetadataIo, MetadataOp};
use crate::load::MissingBlock;
use crate::types::{IoId, PoolBlock};

/// What an operation is for: decides who learns its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A block where a superblock may be.
    Probe,
    /// A block of a tree or of the space map.
    Load {
        what: MissingBlock,
        block: PoolBlock,
    },
    /// A part of the journal, at import.
    Journal { sequence: u64 },
    /// A step of a group commit.
    Commit,
    /// A block of a checkpoint.
    Checkpoint,
    /// A flush on the way to a new superblock.
    PublishFlush,
    /// A copy of a new superblock.
    PublishCopy,
}

/// An operation under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    pub(crate) purpose: Purpose,
    pub(crate) operation: IoOperation,
    /// Position in the caller's list.
    pub(crate) device: usize,
    pub(crate) block: u64,
    pub(crate) count: u32,
    /// How often it was tried before.
    pub(crate) retries: u8,
}

/// How often a read that gave nothing usable is tried again: much of what a medium does not
/// deliver at once it delivers when it is asked again.
const READ_RETRIES_MAX: u8 = 3;

/// Operations asked for and under way.
#[derive(Debug, Default)]
pub(crate) struct IoQueue {
    next_id: u64,
    ready: VecDeque<MetadataIo>,
    in_flight: BTreeMap<IoId, InFlight>,
    flushes: u64,
}

impl IoQueue {
    pub(crate) fn read(&mut self, device: usize, block: u64, count: u32, purpose: Purpose) {
        let under_way = InFlight {
            purpose,
            operation: IoOperation::Read,
            device,
            block,
            count,
            retries: 0,
        };
        self.push(under_way, MetadataOp::Read { block, count });
    }

    /// Asks for a read that failed once more; `false` when that was done often enough.
    pub(crate) fn read_again(&mut self, mut under_way: InFlight) -> bool {
        if under_way.operation != IoOperation::Read || under_way.retries >= READ_RETRIES_MAX {
            return false;
        }
        under_way.retries += 1;
        let (block, count) = (under_way.block, under_way.count);
        self.push(under_way, MetadataOp::Read { block, count });
        true
    }

    /// Asks for a write of whole blocks, at most [`METADATA_IO_BLOCKS_MAX`] of them.
    pub(crate) fn write(
        &mut self,
        device: usize,
        block: u64,
        data: Box<[u8]>,
        force_unit_access: bool,
        purpose: Purpose,
    ) {
        let count = u32::try_from(data.len() / 4096).expect("a short write");
        assert!(count <= METADATA_IO_BLOCKS_MAX, "a short write");
        let under_way = InFlight {
            purpose,
            operation: IoOperation::Write,
            device,
            block,
            count,
            retries: 0,
        };
        let op = MetadataOp::Write {
            block,
            data,
            force_unit_access,
        };
        self.push(under_way, op);
    }

    pub(crate) fn flush(&mut self, device: usize, purpose: Purpose) {
        let under_way = InFlight {
            purpose,
            operation: IoOperation::Flush,
            device,
            block: 0,
            count: 0,
            retries: 0,
        };
        self.flushes += 1;
        self.push(under_way, MetadataOp::Flush);
    }

    /// Asks for a flush of every device that needs one; says of how many.
    pub(crate) fn flush_caches(&mut self, devices: &[DeviceSpec], purpose: Purpose) -> usize {
        let mut asked = 0;
        for (position, device) in devices.iter().enumerate() {
            if device.has_volatile_cache {
                self.flush(position, purpose);
                asked += 1;
            }
        }
        asked
    }

    pub(crate) fn next(&mut self) -> Option<MetadataIo> {
        self.ready.pop_front()
    }

    /// Takes back what was an operation for; `None` for one that the queue did not hand out.
    pub(crate) fn complete(&mut self, id: IoId) -> Option<InFlight> {
        self.in_flight.remove(&id)
    }

    /// Whether a read of a metadata block is asked for or under way.
    pub(crate) fn is_loading(&self, block: PoolBlock) -> bool {
        self.in_flight.values().any(
            |io| matches!(io.purpose, Purpose::Load { block: loading, .. } if loading == block),
        )
    }

    /// Drops everything that was not handed out yet, but reads of metadata.
    pub(crate) fn keep_loads_only(&mut self) {
        let in_flight = &self.in_flight;
        self.ready.retain(|io| {
            in_flight
                .get(&io.id)
                .is_some_and(|io| matches!(io.purpose, Purpose::Load { .. }))
        });
    }

    /// Flushes asked for so far.
    pub(crate) fn flushes(&self) -> u64 {
        self.flushes
    }

    fn push(&mut self, under_way: InFlight, op: MetadataOp) {
        let id = IoId::new(self.next_id);
        self.next_id += 1;
        let device = u16::try_from(under_way.device).expect("at most 16 devices");
        self.in_flight.insert(id, under_way);
        self.ready.push_back(MetadataIo {
            id,
            device: DeviceIndex::new(device),
            op,
        });
    }
}
