//! Replaying the journal: the transactions after the checkpoint, in their order.
//!
//! The ring is read from the checkpoint's tail on until a block is not the next one. With one
//! transaction written at a time, what is missing there was never durable; a later transaction
//! beyond it would prove the contrary and is reported as damage.

use std::collections::VecDeque;

use crate::core::{ApplyFault, Core};
use crate::error::{ExtentError, IoFailure};
use crate::format::block::{BLOCK_BYTES, as_block};
use crate::format::journal_block::{JournalBlock, decode};
use crate::format::record::Record;
use crate::format::superblock::Superblock;
use crate::io::METADATA_IO_BLOCKS_MAX;
use crate::io_queue::{InFlight, Purpose};
use crate::journal::Journal;
use crate::pool::Pool;
use crate::pool::publish::PublishReason;
use crate::pool::start::Start;
use crate::types::Ticket;

/// How far a replay has come.
#[derive(Debug)]
pub(crate) struct Replay {
    /// Next block to be read.
    next_read: u64,
    is_reading: bool,
    /// Blocks of the transaction that is not complete yet.
    partial: Vec<JournalBlock>,
    /// Complete transactions that wait to be applied.
    complete: VecDeque<Transaction>,
    /// The incarnation of the last complete transaction.
    incarnation: u64,
    /// One past the last complete transaction.
    end: u64,
    ticket: Ticket,
    /// Where the chain of blocks ended, once it did.
    broken_at: Option<u64>,
    /// Blocks looked at beyond that.
    beyond: u32,
}

#[derive(Debug)]
struct Transaction {
    records: Vec<Record>,
    applied: usize,
    ticket: Ticket,
}

/// Blocks beyond the end of the chain that are searched for a later transaction.
const BEYOND_MAX: u32 = 64;

impl Replay {
    pub(super) fn new(tail: u64) -> Self {
        Self {
            next_read: tail,
            is_reading: false,
            partial: Vec::new(),
            complete: VecDeque::new(),
            incarnation: 0,
            end: tail,
            ticket: Ticket::default(),
            broken_at: None,
            beyond: 0,
        }
    }

    /// Takes in the block that was read for `sequence`; an error where it proves a loss.
    fn take(
        &mut self,
        sequence: u64,
        block: Option<JournalBlock>,
        superblock: &Superblock,
    ) -> Result<(), ExtentError> {
        let newest = superblock.incarnation;
        // What an earlier incarnation left behind the end that a start has found never was: a
        // write of a later one that was torn can even make it whole again.
        let oldest = match superblock.journal_resume {
            Some(resume) if sequence >= resume => newest,
            _ => self.incarnation,
        };
        if let Some(broken_at) = self.broken_at {
            self.beyond += 1;
            let is_later = block.is_some_and(|block| {
                block.sequence == sequence
                    && block.first_sequence > broken_at
                    && block.incarnation >= oldest
            });
            return if is_later {
                Err(ExtentError::JournalDamaged {
                    sequence: broken_at,
                })
            } else {
                Ok(())
            };
        }
        let next = block.filter(|block| {
            block.sequence == sequence
                && (oldest..=newest).contains(&block.incarnation)
                && self.continues(block)
        });
        let Some(block) = next else {
            self.broken_at = Some(sequence);
            self.partial.clear();
            return Ok(());
        };
        let is_last = sequence + 1 == block.first_sequence + u64::from(block.blocks);
        self.partial.push(block);
        if is_last {
            self.finish_transaction(sequence)?;
        }
        Ok(())
    }

    fn continues(&self, block: &JournalBlock) -> bool {
        match self.partial.first() {
            None => block.first_sequence == block.sequence,
            Some(first) => {
                (first.first_sequence, first.blocks, first.ticket)
                    == (block.first_sequence, block.blocks, block.ticket)
                    && first.incarnation == block.incarnation
            }
        }
    }

    fn finish_transaction(&mut self, sequence: u64) -> Result<(), ExtentError> {
        let blocks = std::mem::take(&mut self.partial);
        let last = blocks.last().expect("a transaction has a block");
        let (incarnation, ticket) = (last.incarnation, last.ticket);
        let bytes: Vec<u8> = blocks.into_iter().flat_map(|block| block.records).collect();
        let mut records = Vec::new();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (record, length) =
                Record::decode(rest).map_err(|_fault| ExtentError::JournalDamaged { sequence })?;
            records.push(record);
            rest = &rest[length..];
        }
        self.incarnation = incarnation;
        self.end = sequence + 1;
        self.complete.push_back(Transaction {
            records,
            applied: 0,
            ticket,
        });
        Ok(())
    }

    fn is_read(&self, core: &Core) -> bool {
        let everything = core.superblock.journal_tail + core.geometry.journal_blocks;
        self.next_read == everything || self.beyond >= BEYOND_MAX
    }
}

