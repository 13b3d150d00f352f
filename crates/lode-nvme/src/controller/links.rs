//! The I/O queue pairs of a controller: created, created anew after a reset, deleted.

use std::sync::Arc;

use lode_bus::{Bus, BusError};
use lode_nvme_spec::Status;
use lode_nvme_spec::command::{Abort, CreateCompletionQueue, CreateSubmissionQueue, DeleteQueue};
use lode_units::QueueId;

use super::start::Purpose;
use super::{Controller, ControllerState};
use crate::admin::AdminCompletion;
use crate::doorbell::Shadow;
use crate::error::Failure;
use crate::link::{Link, LinkState};
use crate::options::Quirks;

/// The controller's side of one queue pair.
#[derive(Debug)]
pub(super) struct LinkEntry {
    pub(super) link: Arc<Link>,
    stage: Stage,
}

/// What the controller knows of the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has no such queues.
    Absent,
    /// A command to create one of the two is under way, for the queue's epoch.
    Creating { epoch: u64 },
    /// It has both.
    Created,
    /// A command to delete one of the two is under way.
    Deleting,
}

impl LinkEntry {
    /// The entry of a pair that is to be created.
    pub(super) const fn new(link: Arc<Link>) -> Self {
        Self {
            link,
            stage: Stage::Absent,
        }
    }

    /// The controller was reset: it has no queues.
    pub(super) const fn forget(&mut self) {
        self.stage = Stage::Absent;
    }

    /// Whether the pair waits for the controller, whose epoch is `now`. One whose queue has not
    /// followed the last reset yet waits for the queue.
    pub(super) fn is_busy(&self, now: u64) -> bool {
        match self.link.state() {
            LinkState::Wanted { epoch } => epoch == now,
            LinkState::Closed => self.stage != Stage::Absent,
            LinkState::Live { .. } | LinkState::Failed => false,
        }
    }

    /// Whether the queue has yet to follow a reset into epoch `now`.
    pub(super) fn is_behind(&self, now: u64) -> bool {
        match self.link.state() {
            LinkState::Wanted { epoch } | LinkState::Live { epoch, .. } => epoch < now,
            LinkState::Closed | LinkState::Failed => false,
        }
    }
}

impl<B: Bus> Controller<B> {
    /// Creates queues that are wanted, deletes those that nobody holds, sends aborts.
    pub(super) fn serve_links(&mut self) {
        let epoch = self.shared.view().epoch();
        let mut index = 0;
        while let Some(entry) = self.links.get(index) {
            let (stage, state) = (entry.stage, entry.link.state());
            let has_slots = self.admin.free_slots() > SLOTS_RESERVED;
            match (state, stage) {
                (LinkState::Wanted { epoch: wanted }, Stage::Absent)
                    if wanted == epoch && has_slots =>
                {
                    self.create_completion_queue(index, epoch);
                }
                (LinkState::Live { .. }, Stage::Created) => self.serve_abort(index),
                (LinkState::Closed, Stage::Created) if has_slots => {
                    self.delete_submission_queue(index)
                }
                (LinkState::Closed, Stage::Absent) => {
                    self.drop_link(index);
                    continue;
                }
                _ => {}
            }
            if self.state != ControllerState::Ready {
                return;
            }
            index += 1;
        }
    }

    fn create_completion_queue(&mut self, index: usize, epoch: u64) {
        let Some(entry) = self.links.get(index) else {
            return;
        };
        let link = Arc::clone(&entry.link);
        let mut known = self.namespaces.iter();
        if !known.any(|known| link.claim.holds_for(known)) {
            link.answer(epoch, LinkState::Failed);
            return;
        }
        self.clear_shadows(link.queue);
        let command = CreateCompletionQueue {
            base: link.completion_base,
            queue: link.queue,
            entries: u32::from(link.entries),
            is_contiguous: true,
            enables_interrupts: link.interrupt_vector.is_some(),
            interrupt_vector: link.interrupt_vector.unwrap_or(0),
        };
        let purpose = Purpose::CreateCompletionQueue(link.queue);
        if self.send(command.encode(), false, purpose) {
            self.set_stage(link.queue, Stage::Creating { epoch });
        }
    }

    pub(super) fn finish_completion_queue(&mut self, queue: QueueId, status: Status) {
        let Some((link, epoch)) = self.creating(queue) else {
            return;
        };
        if !status.is_success() {
            link.answer(epoch, LinkState::Failed);
            self.set_stage(queue, Stage::Absent);
            return;
        }
        let command = CreateSubmissionQueue {
            base: link.submission_base,
            queue,
            entries: u32::from(link.entries),
            is_contiguous: true,
            priority: 0,
            completion_queue: queue,
        };
        let purpose = Purpose::CreateSubmissionQueue(queue);
        if !self.send(command.encode(), false, purpose) {
            // Not reached while slots are reserved for this; without one there is no queue.
            link.answer(epoch, LinkState::Failed);
            self.delete_completion_queue(queue);
        }
    }

