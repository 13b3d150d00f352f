//! A request in progress: one slot of a fixed table.

mod table;

use lode_block::{DeviceError, Durability, ErrorKind};
use lode_bus::DmaBuffer;
use lode_extent::Allocation;
use lode_units::{DeviceIndex, Instant};

use crate::classify::{DataCommand, Reasons};
use crate::error::IoError;
use crate::port::{PeerIndex, Serial, UnitRange};
use crate::request::{DataOperation, DataRequest, Token, VolumeHandle};

pub(crate) use table::OpTable;

/// A slot of the [`OpTable`].
pub(crate) type OpIndex = u16;

/// Who is told when a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The caller that submitted it.
    Client(Token),
    /// The control request in this slot, which needed it done.
    Control(u16),
    /// Another core, which sent it here.
    Peer(Sender),
}

/// The request of another core on whose behalf one of ours runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sender {
    pub(crate) peer: PeerIndex,
    pub(crate) op: OpIndex,
    /// The units for which it would like leases.
    pub(crate) wanted: UnitRange,
}

/// What a request is doing.
///
/// ```text
/// Start → Read ──────────────────────────────► (complete)
/// Start (→ Merge) → Write ─► (complete inline)
///                   Write → Record → Settle ─► (complete)
/// Start → Compare → as a write
/// Start (→ Merge) → Zero → Unmap → Settle ───► (complete)
/// Start → Settle  (flush) ───────────────────► (complete)
///
/// on a guest:
/// Start → Read ──────────────────────────────► (complete)
/// Start → Write → (complete inline), or Away for a flush and a commit
/// Start → Away ──────────────────────────────► (complete)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Not mapped yet: it will be looked up and classified, perhaps again.
    Start,
    /// Its commands fill the caller's buffer.
    Read,
    /// Its commands read what is to be compared.
    Compare,
    /// Its commands fetch the units that it covers only in part.
    Merge,
    /// Its commands write data.
    Write,
    /// Its commands zero the units that are covered only in part.
    Zero,
    /// Its whole units are being unmapped.
    Unmap,
    /// Its data are written; its new blocks are being recorded.
    Record,
    /// It waits for a flush, a commit, or both.
    Settle,
    /// The home of its pool works on it.
    Away,
}

/// A request in progress.
#[derive(Debug)]
pub(crate) struct Op {
    is_in_use: bool,
    pub(crate) owner: Owner,
    pub(crate) volume: VolumeHandle,
    pub(crate) operation: DataOperation,
    pub(crate) step: Step,
    pub(crate) durability: Durability,
    pub(crate) achieved: Durability,
    pub(crate) command: DataCommand,
    pub(crate) reasons: Reasons,
    /// The range asked for, in bytes of the volume.
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// The range that the commands of this step cover: the range asked for, widened to whole
    /// units where those are new.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Up to where commands have been submitted.
    pub(crate) cursor: u64,
    pub(crate) outstanding: u32,
    /// How many of flush and commit it still waits for.
    pub(crate) waits: u8,
    pub(crate) retries: u8,
    /// Past the check for barriers: in flight as far as they are concerned.
    pub(crate) is_admitted: bool,
    /// Its volume's blocks are smaller than the device's.
    pub(crate) is_sub_block: bool,
    /// It may owe more than its commands: it counts against the bound on such requests.
    may_defer: bool,
    /// In some queue, which will resume it.
    pub(crate) is_queued: bool,
    /// Holds a range of its volume.
    pub(crate) holds_range: bool,
    /// Some barrier waits for it to end.
    pub(crate) is_watched: bool,
    /// How often it has waited for space.
    pub(crate) space_waits: u8,
    pub(crate) needs_flush: bool,
    /// A lease was recalled while part of it was not submitted: the home carries it out.
    pub(crate) lost_lease: bool,
    /// Reached the volume's end when it started, so that the last unit counts as whole. Decided
    /// once: the volume may be resized meanwhile.
    pub(crate) reaches_end: bool,
    pub(crate) started: Instant,
    pub(crate) failure: Option<Failure>,
    pub(crate) buffer: Option<DmaBuffer>,
    /// Where in the buffer the data of a write begin.
    pub(crate) buffer_base: u32,
    pub(crate) scratch: Option<DmaBuffer>,
    /// The two units at its ends, where the volume's blocks are smaller than the device's.
    pub(crate) edges: Option<DmaBuffer>,
    pub(crate) allocations: Vec<Allocation>,
    /// The recall that a barrier waits for, once it was sent.
    pub(crate) recall: Option<Serial>,
}

