//! Creating and deleting I/O queues (NVMe Base 2.0 §5.4 to §5.7).

use lode_nvme_spec::command::{CreateCompletionQueue, CreateSubmissionQueue, DeleteQueue};
use lode_nvme_spec::feature::QueueCounts;
use lode_nvme_spec::{GenericStatus, SpecificStatus, Status, SubmissionEntry};
use lode_units::{CommandId, QueueId};

use super::rejected;
use crate::batch::{Batch, Outcome};
use crate::dma::DmaFault;
use crate::io::refused;
use crate::outstanding::State;
use crate::queues::{CompletionQueue, QueuePlace};

/// Which I/O queues exist, and how many the host was granted.
#[derive(Debug)]
pub(super) struct QueueAccount {
    pairs_max: u16,
    granted: QueueCounts,
    /// For each submission queue identifier the completion queue that it uses.
    submission: Vec<Option<QueueId>>,
    completion: Vec<bool>,
}

/// A Delete I/O Submission Queue command that waits for file operations.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingDeletion {
    command: CommandId,
    queue: QueueId,
}

impl QueueAccount {
    pub(super) fn new(pairs_max: u16) -> Self {
        let count = usize::from(pairs_max) + 1;
        let all = u32::from(pairs_max);
        Self {
            pairs_max,
            granted: QueueCounts {
                submission: all,
                completion: all,
            },
            submission: vec![None; count],
            completion: vec![false; count],
        }
    }

    pub(super) fn reset(&mut self) {
        *self = Self::new(self.pairs_max);
    }

    pub(super) const fn granted(&self) -> QueueCounts {
        self.granted
    }

    pub(super) fn grant(&mut self, asked: QueueCounts, pairs_max: u16) {
        self.granted = QueueCounts {
            submission: asked.submission.min(pairs_max.into()),
            completion: asked.completion.min(pairs_max.into()),
        };
    }

    /// Whether no I/O queue exists.
    pub(super) fn is_empty(&self) -> bool {
        self.submission.iter().all(Option::is_none) && !self.completion.contains(&true)
    }

    /// The place of a queue identifier that may be used, in either table.
    fn place(&self, queue: QueueId, granted: u32) -> Result<usize, Status> {
        if queue.get() == 0 || u32::from(queue.get()) > granted {
            return Err(rejected(SpecificStatus::InvalidQueueId));
        }
        Ok(usize::from(queue.get()))
    }

    fn is_used(&self, completion: QueueId) -> bool {
        self.submission.contains(&Some(completion))
    }
}