impl Pool {
    /// Applies what was read, reads on, and ends the start when there is no more.
    pub(super) fn replay(&mut self, mut replay: Replay) {
        if let Err(fault) = self.apply_complete(&mut replay) {
            match fault {
                ApplyFault::Absent(what) => self.request(what),
                ApplyFault::Damaged(_) | ApplyFault::Unreadable(_) | ApplyFault::Conflict => {
                    self.fail(ExtentError::JournalDamaged {
                        sequence: replay.end,
                    });
                }
            }
            self.start = Some(Start::Replaying(replay));
            return;
        }
        if replay.is_reading {
            self.start = Some(Start::Replaying(replay));
        } else if replay.is_read(self.core_mut()) {
            self.end_replay(&replay);
        } else {
            self.read_journal(&mut replay);
            self.start = Some(Start::Replaying(replay));
        }
    }

    fn apply_complete(&mut self, replay: &mut Replay) -> Result<(), ApplyFault> {
        let is_table_damaged = self.damaged_table.is_some();
        let core = self.core.as_mut().expect("the pool was found");
        let mut freed = Vec::new();
        while let Some(transaction) = replay.complete.front_mut() {
            while let Some(record) = transaction.records.get(transaction.applied) {
                let applied = if core.has_to_wait(record, is_table_damaged) {
                    core.keep(record)
                } else {
                    core.apply(record, &mut freed)
                };
                match applied {
                    // The rest of the pool is served without it.
                    Err(ApplyFault::Damaged(_) | ApplyFault::Unreadable(_)) => core.keep(record)?,
                    other => other?,
                }
                for run in freed.drain(..) {
                    core.space
                        .release(&core.geometry, run)
                        .map_err(|_conflict| ApplyFault::Conflict)?;
                }
                transaction.applied += 1;
                self.counters.replayed_records += 1;
            }
            replay.ticket = transaction.ticket;
            replay.complete.pop_front();
        }
        Ok(())
    }

    fn read_journal(&mut self, replay: &mut Replay) {
        let core = self.core.as_ref().expect("the pool was found");
        let ring = core.geometry.journal_blocks;
        let until_wrap = ring - replay.next_read % ring;
        let until_end = core.superblock.journal_tail + ring - replay.next_read;
        let limit = u64::from(METADATA_IO_BLOCKS_MAX);
        let count = until_wrap.min(until_end).min(limit);
        let block = core.geometry.journal_block(replay.next_read);
        self.io.read(
            self.caller_position[0],
            block,
            u32::try_from(count).expect("at most the limit"),
            Purpose::Journal {
                sequence: replay.next_read,
            },
        );
        replay.next_read += count;
        replay.is_reading = true;
    }

    pub(in crate::pool) fn journal_read(
        &mut self,
        io: InFlight,
        sequence: u64,
        outcome: Result<&[u8], IoFailure>,
    ) {
        let Some(Start::Replaying(replay)) = self.start.as_mut() else {
            return;
        };
        let core = self.core.as_ref().expect("the pool was found");
        replay.is_reading = false;
        let bytes = match outcome {
            Ok(bytes) => bytes,
            Err(failure) => {
                self.fail_io(io, failure);
                return;
            }
        };
        let pool = core.fold();
        for (sequence, bytes) in (sequence..).zip(bytes.chunks(BLOCK_BYTES)) {
            let address = core.geometry.journal_block(sequence);
            let block = as_block(bytes)
                .and_then(|block| decode(block, address, pool))
                .ok();
            if let Err(error) = replay.take(sequence, block, &core.superblock) {
                self.fail(error);
                return;
            }
        }
    }

    fn end_replay(&mut self, replay: &Replay) {
        let core = self.core.as_mut().expect("the pool was found");
        core.is_replaying = false;
        if !core.can_keep(replay.end - core.superblock.journal_tail) {
            let block = self.damaged_block.expect("what is kept lacks a block");
            self.fail(self.metadata_damaged(block));
            return;
        }
        let core = self.core_mut();
        let incarnation = core.superblock.incarnation + 1;
        let tail = core.superblock.journal_tail;
        core.journal = Journal::new(
            core.geometry.journal_blocks,
            core.fold(),
            incarnation,
            (tail, replay.end),
            replay.ticket.max(core.superblock.ticket),
        );
        core.reserve_kept();
        let mut superblock = core.superblock.clone();
        superblock.incarnation = incarnation;
        superblock.journal_resume = Some(replay.end);
        superblock.is_clean = false;
        self.start = Some(Start::Publishing);
        self.begin_publish(superblock, PublishReason::Start);
    }
}
