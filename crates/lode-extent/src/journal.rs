//! The journal in memory: the open transaction, the sealed ones on their way to the ring, and
//! how much of the ring is taken.

use std::collections::VecDeque;

use crate::format::block::Block;
use crate::format::geometry::Geometry;
use crate::format::journal_block::{TRANSACTION_BYTES_MAX, encode_transaction, transaction_blocks};
use crate::format::record::Record;
use crate::space::Run;
use crate::types::Ticket;

/// From this many bytes on a transaction is committed without being asked for.
const AUTOMATIC_COMMIT_BYTES: usize = TRANSACTION_BYTES_MAX / 2;

/// Where a group commit stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitStep {
    /// Nothing is under way.
    Idle,
    /// The data that the transaction makes reachable is being put on the medium.
    FlushData,
    /// The transaction is being written.
    Write,
    /// The transaction is being put on the medium.
    FlushJournal,
}

/// A transaction that has its place in the ring.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) first_sequence: u64,
    pub(crate) blocks: Vec<Box<Block>>,
    pub(crate) ticket: Ticket,
    /// Blocks of the pool that are free once it is durable.
    pub(crate) freed: Vec<Run>,
    /// Devices (bit by pool order) that must be flushed before it is written.
    pub(crate) flush_first: u16,
}

/// The journal's state.
#[derive(Debug)]
pub(crate) struct Journal {
    open: Vec<u8>,
    open_freed: Vec<Run>,
    sealed: VecDeque<Batch>,
    /// Number of the next block to be sealed.
    head: u64,
    /// First block that recovery would read.
    tail: u64,
    capacity: u64,
    incarnation: u64,
    pool: u64,
    recorded: Ticket,
    durable: Ticket,
    /// Devices (bit by pool order) that took data since their last flush for a commit.
    unflushed: u16,
    pub(crate) step: CommitStep,
    pub(crate) outstanding: usize,
    is_commit_wanted: bool,
    /// Blocks of the ring that changes may not take.
    reserved: u64,
}

impl Journal {
    /// A journal whose next block is `head`, with everything up to `ticket` durable.
    pub(crate) fn new(
        capacity: u64,
        pool: u64,
        incarnation: u64,
        (tail, head): (u64, u64),
        ticket: Ticket,
    ) -> Self {
        Self {
            open: Vec::with_capacity(TRANSACTION_BYTES_MAX),
            open_freed: Vec::new(),
            sealed: VecDeque::new(),
            head,
            tail,
            capacity,
            incarnation,
            pool,
            recorded: ticket,
            durable: ticket,
            unflushed: 0,
            step: CommitStep::Idle,
            outstanding: 0,
            is_commit_wanted: false,
            reserved: 0,
        }
    }

    /// Leaves `blocks` of the ring to what checkpoints record again.
    pub(crate) fn reserve(&mut self, blocks: u64) {
        self.reserved = blocks;
    }

    pub(crate) fn recorded(&self) -> Ticket {
        self.recorded
    }

    pub(crate) fn durable(&self) -> Ticket {
        self.durable
    }

    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// Blocks of the ring that are taken, the open transaction included.
    pub(crate) fn used(&self) -> u64 {
        self.head + transaction_blocks(self.open.len()) - self.tail
    }

    /// Blocks of the ring.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Whether a change of at most `bytes` bytes of records fits the ring.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let more = if self.open.len() + bytes > TRANSACTION_BYTES_MAX {
            transaction_blocks(self.open.len()) + transaction_blocks(bytes)
        } else {
            transaction_blocks(self.open.len() + bytes)
        };
        self.head + more + self.reserved - self.tail <= self.capacity
    }

    /// Adds one change: its records stay in one transaction. `freed` are the blocks it frees,
    /// `data_on` the devices (bit by pool order) whose new data it makes reachable.
    pub(crate) fn append(
        &mut self,
        geometry: &Geometry,
        records: &[Record],
        freed: &[Run],
        data_on: u16,
    ) -> Ticket {
        let start = self.open.len();
        for record in records {
            record.encode(&mut self.open);
        }
        if self.open.len() > TRANSACTION_BYTES_MAX {
            let change = self.open.split_off(start);
            self.seal(geometry);
            self.open.extend_from_slice(&change);
        }
        self.open_freed.extend_from_slice(freed);
        self.unflushed |= data_on;
        self.recorded = Ticket::new(self.recorded.get() + 1);
        self.is_commit_wanted |= self.open.len() >= AUTOMATIC_COMMIT_BYTES;
        self.recorded
    }

    /// Closes the open transaction: what is recorded later goes to another one.
    pub(crate) fn seal(&mut self, geometry: &Geometry) {
        if self.open.is_empty() {
            return;
        }
        let blocks = encode_transaction(
            &self.open,
            self.head,
            self.recorded,
            self.incarnation,
            self.pool,
            |sequence| geometry.journal_block(sequence),
        );
        self.open.clear();
        let first_sequence = self.head;
        self.head += u64::try_from(blocks.len()).expect("a short transaction");
        self.sealed.push_back(Batch {
            first_sequence,
            blocks,
            ticket: self.recorded,
            freed: std::mem::take(&mut self.open_freed),
            flush_first: std::mem::take(&mut self.unflushed),
        });
    }

    /// Number of the next block to be sealed.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    pub(crate) fn want_commit(&mut self) {
        self.is_commit_wanted |= !self.open.is_empty();
    }

    /// The transaction to write next; seals the open one where a commit is wanted and no other
    /// one waits, so that everything recorded meanwhile goes with it.
    pub(crate) fn front(&mut self, geometry: &Geometry) -> Option<&mut Batch> {
        if self.sealed.is_empty() && self.is_commit_wanted {
            self.is_commit_wanted = false;
            self.seal(geometry);
        }
        self.sealed.front_mut()
    }

    /// Transactions that wait or are being written.
    pub(crate) fn backlog(&self) -> usize {
        self.sealed.len()
    }

    /// Whether everything recorded is durable.
    pub(crate) fn is_settled(&self) -> bool {
        self.open.is_empty() && self.sealed.is_empty()
    }

    /// The front transaction is durable; gives it back.
    pub(crate) fn settle(&mut self) -> Batch {
        let batch = self.sealed.pop_front().expect("a commit was under way");
        self.durable = self.durable.max(batch.ticket);
        batch
    }

    /// A checkpoint holds everything before block `tail`.
    pub(crate) fn advance_tail(&mut self, tail: u64) {
        assert!(self.tail <= tail && tail <= self.head, "the tail rises");
        self.tail = tail;
    }

    /// What is wrong with the journal's account.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.used() > self.capacity {
            return Err("the journal holds more than its ring");
        }
        if self.durable > self.recorded {
            return Err("more is durable than recorded");
        }
        Ok(())
    }
}