impl Batch<'_> {
    pub(super) fn create_completion_queue(
        &mut self,
        entry: &SubmissionEntry,
    ) -> Result<Outcome, Status> {
        let command = CreateCompletionQueue::decode(entry);
        let mut admin = self.shared.admin();
        let place = admin
            .queues
            .place(command.queue, admin.queues.granted.completion)?;
        if admin.queues.completion[place] {
            return Err(rejected(SpecificStatus::InvalidQueueId));
        }
        let base = command.base.get();
        self.check_queue(command.entries, command.is_contiguous, base)?;
        let vectors = self.shared.options.interrupt_count;
        if command.enables_interrupts && command.interrupt_vector >= vectors {
            return Err(rejected(SpecificStatus::InvalidInterruptVector));
        }
        admin.queues.completion[place] = true;
        drop(admin);
        let vector = command
            .enables_interrupts
            .then_some(command.interrupt_vector);
        let queue = CompletionQueue::new(base, command.entries, vector);
        self.slot_of(command.queue)?.install_completion(queue);
        Ok(Status::SUCCESS.into())
    }

    pub(super) fn create_submission_queue(
        &mut self,
        entry: &SubmissionEntry,
    ) -> Result<Outcome, Status> {
        let command = CreateSubmissionQueue::decode(entry);
        let mut admin = self.shared.admin();
        let place = admin
            .queues
            .place(command.queue, admin.queues.granted.submission)?;
        if admin.queues.submission[place].is_some() {
            return Err(rejected(SpecificStatus::InvalidQueueId));
        }
        let completion = command.completion_queue;
        let granted = admin.queues.granted.completion;
        let completion_place = admin.queues.place(completion, granted)?;
        if !admin.queues.completion[completion_place] {
            return Err(rejected(SpecificStatus::CompletionQueueInvalid));
        }
        let base = command.base.get();
        self.check_queue(command.entries, command.is_contiguous, base)?;
        admin.queues.submission[place] = Some(completion);
        drop(admin);
        let place = QueuePlace {
            id: command.queue,
            base,
            entries: command.entries,
        };
        let mut queue = self.shared.new_submission_queue(place, completion);
        if self.namespaces.iter().any(|each| each.wants_ring()) {
            let vector = self.vector_of(completion);
            queue.files = self.make_file_work(queue.outstanding.capacity(), vector);
        }
        self.slot_of(command.queue)?.install_submission(queue);
        self.shared.queues.mark(command.queue);
        Ok(Status::SUCCESS.into())
    }

    pub(super) fn delete_completion_queue(
        &mut self,
        entry: &SubmissionEntry,
    ) -> Result<Outcome, Status> {
        let queue = DeleteQueue::decode(entry).queue;
        let mut admin = self.shared.admin();
        let place = admin
            .queues
            .place(queue, self.shared.options.queue_pairs_max.into())?;
        if !admin.queues.completion[place] {
            return Err(rejected(SpecificStatus::InvalidQueueId));
        }
        if admin.queues.is_used(queue) {
            return Err(rejected(SpecificStatus::InvalidQueueDeletion));
        }
        admin.queues.completion[place] = false;
        drop(admin);
        self.slot_of(queue)?.take_completion();
        Ok(Status::SUCCESS.into())
    }

    /// Deletes a submission queue. Commands that are held back are aborted; for file operations
    /// in flight the command waits.
    pub(super) fn delete_submission_queue(
        &mut self,
        entry: &SubmissionEntry,
    ) -> Result<Outcome, DmaFault> {
        let queue = DeleteQueue::decode(entry).queue;
        let exists = {
            let admin = self.shared.admin();
            let pairs_max = u32::from(self.shared.options.queue_pairs_max);
            let place = admin.queues.place(queue, pairs_max);
            place.is_ok_and(|place| admin.queues.submission[place].is_some())
                && !admin.deletions.iter().any(|each| each.queue == queue)
        };
        if !exists {
            return Ok(rejected(SpecificStatus::InvalidQueueId).into());
        }
        if self.close_submission_queue(queue) {
            return Ok(Status::SUCCESS.into());
        }
        let command = entry.command_id();
        let deletion = PendingDeletion { command, queue };
        self.shared.admin().deletions.push(deletion);
        self.park();
        Ok(Outcome::Kept)
    }

    /// Completes the deletions whose queues have become quiet.
    pub(super) fn finish_deletions(&mut self) -> Result<(), DmaFault> {
        let waiting = self.shared.admin().deletions.clone();
        for deletion in waiting {
            if !self.has_room()? || !self.close_submission_queue(deletion.queue) {
                self.park();
                continue;
            }
            self.shared
                .admin()
                .deletions
                .retain(|each| each.queue != deletion.queue);
            self.post(deletion.command, Status::SUCCESS, 0)?;
        }
        Ok(())
    }

    /// Aborts what can be aborted on a queue and takes it away when nothing is left. Returns
    /// whether it is gone.
    fn close_submission_queue(&mut self, id: QueueId) -> bool {
        let Some(slot) = self.shared.queues.slot(id) else {
            return true;
        };
        let mut guard = slot.lock_submission();
        let Some(queue) = guard.as_mut() else {
            return true;
        };
        queue.is_closing = true;
        let mut position = 0;
        while let Some((index, state)) = queue.outstanding.at(position) {
            position += 1;
            if matches!(state, State::Delayed(_) | State::Hung | State::Waiting(_)) {
                let status = GenericStatus::AbortedQueueDeletion.into();
                queue.outstanding.set_state(index, State::Ready(status, 0));
            }
        }
        let is_quiet = queue.outstanding.is_empty();
        drop(guard);
        if !is_quiet {
            self.shared.queues.mark(id);
            return false;
        }
        if let Some(queue) = slot.take_submission() {
            self.shared.retired().add(&queue.counters);
        }
        let mut admin = self.shared.admin();
        if let Some(place) = admin.queues.submission.get_mut(usize::from(id.get())) {
            *place = None;
        }
        true
    }

    fn check_queue(&self, entries: u32, is_contiguous: bool, base: u64) -> Result<(), Status> {
        if entries < 2 || entries > self.shared.options.queue_entries_max {
            return Err(rejected(SpecificStatus::InvalidQueueSize));
        }
        if !is_contiguous || !self.shared.has_entry_sizes() {
            return Err(refused(GenericStatus::InvalidField));
        }
        if !base.is_multiple_of(self.page) {
            return Err(refused(GenericStatus::InvalidPrpOffset));
        }
        Ok(())
    }

    fn slot_of(&self, queue: QueueId) -> Result<&crate::queues::QueueSlot, Status> {
        let slot = self.shared.queues.slot(queue);
        slot.ok_or_else(|| rejected(SpecificStatus::InvalidQueueId))
    }

    /// The vector of another completion queue.
    fn vector_of(&self, completion: QueueId) -> Option<u16> {
        let slot = self.shared.queues.slot(completion)?;
        slot.lock_completion().as_ref()?.vector()
    }
}
