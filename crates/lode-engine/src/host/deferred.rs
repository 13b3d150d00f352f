//! The deferred stage: what failed is repeated or ended, what was written is recorded, what is to
//! go is unmapped; in bounded batches, between the polls of the devices.

use lode_block::{BlockDevice, Durability, ErrorKind};
use lode_extent::{ExtentError, LogicalBlock};

use super::PoolHost;
use super::edges::deliver_edges;
use super::start::UNIT;
use super::transfer::whole_units;
use crate::classify::Reasons;
use crate::core::ShardCore;
use crate::error::IoError;
use crate::op::{Failure, OpIndex, RETRIES_MAX, Step};

impl<D: BlockDevice> PoolHost<D> {
    /// Goes on to unmapping the whole units of a request.
    pub(super) fn enter_unmap(&mut self, index: OpIndex, core: &mut ShardCore) {
        let op = core.ops.get_mut(index);
        let handle = op.volume;
        if self.volumes.get(handle.slot, handle.generation).is_none() {
            self.complete(index, Err(IoError::UnknownVolume), core);
            return;
        }
        let wrote_edges = op.step == Step::Zero;
        op.needs_flush = wrote_edges && op.durability >= Durability::Data && self.cache.is_volatile;
        let (first, end) = whole_units(op);
        op.begin(Step::Unmap, first * UNIT, end * UNIT);
        self.deferred.push_back(core.queued(index));
    }

    /// The deferred stage: a bounded batch of requests that owe metadata work.
    pub(super) fn drain_deferred(&mut self, core: &mut ShardCore) -> usize {
        let batch = self.deferred.len().min(DEFERRED_BATCH);
        for _ in 0..batch {
            let Some(index) = self.deferred.pop_front() else {
                break;
            };
            let op = core.ops.get_mut(index);
            op.is_queued = false;
            match (op.failure, op.step) {
                (Some(failure), _) => self.step_failed(index, failure, core),
                (None, Step::Unmap) => self.unmap(index, core),
                // Another core's, or one that was deferred by order.
                (None, Step::Read | Step::Write) if op.owes_nothing() => {
                    if op.step == Step::Read {
                        deliver_edges(op);
                    }
                    op.reasons.set(Reasons::ORDERED, op.is_clients());
                    let reached = op.reached();
                    self.complete(index, Ok(reached), core);
                }
                (None, _) => {
                    op.step = Step::Record;
                    self.record(index, core);
                }
            }
        }
        batch
    }

    /// One bounded step of unmapping.
    fn unmap(&mut self, index: OpIndex, core: &mut ShardCore) {
        let op = core.ops.get_mut(index);
        if op.cursor >= op.end {
            self.enter_settle(index, core);
            return;
        }
        let handle = op.volume;
        let Some(volume) = self.volumes.get_mut(handle.slot, handle.generation) else {
            self.complete(index, Err(IoError::UnknownVolume), core);
            return;
        };
        volume.recent.forget();
        let first = LogicalBlock::new(op.cursor / UNIT);
        let count = u32::try_from((op.end - op.cursor) / UNIT).unwrap_or(u32::MAX);
        match self.pool.unmap(volume.id, first, count) {
            Ok(unmapped) => {
                op.cursor += unmapped.done * UNIT;
                self.deferred.push_back(core.queued(index));
            }
            Err(error) => self.metadata_refused(index, &error, core),
        }
    }

    /// Records the new blocks of a write, whose data are with the devices.
    fn record(&mut self, index: OpIndex, core: &mut ShardCore) {
        let handle = core.ops.get(index).volume;
        if let Some(volume) = self.volumes.get_mut(handle.slot, handle.generation) {
            volume.recent.forget();
        }
        while let Some(allocation) = core.ops.get_mut(index).allocations.pop() {
            if let Err((allocation, error)) = self.pool.record(allocation) {
                core.ops.get_mut(index).allocations.push(allocation);
                self.metadata_refused(index, &error, core);
                return;
            }
        }
        self.enter_settle(index, core);
    }

    /// Parks a request whose metadata work has to wait, or ends it.
    fn metadata_refused(&mut self, index: OpIndex, error: &ExtentError, core: &mut ShardCore) {
        match error {
            ExtentError::NotResident(missing) => {
                self.pool.load(*missing);
                self.wait_for_metadata(index, core);
            }
            ExtentError::JournalFull => {
                self.commit_wanted = true;
                self.wait_for_metadata(index, core);
            }
            ExtentError::UnknownVolume { .. } => {
                self.complete(index, Err(IoError::UnknownVolume), core);
            }
            ExtentError::ObjectDamaged { .. } | ExtentError::MetadataDamaged { .. } => {
                self.complete(index, Err(IoError::Damaged), core);
            }
            ExtentError::NoSpace { .. } => self.complete(index, Err(IoError::NoSpace), core),
            _ => self.complete(index, Err(IoError::PoolUnavailable), core),
        }
    }

    /// Repeats what the device asks to be repeated, a bounded number of times; otherwise ends
    /// the request with the first error.
    fn step_failed(&mut self, index: OpIndex, failure: Failure, core: &mut ShardCore) {
        let op = core.ops.get_mut(index);
        if failure.error.kind == ErrorKind::Retry && op.retries < RETRIES_MAX {
            op.retries += 1;
            op.failure = None;
            op.begin(op.step, op.start, op.end);
            core.stats.retries.increment();
            let index = core.queued(index);
            core.wake(index);
            return;
        }
        self.complete(index, Err(failure.into()), core);
    }
}

/// How many deferred requests one poll works on before the devices are looked at again.
const DEFERRED_BATCH: usize = 64;
