//! From a request to its commands: under lease and classified, or sent home.

use lode_block::{BlockDevice, Durability};
use lode_extent::{Piece, PoolBlock};
use lode_units::Instant;

use super::{PoolGuest, units_of};
use crate::classify::{CacheFacts, Classification, PieceFacts, WriteFacts, classify_write};
use crate::command::{self, Submitted};
use crate::core::ShardCore;
use crate::error::IoError;
use crate::host::{Pieces, UNIT, check_range, fetched, take_edges};
use crate::op::{OpIndex, Owner, Step};
use crate::request::{DataOperation, DataRequest, VolumeHandle};
use crate::stats::{HandOff, VolumeStats};
use crate::throttle::Throttle;

impl<D: BlockDevice> PoolGuest<D> {
    /// Takes a request that came at `since`; a slot must be free.
    #[inline]
    pub(crate) fn submit(&mut self, request: DataRequest, since: Instant, core: &mut ShardCore) {
        if self.is_closing {
            core.refuse(request, IoError::UnknownVolume);
            return;
        }
        let volume = self.volumes.get(request.volume);
        // What is wrong with a request the home says: it knows the volume as it is now.
        let is_sound = volume.is_some_and(|volume| {
            check_range(&request, volume.facts.block_size, volume.facts.size_bytes).is_ok()
        });
        let asked = request.durability;
        let durability = volume.map_or(asked, |volume| asked.max(volume.facts.durability));
        let owner = Owner::Client(request.token);
        let index = core.ops.take_up(owner, request, durability, since);
        self.active += 1;
        if is_sound {
            self.start(index, core);
        } else {
            let cause = match cause_of(core.ops.get(index).operation) {
                _ if self.lanes.is_empty() => HandOff::NoQueues,
                cause => cause.unwrap_or(HandOff::NoLease),
            };
            self.send_home(index, cause, core);
        }
    }

    /// Starts a request, or starts it anew.
    #[inline]
    pub(super) fn start(&mut self, index: OpIndex, core: &mut ShardCore) {
        let mut pieces = Pieces::new();
        match self.look_up(index, &mut pieces, core) {
            Ok(()) => {
                if core.ops.get(index).is_sub_block && !take_edges(index, core) {
                    return;
                }
                let may_defer = !core.ops.get(index).reasons.is_empty();
                core.ops.set_may_defer(index, may_defer);
                let op = core.ops.get_mut(index);
                let (start, end) = fetched(op);
                op.begin(op.step, start, end);
                self.transfer(index, &pieces, core);
            }
            Err(cause) => self.send_home(index, cause, core),
        }
    }

    /// Finds the places of a request that can be carried out here, and classifies it.
    #[inline]
    fn look_up(
        &mut self,
        index: OpIndex,
        pieces: &mut Pieces,
        core: &mut ShardCore,
    ) -> Result<(), HandOff> {
        if self.lanes.is_empty() {
            return Err(HandOff::NoQueues);
        }
        let op = core.ops.get_mut(index);
        if let Some(cause) = cause_of(op.operation) {
            return Err(cause);
        }
        let is_read = op.operation == DataOperation::Read;
        let volume = self.volumes.get_mut(op.volume).ok_or(HandOff::NoLease)?;
        op.is_sub_block = volume.facts.is_sub_block;
        // Every write holds its units at home: another one may have fetched their rest.
        if op.is_sub_block && !is_read {
            return Err(HandOff::SubBlock);
        }
        let units = units_of(op.offset, op.range_end());
        if !volume.leases.look_up(units, pieces) {
            return Err(HandOff::NoLease);
        }
        if is_read {
            op.step = Step::Read;
            return Ok(());
        }
        let facts = PieceFacts::of(pieces);
        let class = classify(facts, self.cache, op.durability);
        op.step = Step::Write;
        op.reasons = class.completion_work;
        op.command = class.command;
        if class.is_inline() && !self.cache.is_volatile && !facts.has_dirty_metadata {
            op.achieved = Durability::Data;
        }
        Ok(())
    }

