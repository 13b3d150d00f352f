//! Whether a request may owe more than its commands, found out before it takes a slot: by the
//! lookup and the classifier that it will meet itself.

use lode_block::{BlockDevice, Durability};
use lode_extent::LogicalBlock;

use super::start::{UNIT, units_to};
use super::{Pieces, PoolHost};
use crate::classify::{Classification, PieceFacts, WriteFacts, classify_write};
use crate::core::ShardCore;
use crate::request::{DataOperation, DataRequest, VolumeHandle};
use crate::throttle::Throttle;
use crate::volume::Volume;
use crate::waiting::{Origin, Waiting};

impl<D: BlockDevice> PoolHost<D> {
    /// Whether the request, which was checked, would complete inline if it started now. A range
    /// that another request holds, and a mapping that is not in memory, make it wait for others:
    /// then it would not.
    pub(crate) fn would_be_inline(
        &mut self,
        request: &DataRequest,
        durability: Durability,
    ) -> bool {
        let is_read = match request.operation {
            DataOperation::Read => true,
            DataOperation::Write => false,
            DataOperation::CompareAndWrite
            | DataOperation::WriteZeroes
            | DataOperation::Discard
            | DataOperation::Flush => return false,
        };
        let handle = request.volume;
        let first = request.offset_bytes / UNIT;
        let end = units_to(request.offset_bytes + request.length_bytes);
        let Some(volume) = self.volumes.get_mut(handle.slot, handle.generation) else {
            // It will be told so.
            return true;
        };
        if volume.is_held_at_all(first, end) {
            return false;
        }
        let count = u32::try_from(end - first).expect("a transfer is bounded by 1 MiB");
        let mut pieces = Pieces::new();
        match volume.recent.covering(first, count) {
            Some(piece) => pieces.push(piece),
            None => {
                let first = LogicalBlock::new(first);
                let found = self.pool.lookup(volume.id, first, count, &mut pieces);
                if found.is_err() {
                    return false;
                }
            }
        }
        is_read
            || self
                .classify(PieceFacts::of(&pieces), durability)
                .is_inline()
    }

    /// Starts a request that waited, and was checked again; a slot must be free.
    pub(crate) fn begin(&mut self, waiting: Waiting, durability: Durability, core: &mut ShardCore) {
        let (owner, since) = (waiting.owner(), waiting.since);
        if let Origin::Peer {
            is_charged: false, ..
        } = waiting.origin
            && let Some(throttle) = self.throttle(waiting.request.volume)
        {
            let request = &waiting.request;
            throttle.reserve(request.operation, request.length_bytes, core.now);
        }
        let index = core.ops.take_up(owner, waiting.request, durability, since);
        self.start(index, core);
    }

    /// Classifies a write to pieces of these facts.
    #[inline]
    pub(super) fn classify(&self, pieces: PieceFacts, durability: Durability) -> Classification {
        classify_write(&WriteFacts {
            pieces,
            cache: self.cache,
            durability,
            extends: false,
            has_cached_pages: false,
        })
    }

    /// The limits that a request to the volume is subject to: none where there are none, or where
    /// volume or pool are about to go and their requests only have to be told.
    pub(crate) fn throttle(&self, handle: VolumeHandle) -> Option<&Throttle> {
        let is_going = |volume: &&Volume| volume.is_closing || self.is_exporting;
        let volume = self.volume(handle).filter(|volume| !is_going(volume))?;
        Some(&*volume.throttle).filter(|throttle| throttle.is_limited())
    }

    /// An open volume.
    pub(crate) fn volume(&self, handle: VolumeHandle) -> Option<&Volume> {
        self.volumes.get(handle.slot, handle.generation)
    }
}
