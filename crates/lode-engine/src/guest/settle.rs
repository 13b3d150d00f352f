//! What becomes of a request whose commands have ended, and of one that the home has ended.

use lode_block::{BlockDevice, Durability, ErrorKind};

use super::{PoolGuest, units_of};
use crate::classify::Reasons;
use crate::control::Completion;
use crate::core::ShardCore;
use crate::error::IoError;
use crate::host::deliver_edges;
use crate::op::Step;
use crate::op::{Failure, OpIndex, Owner, RETRIES_MAX};
use crate::port::{Answer, Body, Errand, UnitRange};
use crate::request::{DataCompletion, DataOperation, DataRequest, Token};
use crate::route::Route;
use crate::stats::HandOff;

impl<D: BlockDevice> PoolGuest<D> {
    /// Routes a request whose commands have all ended.
    #[inline]
    pub(super) fn step_done(&mut self, index: OpIndex, core: &mut ShardCore) {
        let op = core.ops.get(index);
        match Route::of(index, op, core.routing) {
            Route::Inline(token) => {
                if op.step == Step::Read {
                    deliver_edges(op);
                }
                let figures = self.volumes.get(op.volume).map(|volume| &*volume.stats);
                token.complete(figures, core);
                self.active -= 1;
            }
            Route::Deferred(token) => self.deferred.push_back(token.enlist(core)),
            Route::Onward => {}
        }
    }

    /// Carries on with what failed, lost its lease, or owes a flush.
    pub(super) fn drain_deferred(&mut self, core: &mut ShardCore) {
        while let Some(index) = self.deferred.pop_front() {
            let op = core.ops.get_mut(index);
            op.is_queued = false;
            if let Some(failure) = op.failure {
                self.step_failed(index, failure, core);
            } else if op.lost_lease {
                op.lost_lease = false;
                op.reasons = Reasons::empty();
                self.send_home(index, HandOff::NoLease, core);
            } else if op.owes_nothing() {
                op.reasons |= Reasons::ORDERED;
                let reached = op.reached();
                self.complete(index, Ok(reached), core);
            } else {
                self.send_for_flush(index, core);
            }
        }
    }

    fn step_failed(&mut self, index: OpIndex, failure: Failure, core: &mut ShardCore) {
        let op = core.ops.get_mut(index);
        if failure.error.kind == ErrorKind::Retry && op.retries < RETRIES_MAX {
            op.retries += 1;
            op.failure = None;
            op.lost_lease = false;
            op.begin(op.step, op.offset, op.offset);
            core.stats.retries.increment();
            let index = core.queued(index);
            core.wake(index);
            return;
        }
        self.complete(index, Err(failure.into()), core);
    }

    /// Sends a request to the pool's home. None of its commands is under way.
    pub(super) fn send_home(&mut self, index: OpIndex, cause: HandOff, core: &mut ShardCore) {
        let has_queues = !self.lanes.is_empty();
        core.take_back_memory(index);
        let op = core.ops.get_mut(index);
        let moves_data = matches!(op.operation, DataOperation::Read | DataOperation::Write);
        let wanted = if has_queues && moves_data && op.length > 0 {
            units_of(op.offset, op.offset.saturating_add(op.length))
        } else {
            UnitRange::EMPTY
        };
        let request = DataRequest {
            token: Token(0),
            volume: op.volume,
            operation: op.operation,
            durability: op.durability,
            offset_bytes: op.offset,
            length_bytes: op.length,
            buffer: op.buffer.take(),
        };
        self.send(index, request, (wanted, cause), core);
    }

    /// Asks the home for the flush, and the commit, that a write owes whose data are written.
    fn send_for_flush(&mut self, index: OpIndex, core: &mut ShardCore) {
        let op = core.ops.get(index);
        let wanted = units_of(op.offset, op.range_end());
        let request = DataRequest {
            token: Token(0),
            volume: op.volume,
            operation: DataOperation::Flush,
            durability: op.durability,
            offset_bytes: 0,
            length_bytes: 0,
            buffer: None,
        };
        self.send(index, request, (wanted, HandOff::Flush), core);
    }

    fn send(
        &self,
        index: OpIndex,
        request: DataRequest,
        (wanted, cause): (UnitRange, HandOff),
        core: &mut ShardCore,
    ) {
        let op = core.ops.get_mut(index);
        op.step = Step::Away;
        op.reasons |= Reasons::HOME;
        core.stats.count_hand_off(cause);
        core.ops.set_may_defer(index, true);
        let errand = Errand {
            op: index,
            is_charged: self.volumes.get(request.volume).is_some(),
            request,
            wanted,
        };
        core.peers.post(self.home, Body::Request(errand));
    }

    /// The home has ended an errand.
    pub(crate) fn answered(&mut self, answer: Answer, core: &mut ShardCore) {
        if let Some(grant) = answer.grant {
            self.volumes.take(*grant, &self.name, core);
        }
        let op = core.ops.get_mut(answer.op);
        op.reasons |= answer.reasons;
        op.buffer = op.buffer.take().or(answer.buffer);
        // A flush that a write sent for says less than the write has reached.
        let is_write = op.operation == DataOperation::Write;
        let reached = op.durability;
        let result = answer.result.map(|durability| match is_write {
            true => durability.max(reached),
            false => durability,
        });
        self.complete(answer.op, result, core);
    }

    /// Ends a request.
    fn complete(
        &mut self,
        index: OpIndex,
        result: Result<Durability, IoError>,
        core: &mut ShardCore,
    ) {
        let op = core.ops.get(index);
        if op.step == Step::Read && result.is_ok() {
            deliver_edges(op);
        }
        core.take_back_memory(index);
        let op = core.ops.get_mut(index);
        let (owner, buffer, handle) = (op.owner, op.buffer.take(), op.volume);
        let error = match &result {
            Ok(_) => Reasons::empty(),
            Err(_) => Reasons::ERROR,
        };
        let reasons = op.reasons | error;
        core.stats.count_completion(reasons);
        if let Some(volume) = self.volumes.get(handle) {
            let latency = core.now.as_nanos().saturating_sub(op.started.as_nanos());
            let (operation, length) = (op.operation, op.length);
            volume
                .stats
                .record(operation, latency, length, result.is_ok(), reasons);
        }
        core.ops.free(index);
        self.active -= 1;
        let Owner::Client(token) = owner else {
            debug_assert!(false, "a guest works for clients only");
            return;
        };
        core.out.push(Completion::Data(DataCompletion {
            token,
            result,
            buffer,
        }));
    }
}
