//! One queue with what stands in front of it.

use std::collections::{BTreeMap, VecDeque};

use lode_block::{
    BlockDevice, Completion, Geometry, Operation, RejectReason, Rejected, Request, Tag,
};
use lode_bus::DmaSpan;
use lode_engine::is_metadata_command;
use lode_units::{BlockSize, Instant};

use super::{Bench, Defect, JOURNAL, SUPERBLOCK, UNIT_BYTES, is_write};

/// A device with a [`Defect`].
#[derive(Debug)]
pub(crate) struct Tampered<D> {
    device: D,
    position: usize,
    bench: Bench,
    /// Requests that were answered here.
    answered: Vec<Tag>,
    /// Requests that wait here to be sent.
    held: VecDeque<Request>,
    /// Commands whose end is told late.
    late: Vec<Tag>,
    /// Ends that wait for a flush.
    ended: Vec<Completion>,
    /// A write that was answered and not sent.
    parked: Option<Parked>,
    is_flushing: bool,
    /// Reads under way, and how many of each tag have not ended.
    reads: BTreeMap<u64, (Vec<DmaSpan>, usize)>,
    writes: u64,
    arrived: Vec<Completion>,
}

#[derive(Debug)]
struct Parked {
    /// What to send; `None` once it is sent.
    request: Option<Request>,
    polls: u32,
}

impl<D: BlockDevice> Tampered<D> {
    pub(crate) fn new(device: D, position: usize, bench: Bench) -> Self {
        Self {
            device,
            position,
            bench,
            answered: Vec::new(),
            held: VecDeque::new(),
            late: Vec::new(),
            ended: Vec::new(),
            parked: None,
            is_flushing: false,
            reads: BTreeMap::new(),
            writes: 0,
            arrived: Vec::new(),
        }
    }

    fn is_swallowed(&mut self, operation: Operation) -> bool {
        self.writes += u64::from(is_write(operation));
        match self.bench.defect {
            Defect::FlushIgnored => operation == Operation::Flush,
            Defect::WriteLost => is_write(operation) && self.writes.is_multiple_of(64),
            _ => false,
        }
    }

    /// Answers the flush before a transaction and owes it; tells the end of a transaction late; a
    /// superblock waits for what is owed.
    fn submit_metadata_first(&mut self, request: Request) -> Result<(), Rejected> {
        let mut state = self.bench.state.borrow_mut();
        if request.operation == Operation::Flush {
            state.owed[self.position] = true;
            self.answered.push(request.tag);
            return Ok(());
        }
        let is_owed = is_write(request.operation) && state.owed.contains(&true);
        match self.bench.kind(&request) {
            Some(JOURNAL) if is_owed => self.late.push(request.tag),
            Some(SUPERBLOCK) if is_owed => {
                state.is_flush_due = state.owed.clone();
                self.held.push_back(request);
                return Ok(());
            }
            _ => {}
        }
        drop(state);
        let tag = request.tag;
        let sent = self.device.submit(request);
        if sent.is_err() {
            self.late.retain(|late| *late != tag);
        }
        sent
    }

    /// Answers a transaction that only frees, and keeps it until the next one comes.
    fn submit_freed_early(&mut self, request: Request) -> Result<(), Rejected> {
        if !is_write(request.operation) {
            return self.device.submit(request);
        }
        if self.parked.is_some() {
            self.held.push_back(request);
            return Ok(());
        }
        let is_journal = self.bench.kind(&request) == Some(JOURNAL);
        if !is_journal || !self.bench.frees_only(&request) {
            return self.device.submit(request);
        }
        let bytes = self.bench.bytes(request.data);
        self.bench.parking.copy_from_slice(0, &bytes);
        self.answered.push(request.tag);
        let data = DmaSpan {
            iova: self.bench.parking.iova(),
            ..request.data
        };
        let request = Request {
            tag: OWN,
            data,
            ..request
        };
        self.parked = Some(Parked {
            request: Some(request),
            polls: 0,
        });
        Ok(())
    }

