//! One device of a pool with the bounds of its queue.

use lode_block::{
    BlockDevice, Completion, DeviceError, ErrorKind, Geometry, RejectReason, Request,
};
use lode_units::Instant;

use crate::fair::FairQueue;
use crate::op::{Op, OpIndex};
use crate::stats::ShardStats;
use crate::tag::COMMAND_MAX_BYTES;

/// A device of a pool: requests take the slots of its queue up to a limit, the rest is kept for
/// the journal and for flushes, so that these go on when requests have filled the queue.
#[derive(Debug)]
pub(crate) struct Lane<D> {
    device: D,
    name: String,
    /// Requests that wait for a slot; the volumes take turns.
    waiters: FairQueue<OpIndex>,
    data_limit: usize,
    transfer_max_bytes: u32,
    is_dirty: bool,
    errors: u64,
}

/// Why a command was not submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotSubmitted {
    /// No slot is free for it now.
    Full,
    /// It will never be.
    Failed(DeviceError),
}

impl<D: BlockDevice> Lane<D> {
    /// A lane over `device`.
    pub(crate) fn new(name: String, device: D, waiters_max: usize) -> Self {
        let geometry = device.geometry();
        let depth = usize::try_from(geometry.queue_depth_max).unwrap_or(usize::MAX);
        let reserved = (depth / 8).clamp(1, RESERVED_MAX);
        Self {
            name,
            waiters: FairQueue::new(waiters_max, waiters_max),
            data_limit: depth.saturating_sub(reserved).max(1),
            transfer_max_bytes: geometry.transfer_max_bytes.min(COMMAND_MAX_BYTES),
            is_dirty: false,
            errors: 0,
            device,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    #[inline]
    pub(crate) fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }

    /// The longest transfer of one command, in bytes.
    #[inline]
    pub(crate) const fn transfer_max_bytes(&self) -> u32 {
        self.transfer_max_bytes
    }

    pub(crate) const fn errors(&self) -> u64 {
        self.errors
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.device.in_flight()
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.device.next_deadline()
    }

    /// Whether a request's command would be taken now.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.device.in_flight() < self.data_limit
    }

    /// Lets a request wait for a slot.
    pub(crate) fn park(&mut self, index: OpIndex, op: &Op) {
        let left = op.end.saturating_sub(op.cursor);
        let parked = self.waiters.push(op.volume, left, index);
        parked.expect("a request waits once, and there is a place for each");
    }

    /// The waiting request whose turn it is, when there is room for its command.
    #[inline]
    pub(crate) fn next_waiter(&mut self) -> Option<OpIndex> {
        if self.waiters.is_empty() || !self.has_room() {
            return None;
        }
        self.waiters.pop()
    }

    /// Submits a request's command, leaving the reserved slots alone.
    #[inline]
    pub(crate) fn submit_data(&mut self, request: Request) -> Result<(), NotSubmitted> {
        if !self.has_room() {
            return Err(NotSubmitted::Full);
        }
        self.submit_reserved(request)
    }

    /// Submits a command of the journal or of a flush, which may take the last slot.
    #[inline]
    pub(crate) fn submit_reserved(&mut self, request: Request) -> Result<(), NotSubmitted> {
        let Err(rejected) = self.device.submit(request) else {
            self.is_dirty = true;
            return Ok(());
        };
        let kind = match rejected.reason {
            RejectReason::Full => return Err(NotSubmitted::Full),
            RejectReason::Gone => ErrorKind::Gone,
            RejectReason::Invalid => ErrorKind::Invalid,
        };
        self.errors += 1;
        Err(NotSubmitted::Failed(DeviceError::local(kind)))
    }

    /// Shows the device what was submitted: one doorbell for all of it. Whether there was
    /// anything to show.
    #[inline]
    pub(crate) fn kick(&mut self, stats: &ShardStats) -> bool {
        let is_dirty = std::mem::take(&mut self.is_dirty);
        if is_dirty {
            stats.doorbells.increment();
            self.device.kick();
        }
        is_dirty
    }

    /// Appends completions.
    #[inline]
    pub(crate) fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) -> usize {
        let count = self.device.poll(now, completions);
        if count > 0 {
            let first = completions.len() - count;
            let failed = completions[first..]
                .iter()
                .filter(|done| done.result.is_err())
                .count();
            self.errors += failed as u64;
        }
        count
    }

    /// The device, given back.
    pub(crate) fn into_device(self) -> D {
        self.device
    }

    /// The device, for its owner's own questions.
    pub(crate) const fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }
}

const RESERVED_MAX: usize = 16;
