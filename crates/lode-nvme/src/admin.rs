//! The admin queue: a few slots, each with a page of memory for what the command returns.

use std::collections::VecDeque;

use lode_bus::{DmaMemory, Registers};
use lode_nvme_spec::registers::{AdminQueueAttributes, completion_doorbell, submission_doorbell};
use lode_nvme_spec::{CompletionEntry, DataPointer, SubmissionEntry};
use lode_units::{CommandId, Instant, Iova, QueueId};
use zerocopy::{FromBytes, IntoBytes};

use crate::command_id::CommandIds;
use crate::doorbell::{Doorbell, Shadow};
use crate::ring::{CompletionRing, SubmissionRing};

/// The admin queue pair. `P` says what a command was for.
#[derive(Debug)]
pub(crate) struct AdminQueue<P> {
    memory: DmaMemory,
    submission: SubmissionRing,
    completion: CompletionRing,
    submission_doorbell: Doorbell,
    completion_doorbell: Doorbell,
    ids: CommandIds,
    slots: Vec<Slot<P>>,
    free: VecDeque<u16>,
}

#[derive(Debug)]
struct Slot<P> {
    id: CommandId,
    opcode: u8,
    /// When the command must have ended; `None` when nothing is in flight.
    deadline: Option<Instant>,
    purpose: Option<P>,
}

/// An admin command that ended.
#[derive(Debug)]
pub(crate) struct AdminCompletion<P> {
    pub(crate) purpose: P,
    pub(crate) opcode: u8,
    pub(crate) entry: CompletionEntry,
    slot: u16,
}

/// What a look at the admin completion queue found.
#[derive(Debug)]
pub(crate) enum AdminPoll<P> {
    /// Nothing new.
    Idle,
    /// A command ended; its slot is given back by [`AdminQueue::release`].
    Completed(AdminCompletion<P>),
    /// A completion that named no command in flight.
    Stale,
}

impl<P> AdminQueue<P> {
    /// The length of the memory that a queue needs.
    pub(crate) const MEMORY_BYTES: usize = DATA_OFFSET + SLOTS as usize * DATA_BYTES;
    /// What a command can return.
    pub(crate) const DATA_BYTES: usize = DATA_BYTES;

    /// A queue whose doorbells are not known yet: see [`AdminQueue::place_doorbells`].
    pub(crate) fn new(memory: DmaMemory) -> Self {
        let ids = CommandIds::new(SLOTS);
        let slots = (0..SLOTS)
            .map(|index| Slot {
                id: ids.first(index),
                opcode: 0,
                deadline: None,
                purpose: None,
            })
            .collect();
        Self {
            submission: SubmissionRing::new(memory.clone(), SUBMISSION_OFFSET, ENTRIES),
            completion: CompletionRing::new(memory.clone(), COMPLETION_OFFSET, ENTRIES),
            submission_doorbell: Doorbell::new(submission_doorbell(ADMIN, 0), None),
            completion_doorbell: Doorbell::new(completion_doorbell(ADMIN, 0), None),
            memory,
            ids,
            slots,
            free: (0..SLOTS).collect(),
        }
    }

    /// Puts the doorbells where CAP.DSTRD says.
    pub(crate) fn place_doorbells(&mut self, stride: u8) {
        let distance = 4_usize << stride;
        let shadow = |offset: usize| {
            // The first page of shadows may be too small for a large distance.
            (offset + 4 <= DATA_BYTES).then(|| Shadow {
                memory: self.memory.clone(),
                value_offset: SHADOW_OFFSET + offset,
                event_offset: EVENT_INDEX_OFFSET + offset,
            })
        };
        let (submission, completion) = (shadow(0), shadow(distance));
        self.submission_doorbell = Doorbell::new(submission_doorbell(ADMIN, stride), submission);
        self.completion_doorbell = Doorbell::new(completion_doorbell(ADMIN, stride), completion);
    }

    /// Keeps the shadows of this queue's own doorbells equal to the registers, as a controller
    /// that was told of shadows may read them for every queue (Base 2.0 §5.9). The registers are
    /// written all the same: many controllers look at nothing else here.
    pub(crate) fn mirror_doorbells(&mut self) {
        self.submission_doorbell.mirror(self.submission.tail());
        self.completion_doorbell.mirror(self.completion.head());
    }

    /// The page of shadow doorbell values, and where it lies in the memory.
    pub(crate) fn shadow_values(&self) -> (usize, Iova) {
        (SHADOW_OFFSET, self.iova_of(SHADOW_OFFSET))
    }

    /// The page of shadow doorbell event indexes.
    pub(crate) fn shadow_events(&self) -> (usize, Iova) {
        (EVENT_INDEX_OFFSET, self.iova_of(EVENT_INDEX_OFFSET))
    }

    pub(crate) const fn memory(&self) -> &DmaMemory {
        &self.memory
    }

    pub(crate) fn submission_base(&self) -> Iova {
        self.submission.base()
    }

    pub(crate) fn completion_base(&self) -> Iova {
        self.completion.base()
    }