/// The first command that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) device: DeviceIndex,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) error: DeviceError,
}

impl From<Failure> for IoError {
    fn from(failure: Failure) -> Self {
        if failure.error.kind == ErrorKind::NoSpace {
            return Self::NoSpace;
        }
        Self::Device {
            device: failure.device,
            offset_bytes: failure.offset,
            length_bytes: failure.length,
            error: failure.error,
        }
    }
}

impl Op {
    /// A slot that no request is in.
    const fn vacant() -> Self {
        Self {
            is_in_use: false,
            owner: Owner::Client(Token(0)),
            volume: VolumeHandle::NONE,
            operation: DataOperation::Flush,
            step: Step::Start,
            durability: Durability::None,
            achieved: Durability::None,
            command: DataCommand::Plain,
            reasons: Reasons::empty(),
            offset: 0,
            length: 0,
            start: 0,
            end: 0,
            cursor: 0,
            outstanding: 0,
            waits: 0,
            retries: 0,
            is_admitted: false,
            is_sub_block: false,
            may_defer: false,
            is_queued: false,
            holds_range: false,
            is_watched: false,
            space_waits: 0,
            needs_flush: false,
            lost_lease: false,
            reaches_end: false,
            started: Instant::ZERO,
            failure: None,
            buffer: None,
            buffer_base: 0,
            scratch: None,
            edges: None,
            allocations: Vec::new(),
            recall: None,
        }
    }

    /// Takes up a request. Every field is written in place, and the list of allocations keeps
    /// its memory from request to request.
    #[inline]
    fn take_up(
        &mut self,
        owner: Owner,
        request: DataRequest,
        durability: Durability,
        now: Instant,
    ) {
        debug_assert!(
            self.buffer.is_none() && self.scratch.is_none() && self.edges.is_none(),
            "a vacant slot holds no memory"
        );
        self.is_in_use = true;
        self.owner = owner;
        self.volume = request.volume;
        self.operation = request.operation;
        self.durability = durability;
        self.achieved = Durability::None;
        self.command = DataCommand::Plain;
        self.reasons = Reasons::empty();
        self.offset = request.offset_bytes;
        self.length = request.length_bytes;
        self.outstanding = 0;
        self.waits = 0;
        self.retries = 0;
        self.is_admitted = false;
        self.is_sub_block = false;
        self.is_queued = false;
        self.holds_range = false;
        self.is_watched = false;
        self.space_waits = 0;
        self.needs_flush = false;
        self.lost_lease = false;
        self.reaches_end = false;
        self.started = now;
        self.failure = None;
        self.buffer = request.buffer;
        self.buffer_base = 0;
        self.recall = None;
        self.begin(Step::Start, request.offset_bytes, request.offset_bytes);
    }

    /// Whether its completion owes no work, once its commands have succeeded.
    pub(crate) const fn owes_nothing(&self) -> bool {
        self.reasons.is_empty()
    }

    /// The durability that its data have when its commands have succeeded and it owes nothing.
    pub(crate) fn reached(&self) -> Durability {
        match self.step {
            Step::Write => self.achieved.max(self.durability),
            _ => Durability::None,
        }
    }

    /// Whether a client of this core waits for it.
    pub(crate) const fn is_clients(&self) -> bool {
        matches!(self.owner, Owner::Client(_))
    }

    /// Lets the commands of `step` cover `start..end`, none of them submitted yet.
    pub(crate) fn begin(&mut self, step: Step, start: u64, end: u64) {
        self.step = step;
        self.start = start;
        self.end = end;
        self.cursor = start;
    }

    /// The end of the range asked for.
    pub(crate) const fn range_end(&self) -> u64 {
        self.offset + self.length
    }

    /// Whether every command of this step was submitted and has ended.
    pub(crate) const fn is_step_done(&self) -> bool {
        self.outstanding == 0 && self.cursor >= self.end && !self.is_queued
    }

    /// Notes a failed command; the first one wins. No further commands are submitted.
    pub(crate) fn fail(&mut self, failure: Failure) {
        if self.failure.is_none() {
            self.failure = Some(failure);
        }
        self.cursor = self.end;
    }
}

/// How often a request repeats commands that the device asks to be repeated.
pub(crate) const RETRIES_MAX: u8 = 8;