    /// Sends what is due of ours.
    fn send_own(&mut self) {
        let is_due = self.bench.state.borrow().is_flush_due[self.position];
        if is_due && !self.is_flushing {
            let flush = Request {
                tag: OWN,
                operation: Operation::Flush,
                lba: lode_units::Lba::new(0),
                block_count: 0,
                data: DmaSpan::EMPTY,
            };
            match self.device.submit(flush) {
                Ok(()) => self.is_flushing = true,
                Err(rejected) if rejected.reason == RejectReason::Full => {}
                Err(_gone) => self.own_ended(),
            }
        }
        if let Some(parked) = &mut self.parked {
            parked.polls += 1;
            let is_due = !self.held.is_empty() || parked.polls > PARKED_POLLS_MAX;
            if let Some(request) = parked.request.take_if(|_| is_due) {
                match self.device.submit(request) {
                    Ok(()) => {}
                    Err(rejected) if rejected.reason == RejectReason::Full => {
                        parked.request = Some(rejected.request);
                    }
                    Err(_gone) => self.own_ended(),
                }
            }
        }
        self.device.kick();
    }

    fn own_ended(&mut self) {
        self.is_flushing = false;
        self.parked = None;
        let mut state = self.bench.state.borrow_mut();
        state.owed[self.position] = false;
        state.is_flush_due[self.position] = false;
    }

    /// Takes what the device has completed.
    fn take(&mut self, completion: Completion) {
        if completion.tag == OWN {
            self.own_ended();
            return;
        }
        let Completion { tag, .. } = completion;
        if let Some(position) = self.late.iter().position(|late| *late == tag) {
            self.late.swap_remove(position);
            let mut state = self.bench.state.borrow_mut();
            state.is_flush_due = state.owed.clone();
            self.ended.push(completion);
            return;
        }
        if let Some((spans, left)) = self.reads.get_mut(&tag.0) {
            spans.iter().for_each(|span| self.bench.accept(*span));
            *left -= 1;
            if *left == 0 {
                self.reads.remove(&tag.0);
            }
        }
        self.arrived.push(completion);
    }

    /// Lets go of what waited for a command of ours.
    fn release(&mut self) {
        let is_owed = self.bench.state.borrow().owed.contains(&true);
        if is_owed || self.parked.is_some() {
            return;
        }
        self.arrived.append(&mut self.ended);
        while let Some(request) = self.held.pop_front() {
            let tag = request.tag;
            match self.device.submit(request) {
                Ok(()) => {}
                Err(rejected) if rejected.reason == RejectReason::Full => {
                    self.held.push_front(rejected.request);
                    break;
                }
                Err(_gone) => self.answered.push(tag),
            }
        }
        self.device.kick();
    }
}

impl<D: BlockDevice> BlockDevice for Tampered<D> {
    fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }

    fn submit(&mut self, mut request: Request) -> Result<(), Rejected> {
        let shift = BlockSize::B4096.shift() - self.geometry().block_size.shift();
        self.bench.note(self.position, &request, shift);
        if self.is_swallowed(request.operation) {
            self.answered.push(request.tag);
            return Ok(());
        }
        let is_metadata = is_metadata_command(request.tag);
        match self.bench.defect {
            Defect::WriteThroughIgnored if request.operation == Operation::WriteThrough => {
                request.operation = Operation::Write;
            }
            Defect::MetadataFirst if is_metadata => return self.submit_metadata_first(request),
            Defect::FreedEarly if is_metadata => return self.submit_freed_early(request),
            Defect::TearsAccepted if is_metadata && request.operation == Operation::Read => {
                let (tag, span) = (request.tag, request.data);
                self.device.submit(request)?;
                let (spans, left) = self.reads.entry(tag.0).or_default();
                spans.push(span);
                *left += 1;
                return Ok(());
            }
            _ => {}
        }
        self.device.submit(request)
    }

    fn kick(&mut self) {
        self.device.kick();
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) -> usize {
        let room = completions.capacity() - completions.len();
        if matches!(self.bench.defect, Defect::None | Defect::LyingController) {
            return self.device.poll(now, completions);
        }
        self.send_own();
        let mut found = Vec::with_capacity(room.max(1));
        self.device.poll(now, &mut found);
        found.into_iter().for_each(|one| self.take(one));
        self.release();
        let answered = self.answered.drain(..);
        self.arrived.extend(answered.map(|tag| Completion {
            tag,
            result: Ok(()),
        }));
        let count = self.arrived.len().min(room);
        completions.extend(self.arrived.drain(..count));
        count
    }

    fn in_flight(&self) -> usize {
        let here = self.answered.len() + self.held.len() + self.ended.len() + self.arrived.len();
        here + self.device.in_flight()
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.device.next_deadline()
    }
}

/// Marks commands of ours: no command of the engine's has this tag.
const OWN: Tag = Tag(u64::MAX);
/// How many polls a write is kept although nothing comes behind it.
const PARKED_POLLS_MAX: u32 = 400;
const _: () = assert!(UNIT_BYTES == 4096);