    pub(crate) const fn attributes() -> AdminQueueAttributes {
        AdminQueueAttributes {
            submission_entries: ENTRIES,
            completion_entries: ENTRIES,
        }
    }

    /// Forgets every command and empties the rings. The controller must be disabled.
    pub(crate) fn restart(&mut self) {
        self.submission.restart();
        self.completion.restart();
        self.submission_doorbell.restart(false);
        self.completion_doorbell.restart(false);
        self.free.clear();
        for (index, slot) in (0..SLOTS).zip(&mut self.slots) {
            slot.id = self.ids.next(slot.id);
            slot.deadline = None;
            slot.purpose = None;
            self.free.push_back(index);
        }
    }

    /// How many commands could be sent now.
    pub(crate) fn free_slots(&self) -> usize {
        self.free.len()
    }

    /// Sends `entry`; its data, if any, go to the slot's page. `deadline` is when it must have
    /// ended ([`Instant::FAR_FUTURE`] for an asynchronous event request). False when no slot is
    /// free: nothing was sent.
    pub(crate) fn send<R: Registers>(
        &mut self,
        registers: &R,
        entry: SubmissionEntry,
        returns_data: bool,
        purpose: P,
        deadline: Instant,
    ) -> bool {
        let Some(index) = self.free.pop_front() else {
            return false;
        };
        let data = self.iova_of(Self::data_offset(index));
        let Some(slot) = self.slots.get_mut(usize::from(index)) else {
            return false;
        };
        slot.id = self.ids.next(slot.id);
        slot.opcode = entry.opcode;
        slot.deadline = Some(deadline);
        slot.purpose = Some(purpose);
        let mut entry = entry.with_command_id(slot.id);
        if returns_data {
            entry = entry.with_data(DataPointer::one_page(data));
            self.memory.fill_zero(Self::data_offset(index), DATA_BYTES);
        }
        self.submission.push(&entry);
        self.submission_doorbell
            .ring(registers, self.submission.tail());
        true
    }

    /// Looks for the next completion.
    pub(crate) fn poll<R: Registers>(&mut self, registers: &R) -> AdminPoll<P> {
        let Some(entry) = self.completion.pop() else {
            return AdminPoll::Idle;
        };
        self.completion_doorbell
            .ring(registers, self.completion.head());
        let id = entry.command_id();
        let index = self.ids.index(id);
        let found = self.slots.get_mut(index).filter(|slot| slot.id == id);
        let Some((slot, index)) = found.zip(u16::try_from(index).ok()) else {
            return AdminPoll::Stale;
        };
        let Some(purpose) = slot.purpose.take() else {
            return AdminPoll::Stale;
        };
        slot.deadline = None;
        AdminPoll::Completed(AdminCompletion {
            purpose,
            opcode: slot.opcode,
            entry,
            slot: index,
        })
    }

    /// What a command returned, from `offset` of its data on.
    pub(crate) fn data<T: FromBytes + IntoBytes>(
        &self,
        completion: &AdminCompletion<P>,
        offset: usize,
    ) -> T {
        self.memory
            .read(Self::data_offset(completion.slot) + offset)
    }

    /// Gives the slot of a completion back.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a slot goes back once: the completion is used up"
    )]
    pub(crate) fn release(&mut self, completion: AdminCompletion<P>) {
        self.free.push_back(completion.slot);
    }

    /// The opcode of a command that is past its deadline.
    pub(crate) fn overdue(&self, now: Instant) -> Option<u8> {
        self.slots
            .iter()
            .find(|slot| slot.deadline.is_some_and(|deadline| deadline <= now))
            .map(|slot| slot.opcode)
    }

    /// Whether a command is in flight that has a deadline.
    pub(crate) fn is_waiting(&self) -> bool {
        self.slots.iter().any(|slot| {
            slot.deadline
                .is_some_and(|deadline| deadline < Instant::FAR_FUTURE)
        })
    }

    fn iova_of(&self, offset: usize) -> Iova {
        Iova::new(self.memory.iova().get() + offset as u64)
    }

    const fn data_offset(slot: u16) -> usize {
        DATA_OFFSET + slot as usize * DATA_BYTES
    }
}

const ADMIN: QueueId = QueueId::new(0);
/// Entries of either ring.
const ENTRIES: u16 = 32;
/// Commands in flight: one entry of a ring stays empty.
const SLOTS: u16 = ENTRIES - 1;
/// A page of the largest size that the driver lays out (see `PAGE_SHIFT_MAX`).
const SPACING: usize = 1 << crate::controller::PAGE_SHIFT_MAX;
const SUBMISSION_OFFSET: usize = 0;
const COMPLETION_OFFSET: usize = SPACING;
const SHADOW_OFFSET: usize = 2 * SPACING;
const EVENT_INDEX_OFFSET: usize = 3 * SPACING;
const DATA_OFFSET: usize = 4 * SPACING;
const DATA_BYTES: usize = 4096;

const _: () = assert!(SubmissionRing::length_bytes(ENTRIES) <= 4096);
const _: () = assert!(CompletionRing::length_bytes(ENTRIES) <= 4096);
const _: () = assert!(DATA_BYTES == lode_nvme_spec::identify::IDENTIFY_BYTES);
