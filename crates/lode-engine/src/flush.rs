//! Group flush: one flush of every device with a volatile cache for all requests that wait.

use lode_block::{BlockDevice, DeviceError, ErrorKind, Operation, Request};
use lode_bus::DmaSpan;
use lode_units::Lba;

use crate::lane::{Lane, NotSubmitted};
use crate::op::OpIndex;
use crate::tag::CommandOwner;

/// The flush groups of one pool: the one that runs, and the one that gathers.
///
/// A request that joins before the flush is submitted is satisfied by it; one that comes later
/// waits for the next.
#[derive(Debug, Default)]
pub(crate) struct FlushGroups {
    running: Vec<OpIndex>,
    gathering: Vec<OpIndex>,
    /// Devices that the running group still has to be sent to.
    unsent: Vec<usize>,
    outstanding: usize,
    retries: u8,
    failure: Option<DeviceError>,
}

/// A group that ended.
#[derive(Debug)]
pub(crate) struct FlushedGroup {
    pub(crate) waiters: Vec<OpIndex>,
    pub(crate) failure: Option<DeviceError>,
}

impl FlushGroups {
    /// Lets `op` wait for the next group.
    pub(crate) fn join(&mut self, op: OpIndex) {
        self.gathering.push(op);
    }

    /// The request that made the running group necessary.
    pub(crate) fn opener(&self) -> Option<OpIndex> {
        self.running.first().copied()
    }

    /// Whether no request waits.
    pub(crate) const fn is_idle(&self) -> bool {
        self.running.is_empty() && self.gathering.is_empty()
    }

    /// Starts the group that gathers when none runs, and submits what is to be submitted.
    /// Returns how many flush commands were submitted, and the group when it needed none.
    pub(crate) fn pump<D: BlockDevice>(
        &mut self,
        lanes: &mut [Lane<D>],
    ) -> (u64, Option<FlushedGroup>) {
        if self.running.is_empty() && !self.gathering.is_empty() {
            std::mem::swap(&mut self.running, &mut self.gathering);
            self.retries = 0;
            self.gather_lanes(lanes);
        }
        let submitted = self.send(lanes);
        (submitted, self.take_if_done())
    }

    /// Takes the completion of one flush command.
    pub(crate) fn completed<D: BlockDevice>(
        &mut self,
        result: Result<(), DeviceError>,
        lanes: &[Lane<D>],
    ) -> Option<FlushedGroup> {
        self.outstanding -= 1;
        if let Err(error) = result {
            self.failure.get_or_insert(error);
        }
        let is_done = self.outstanding == 0 && self.unsent.is_empty();
        let asks_for_retry = self
            .failure
            .is_some_and(|error| error.kind == ErrorKind::Retry);
        if is_done && asks_for_retry && self.retries < RETRIES_MAX {
            self.retries += 1;
            self.failure = None;
            self.gather_lanes(lanes);
            return None;
        }
        self.take_if_done()
    }

    fn gather_lanes<D: BlockDevice>(&mut self, lanes: &[Lane<D>]) {
        let volatile = lanes
            .iter()
            .enumerate()
            .filter(|(_, lane)| lane.geometry().has_volatile_cache());
        self.unsent.extend(volatile.map(|(index, _)| index));
    }

    fn send<D: BlockDevice>(&mut self, lanes: &mut [Lane<D>]) -> u64 {
        let mut submitted = 0;
        self.unsent.retain(
            |index| match lanes[*index].submit_reserved(flush_request()) {
                Ok(()) => {
                    self.outstanding += 1;
                    submitted += 1;
                    false
                }
                Err(NotSubmitted::Full) => true,
                Err(NotSubmitted::Failed(error)) => {
                    self.failure.get_or_insert(error);
                    false
                }
            },
        );
        submitted
    }

    fn take_if_done(&mut self) -> Option<FlushedGroup> {
        if self.running.is_empty() || self.outstanding > 0 || !self.unsent.is_empty() {
            return None;
        }
        Some(FlushedGroup {
            waiters: std::mem::take(&mut self.running),
            failure: self.failure.take(),
        })
    }
}

fn flush_request() -> Request {
    Request {
        tag: CommandOwner::Flush.tag(),
        operation: Operation::Flush,
        lba: Lba::new(0),
        block_count: 0,
        data: DmaSpan::EMPTY,
    }
}

const RETRIES_MAX: u8 = 8;
