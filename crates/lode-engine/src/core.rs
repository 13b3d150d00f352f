//! What all pools of a shard share: the table of requests, their completions, the clock's last
//! reading, and the memory for what no client lent a buffer for.

use std::collections::VecDeque;
use std::sync::Arc;

use lode_bus::{BusError, DmaBuffer, DmaMemory, IovaSpace, PagePreference};
use lode_units::Instant;
use lode_units::limits::ALLOCATION_UNIT_BYTES;

use crate::control::{Asker, Completion, ControlError, ControlReply};
use crate::error::IoError;
use crate::memory::OwnMemory;
use crate::op::{OpIndex, OpTable};
use crate::peers::Peers;
use crate::port::Body;
use crate::request::{DataCompletion, DataRequest};
use crate::route::Routing;
use crate::shard::ShardLimits;
use crate::stats::ShardStats;
use crate::waiting::WaitingRoom;

/// The shared part of a shard.
#[derive(Debug)]
pub(crate) struct ShardCore {
    pub(crate) ops: OpTable,
    /// Requests that have no slot yet.
    pub(crate) room: WaitingRoom,
    /// Requests to be resumed, in order.
    pub(crate) ready: VecDeque<OpIndex>,
    /// Completions not handed out yet.
    pub(crate) out: Vec<Completion>,
    pub(crate) stats: Arc<ShardStats>,
    pub(crate) now: Instant,
    pub(crate) peers: Peers,
    pub(crate) routing: Routing,
    pub(crate) memory: OwnMemory,
    /// Memory that holds zeros: one allocation unit of it.
    pub(crate) zeros: DmaBuffer,
    zero_memory: DmaMemory,
}

impl ShardCore {
    /// Allocates everything that the data path will use.
    pub(crate) fn new(
        space: &IovaSpace,
        preference: PagePreference,
        limits: ShardLimits,
    ) -> Result<Self, BusError> {
        let memory = OwnMemory::new(space, preference, &limits)?;
        let zero_memory = space.allocate(ZERO_BYTES, PagePreference::Ordinary)?;
        let zeros = DmaBuffer::cut(&zero_memory, ZERO_BYTES).pop();
        Ok(Self {
            ops: OpTable::new(limits.requests_max, limits.deferrable_max),
            room: WaitingRoom::new(limits.waiting_max),
            ready: VecDeque::with_capacity(limits.requests_max),
            out: Vec::with_capacity(limits.requests_max),
            stats: Arc::new(ShardStats::default()),
            now: Instant::ZERO,
            peers: Peers::default(),
            routing: Routing::default(),
            memory,
            zeros: zeros.expect("a memory of that length holds one buffer of that length"),
            zero_memory,
        })
    }

    /// Whether nobody waits and every kind of request finds a slot.
    #[inline]
    pub(crate) const fn is_uncontended(&self) -> bool {
        self.room.is_empty() && self.ops.admits_any()
    }

    /// Shows how many requests are where.
    #[inline]
    pub(crate) fn show_load(&self) {
        let stats = &self.stats;
        stats.requests_in_flight.set(self.ops.in_use() as u64);
        stats.requests_deferrable.set(self.ops.deferrable() as u64);
        let waiting = self.room.waiting.len() + self.room.errands.len();
        stats.requests_waiting.set(waiting as u64);
        stats.requests_held.set(self.room.held.len() as u64);
    }

    /// Every memory that must be mapped for a device before this shard uses it.
    pub(crate) fn memories(&self) -> impl Iterator<Item = &DmaMemory> {
        self.memory
            .memories()
            .chain(std::iter::once(&self.zero_memory))
    }

    /// Ends a request that was not taken.
    pub(crate) fn refuse(&mut self, request: DataRequest, error: IoError) {
        self.out.push(Completion::Data(DataCompletion {
            token: request.token,
            result: Err(error),
            buffer: request.buffer,
        }));
    }

    /// Ends a control request.
    pub(crate) fn answer(&mut self, asker: Asker, result: Box<Result<ControlReply, ControlError>>) {
        match asker {
            Asker::Client(token) => self.out.push(Completion::Control { token, result }),
            Asker::Peer(peer, token) => {
                self.peers.post(peer, Body::ControlDone { token, result });
            }
        }
    }

    /// Takes back the memory that a request had beside its own buffer.
    #[inline]
    pub(crate) fn take_back_memory(&mut self, index: OpIndex) {
        let op = self.ops.get_mut(index);
        if let Some(scratch) = op.scratch.take() {
            self.memory.comparisons.give_back(scratch);
        }
        if let Some(edges) = op.edges.take() {
            self.memory.ends.give_back(edges);
        }
    }

    /// Marks a request as one that a queue will resume, and gives the queue its index.
    pub(crate) fn queued(&mut self, index: OpIndex) -> OpIndex {
        self.ops.get_mut(index).is_queued = true;
        index
    }

    /// Takes a request from the queue it was in to those that are resumed next.
    pub(crate) fn wake(&mut self, index: OpIndex) {
        self.ready.push_back(index);
    }

    /// Takes all requests of a queue to those that are resumed next.
    pub(crate) fn wake_all(&mut self, queue: &mut VecDeque<OpIndex>) {
        self.ready.extend(queue.drain(..));
    }
}

/// The length of the memory that holds zeros.
#[expect(clippy::cast_possible_truncation, reason = "4096")]
pub(crate) const ZERO_BYTES: usize = ALLOCATION_UNIT_BYTES as usize;
