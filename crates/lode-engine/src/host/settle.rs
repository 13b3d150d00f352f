//! The completion router: what is owed nothing completes at once; what owes metadata, a flush or
//! a commit goes through the deferred stage, in batches.

use lode_block::{BlockDevice, Durability, ErrorKind};
use lode_extent::PoolState;

use super::PoolHost;
use super::edges::{copy_out, deliver_edges};
use super::start::is_barrier;
use crate::classify::Reasons;
use crate::control::Completion;
use crate::core::ShardCore;
use crate::error::IoError;
use crate::flush::FlushedGroup;
use crate::op::{Failure, OpIndex, Owner, Step};
use crate::request::{DataCompletion, DataOperation};
use crate::route::{Inline, Route};

impl<D: BlockDevice> PoolHost<D> {
    /// Routes a request whose commands of this step have all ended. Runs in the poller's
    /// completion loop: here nothing is recorded, committed or waited for.
    #[inline]
    pub(super) fn step_done(&mut self, index: OpIndex, core: &mut ShardCore) {
        let op = core.ops.get(index);
        match Route::of(index, op, core.routing) {
            Route::Inline(token) => self.complete_inline(token, core),
            Route::Deferred(token) => self.deferred.push_back(token.enlist(core)),
            Route::Onward => match op.step {
                Step::Merge => self.merged(index, core),
                Step::Compare => self.compared(index, core),
                Step::Zero => self.enter_unmap(index, core),
                Step::Start
                | Step::Read
                | Step::Write
                | Step::Unmap
                | Step::Record
                | Step::Settle
                | Step::Away => {}
            },
        }
    }

    /// Completes a read or a pure overwrite. There is nothing here by which it could reach the
    /// pool's metadata.
    #[inline]
    fn complete_inline(&mut self, token: Inline, core: &mut ShardCore) {
        let index = token.index();
        let op = core.ops.get(index);
        if op.step == Step::Read {
            deliver_edges(op);
        }
        let handle = op.volume;
        let volume = self.volumes.get_mut(handle.slot, handle.generation);
        let figures = volume.map(|volume| {
            volume.let_go(index, core);
            &*volume.stats
        });
        token.complete(figures, core);
    }

    /// Compares what was read with what was expected, and writes when they are equal.
    fn compared(&mut self, index: OpIndex, core: &mut ShardCore) {
        let op = core.ops.get_mut(index);
        let Some(scratch) = op.scratch.take() else {
            return;
        };
        copy_out(op, &scratch);
        let length = usize::try_from(op.length).unwrap_or(usize::MAX);
        let mut found = vec![0; length];
        scratch.copy_to_slice(0, &mut found);
        let handle = op.volume;
        let block = self.volumes.get(handle.slot, handle.generation);
        let block = block.map_or(1, |volume| volume.block_size.bytes() as usize);
        let differs = op.buffer.as_ref().and_then(|buffer| {
            let mut blocks = found.chunks(block).enumerate();
            blocks.find(|(at, expected)| !buffer.equals(at * block, expected))
        });
        let mismatch = differs.map(|(at, _)| op.offset + (at * block) as u64);
        op.buffer_base = u32::try_from(length).unwrap_or(u32::MAX);
        core.memory.comparisons.give_back(scratch);
        match mismatch {
            Some(offset_bytes) => {
                self.complete(index, Err(IoError::Mismatch { offset_bytes }), core);
            }
            None if core.ops.get(index).edges.is_some() => self.start_merge(index, core),
            None => self.start_write(index, core),
        }
    }

    /// What is left is to wait for: a flush of what was written, a commit of what was recorded.
    /// A request that waits for neither ends here.
    pub(super) fn enter_settle(&mut self, index: OpIndex, core: &mut ShardCore) {
        let op = core.ops.get_mut(index);
        op.step = Step::Settle;
        let is_durable = op.durability >= Durability::Data;
        if op.needs_flush {
            op.waits += 1;
            core.stats.flush_waiters.increment();
            let handle = op.volume;
            if let Some(volume) = self.volumes.get(handle.slot, handle.generation) {
                volume.stats.flush_waiters.increment();
            }
            self.flushes.join(index);
        }
        let ticket = self.pool.recorded();
        if is_durable && ticket > self.pool.durable() {
            op.waits += 1;
            self.commit_wanted = true;
            self.committing.push_back((ticket, index));
        }
        self.settle(index, core);
    }

    /// Ends a request that waits for nothing any more.
    pub(super) fn settle(&mut self, index: OpIndex, core: &mut ShardCore) {
        let op = core.ops.get(index);
        if op.waits > 0 {
            return;
        }
        let result = match op.failure {
            Some(_) => Err(IoError::FlushFailed),
            None if !matches!(self.pool.state(), PoolState::Ready)
                && op.durability > Durability::None =>
            {
                Err(IoError::PoolUnavailable)
            }
            None => Ok(op.durability),
        };
        self.complete(index, result, core);
    }