    pub(super) fn finish_submission_queue(&mut self, queue: QueueId, status: Status) {
        let Some((link, epoch)) = self.creating(queue) else {
            return;
        };
        if !status.is_success() {
            link.answer(epoch, LinkState::Failed);
            self.delete_completion_queue(queue);
            return;
        }
        self.set_stage(queue, Stage::Created);
        // When the queue was dropped meanwhile, the next round deletes what was created.
        link.answer(
            epoch,
            LinkState::Live {
                epoch,
                uses_shadow: self.facts.uses_shadow,
            },
        );
    }

    fn delete_submission_queue(&mut self, index: usize) {
        let Some(queue) = self.links.get(index).map(|entry| entry.link.queue) else {
            return;
        };
        let command = DeleteQueue { queue }.encode_submission();
        if self.send(command, false, Purpose::DeleteSubmissionQueue(queue)) {
            self.set_stage(queue, Stage::Deleting);
        }
    }

    pub(super) fn finish_submission_deletion(&mut self, queue: QueueId) {
        self.delete_completion_queue(queue);
    }

    /// Deletes the completion queue; when no slot is free, a reset must do it.
    fn delete_completion_queue(&mut self, queue: QueueId) {
        let command = DeleteQueue { queue }.encode_completion();
        self.set_stage(queue, Stage::Deleting);
        if !self.send(command, false, Purpose::DeleteCompletionQueue(queue)) {
            let opcode = command.opcode;
            self.recover(Failure::AdminTimeout { opcode });
        }
    }

    pub(super) fn finish_completion_deletion(&mut self, queue: QueueId) {
        self.set_stage(queue, Stage::Absent);
    }

    /// Forgets a pair that neither side has: its memory is hidden from the device and freed.
    fn drop_link(&mut self, index: usize) {
        let entry = self.links.swap_remove(index);
        match self.shared.bus.unmap(&entry.link.memory) {
            Ok(()) | Err(BusError::Gone) => {}
            Err(_) => self.stats.unmap_failures += 1,
        }
    }

    fn serve_abort(&mut self, index: usize) {
        let Some(entry) = self.links.get(index) else {
            return;
        };
        let has_slots = self.admin.free_slots() > SLOTS_RESERVED;
        if self.aborts_in_flight >= self.facts.aborts_max || !has_slots {
            return;
        }
        let queue = entry.link.queue;
        let Some(command_id) = entry.link.take_abort() else {
            return;
        };
        if self.facts.quirks.contains(Quirks::NO_ABORT) {
            self.recover(Failure::CommandsHang);
            return;
        }
        let command = Abort { queue, command_id };
        if self.send(command.encode(), false, Purpose::Abort) {
            self.aborts_in_flight += 1;
            self.stats.aborts_sent += 1;
        }
    }

    pub(super) fn finish_abort(&mut self, completion: &AdminCompletion<Purpose>) {
        self.aborts_in_flight = self.aborts_in_flight.saturating_sub(1);
        let is_refused =
            !completion.entry.status().is_success() || completion.entry.dword_0.get() & 1 != 0;
        self.stats.aborts_refused += u64::from(is_refused);
    }

    /// The link of `queue` and its epoch while the pair is being created.
    fn creating(&self, queue: QueueId) -> Option<(Arc<Link>, u64)> {
        let entry = self.entry(queue)?;
        match entry.stage {
            Stage::Creating { epoch } => Some((Arc::clone(&entry.link), epoch)),
            Stage::Absent | Stage::Created | Stage::Deleting => None,
        }
    }

    fn entry(&self, queue: QueueId) -> Option<&LinkEntry> {
        self.links.iter().find(|entry| entry.link.queue == queue)
    }

    fn set_stage(&mut self, queue: QueueId, stage: Stage) {
        let entry = self
            .links
            .iter_mut()
            .find(|entry| entry.link.queue == queue);
        if let Some(entry) = entry {
            entry.stage = stage;
        }
    }

    /// The shadows of the doorbells of `queue`, where the page has room for them.
    pub(super) fn shadows(&self, queue: QueueId) -> [Option<Shadow>; 2] {
        let stride = 4_usize << self.capabilities.doorbell_stride;
        let page = 1_usize << self.page_min_shift();
        let (values, _) = self.admin.shadow_values();
        let (events, _) = self.admin.shadow_events();
        let first = 2 * usize::from(queue.get());
        [first, first + 1].map(|index| {
            let offset = index * stride;
            (offset + 4 <= page).then(|| Shadow {
                memory: self.admin.memory().clone(),
                value_offset: values + offset,
                event_offset: events + offset,
            })
        })
    }

    /// A queue that is created begins with shadow doorbells of zero (§5.9).
    fn clear_shadows(&self, queue: QueueId) {
        for shadow in self.shadows(queue).into_iter().flatten() {
            shadow.memory.fill_zero(shadow.value_offset, 4);
            shadow.memory.fill_zero(shadow.event_offset, 4);
        }
    }
}

/// Admin slots that stay free for the second command of a pair that is being created or
/// deleted.
const SLOTS_RESERVED: usize = 4;