    /// Whether a request would complete inline on this core if it started now.
    pub(crate) fn would_be_inline(&mut self, request: &DataRequest) -> bool {
        let is_read = request.operation == DataOperation::Read;
        let range_end = request.offset_bytes.saturating_add(request.length_bytes);
        let moves_data = cause_of(request.operation).is_none() && request.length_bytes > 0;
        let Some(volume) = self.volumes.get_mut(request.volume) else {
            return false;
        };
        let is_merged = volume.facts.is_sub_block && !is_read;
        if !moves_data || is_merged || self.lanes.is_empty() {
            return false;
        }
        let mut pieces = Pieces::new();
        let units = units_of(request.offset_bytes, range_end);
        let durability = request.durability.max(volume.facts.durability);
        volume.leases.look_up(units, &mut pieces)
            && (is_read || classify(PieceFacts::of(&pieces), self.cache, durability).is_inline())
    }

    /// The limits that a request to the volume is subject to, as far as they are known here.
    pub(crate) fn throttle(&self, handle: VolumeHandle) -> Option<&Throttle> {
        let throttle = &*self.volumes.get(handle)?.facts.throttle;
        Some(throttle).filter(|throttle| throttle.is_limited() && !self.is_closing)
    }

    /// The figures of a volume that is known here.
    pub(crate) fn volume_stats(&self, handle: VolumeHandle) -> Option<&VolumeStats> {
        Some(&*self.volumes.get(handle)?.stats)
    }

    /// Goes on with a request that a queue held.
    pub(crate) fn resume(&mut self, index: OpIndex, core: &mut ShardCore) {
        let op = core.ops.get_mut(index);
        op.is_queued = false;
        if op.cursor == op.start && op.outstanding == 0 {
            self.start(index, core);
            return;
        }
        // Part of it is under way. What remains may have lost its lease meanwhile.
        let rest = units_of(op.cursor, op.end);
        let mut pieces = Pieces::new();
        let volume = self.volumes.get_mut(op.volume);
        if volume.is_some_and(|volume| volume.leases.look_up(rest, &mut pieces)) {
            self.transfer(index, &pieces, core);
            return;
        }
        op.lost_lease = true;
        op.end = op.cursor;
        if op.is_step_done() {
            self.step_done(index, core);
        }
    }

    /// Submits what is left of a request along `pieces`.
    #[inline]
    pub(super) fn transfer(&mut self, index: OpIndex, pieces: &[Piece], core: &mut ShardCore) {
        for piece in pieces {
            let first = piece.logical.get();
            let piece_end = (first + u64::from(piece.count)) * UNIT;
            loop {
                let op = core.ops.get(index);
                let end = piece_end.min(op.end);
                if op.cursor >= end {
                    break;
                }
                let into = op.cursor / UNIT - first;
                let block = PoolBlock::new(piece.physical.get() + into);
                let place = self.layout.locate(block);
                let place = place.expect("a lease names blocks of its pool");
                let (lanes, volumes) = (&mut self.lanes, &self.volumes);
                let figures_of = |of| Some(&*volumes.get(of)?.stats);
                let outcome = command::submit_stretch(lanes, place, index, end, figures_of, core);
                if outcome == Submitted::Parked {
                    return;
                }
            }
        }
        if core.ops.get(index).is_step_done() {
            self.step_done(index, core);
        }
    }
}

fn classify(pieces: PieceFacts, cache: CacheFacts, durability: Durability) -> Classification {
    classify_write(&WriteFacts {
        pieces,
        cache,
        durability,
        extends: false,
        has_cached_pages: false,
    })
}

/// Why an operation is never carried out on a guest; `None` where it may be.
const fn cause_of(operation: DataOperation) -> Option<HandOff> {
    match operation {
        DataOperation::Read | DataOperation::Write => None,
        DataOperation::Flush => Some(HandOff::Flush),
        DataOperation::CompareAndWrite | DataOperation::WriteZeroes | DataOperation::Discard => {
            Some(HandOff::Mapping)
        }
    }
}