    /// Counts flush commands of the group that runs, and for whom it was opened.
    pub(super) fn count_flushes(&self, count: u64, core: &ShardCore) {
        core.stats.flushes.add(count);
        let opener = self
            .flushes
            .opener()
            .map(|index| core.ops.get(index).volume);
        let volume = opener.and_then(|of| self.volumes.get(of.slot, of.generation));
        if let Some(volume) = volume {
            volume.stats.flushes.add(count);
        }
    }

    /// Ends the waiting of a flush group. After a failed flush nothing more can be promised.
    pub(super) fn flushed(&mut self, group: FlushedGroup, core: &mut ShardCore) {
        if group.failure.is_some() && !self.flush_failed {
            self.flush_failed = true;
            self.recall_pool(core);
        }
        for index in group.waiters {
            let op = core.ops.get_mut(index);
            op.waits -= 1;
            if let Some(error) = group.failure {
                let (offset, length) = (op.offset, op.length);
                let device = lode_units::DeviceIndex::new(0);
                op.fail(Failure {
                    device,
                    offset,
                    length,
                    error,
                });
            }
            self.settle(index, core);
        }
    }

    /// Ends the waiting of all whose changes are durable by now, or never will be.
    pub(super) fn wake_committed(&mut self, core: &mut ShardCore) -> usize {
        let durable = self.pool.durable();
        let has_failed = matches!(self.pool.state(), PoolState::Failed(_));
        let mut woken = 0;
        while let Some((ticket, index)) = self.committing.front().copied() {
            if ticket > durable && !has_failed {
                break;
            }
            self.committing.pop_front();
            core.ops.get_mut(index).waits -= 1;
            self.settle(index, core);
            woken += 1;
        }
        while let Some((ticket, index)) = self.space_waiters.front().copied() {
            if ticket > durable && !has_failed {
                break;
            }
            self.space_waiters.pop_front();
            core.wake(index);
            woken += 1;
        }
        if has_failed {
            core.wake_all(&mut self.metadata_waiters);
        }
        woken
    }

    /// Ends a request with `error`, or lets the commands that are in flight end first.
    pub(super) fn end_or_drain(&mut self, index: OpIndex, error: IoError, core: &mut ShardCore) {
        let op = core.ops.get_mut(index);
        if op.outstanding == 0 {
            self.complete(index, Err(error), core);
            return;
        }
        let (offset, length) = (op.cursor, op.end - op.cursor);
        let device = lode_units::DeviceIndex::new(0);
        let error = lode_block::DeviceError::local(ErrorKind::Internal);
        op.fail(Failure {
            device,
            offset,
            length,
            error,
        });
    }

    /// Ends a request: everything that it held is let go of, its owner is told.
    #[inline]
    pub(super) fn complete(
        &mut self,
        index: OpIndex,
        result: Result<Durability, IoError>,
        core: &mut ShardCore,
    ) {
        self.cancel_allocations(index, core);
        core.take_back_memory(index);
        let op = core.ops.get_mut(index);
        let (owner, buffer) = (op.owner, op.buffer.take());
        let reasons = match &result {
            Ok(_) if op.operation == DataOperation::Flush => op.reasons | Reasons::FLUSH,
            Ok(_) => op.reasons,
            Err(_) => op.reasons | Reasons::ERROR,
        };
        let handle = op.volume;
        // What came from another core is counted there.
        let is_ours = !matches!(owner, Owner::Peer(_));
        if is_ours {
            core.stats.count_completion(reasons);
        }
        if let Some(volume) = self.volumes.get_mut(handle.slot, handle.generation) {
            if is_ours {
                let latency = core.now.as_nanos().saturating_sub(op.started.as_nanos());
                let (operation, length) = (op.operation, op.length);
                volume
                    .stats
                    .record(operation, latency, length, result.is_ok(), reasons);
            }
            volume.let_go(index, core);
        }
        core.ops.free(index);
        match owner {
            Owner::Client(token) => {
                let done = DataCompletion {
                    token,
                    result,
                    buffer,
                };
                core.out.push(Completion::Data(done));
            }
            Owner::Control(slot) => self.controls.data_done(slot, result),
            Owner::Peer(sender) => self.answer(sender, handle, result, (reasons, buffer), core),
        }
    }

    /// Gives back the space that a request took and will not use.
    #[inline]
    pub(super) fn cancel_allocations(&mut self, index: OpIndex, core: &mut ShardCore) {
        while let Some(allocation) = core.ops.get_mut(index).allocations.pop() {
            self.pool.cancel(allocation);
        }
    }

    /// Lets go of the range of a write that has to start anew. A barrier keeps its own.
    pub(super) fn release_allocation_hold(&mut self, index: OpIndex, core: &mut ShardCore) {
        let op = core.ops.get_mut(index);
        if !op.holds_range || is_barrier(op.operation) {
            return;
        }
        op.holds_range = false;
        let handle = op.volume;
        if let Some(volume) = self.volumes.get_mut(handle.slot, handle.generation) {
            volume.release(index);
            core.ready.extend(volume.blocked.drain(..));
        }
    }
}
