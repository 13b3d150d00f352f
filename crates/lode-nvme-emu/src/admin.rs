//! Admin commands (NVMe Base 2.0 §5) and what a host has set up with them.

mod events;
mod features;
mod identify;
mod log_pages;
mod queues;

use lode_nvme_spec::command::{Abort, DoorbellBufferConfig};
use lode_nvme_spec::{AdminOpcode, GenericStatus, SpecificStatus, Status, SubmissionEntry};
use lode_units::{CommandId, QueueId};

use crate::batch::{Batch, Outcome};
use crate::dma::DmaFault;
use crate::io::{refused, transfer_status};
use crate::outstanding::State;
use crate::prp::PrpError;
use crate::shadow::Doorbell;

use events::EventState;
pub(crate) use events::PendingEvent;
use features::Features;
use log_pages::LogState;
use queues::{PendingDeletion, QueueAccount};

/// What lives from one controller reset to the next, and the logs, which live longer.
#[derive(Debug)]
pub(crate) struct AdminState {
    features: Features,
    events: EventState,
    logs: LogState,
    queues: QueueAccount,
    deletions: Vec<PendingDeletion>,
}

impl AdminState {
    pub(crate) fn new(queue_pairs_max: u16) -> Self {
        Self {
            features: Features::default(),
            events: EventState::default(),
            logs: LogState::default(),
            queues: QueueAccount::new(queue_pairs_max),
            deletions: Vec::new(),
        }
    }

    /// Forgets what a controller reset ends.
    pub(crate) fn reset(&mut self) {
        self.features = Features::default();
        self.events = EventState::default();
        self.queues.reset();
        self.deletions.clear();
    }

    /// Sets the critical warnings of the health log and tells the host of those that are new.
    pub(crate) fn set_warnings(&mut self, warnings: u8) {
        let fresh = warnings & !self.logs.warnings();
        self.logs.set_warnings(warnings);
        self.events.push_health(fresh, self.features.event_mask());
    }

    pub(crate) fn set_temperature(&mut self, kelvin: u16) {
        self.logs.set_temperature(kelvin);
        if self.features.is_beyond_threshold(kelvin) {
            self.set_warnings(self.logs.warnings() | features::TEMPERATURE_WARNING);
        }
    }

    /// Notes that a namespace came or went, and tells the host.
    pub(crate) fn namespace_changed(&mut self, namespace: u32) {
        self.logs.namespace_changed(namespace);
        self.events.push(
            PendingEvent::NAMESPACE_ATTRIBUTES,
            self.features.event_mask(),
        );
    }
}

impl Batch<'_> {
    /// Executes an admin command.
    pub(crate) fn execute_admin(&mut self, entry: &SubmissionEntry) -> Result<Outcome, DmaFault> {
        if entry.uses_sgl() || entry.is_fused() {
            return Ok(refused(GenericStatus::InvalidField).into());
        }
        let outcome = match AdminOpcode::from_raw(entry.opcode) {
            AdminOpcode::CreateCompletionQueue => self.create_completion_queue(entry),
            AdminOpcode::CreateSubmissionQueue => self.create_submission_queue(entry),
            AdminOpcode::DeleteCompletionQueue => self.delete_completion_queue(entry),
            AdminOpcode::DeleteSubmissionQueue => return self.delete_submission_queue(entry),
            AdminOpcode::Identify => self.identify(entry),
            AdminOpcode::GetLogPage => self.log_page(entry),
            AdminOpcode::GetFeatures => self.read_feature(entry),
            AdminOpcode::SetFeatures => self.set_feature(entry),
            AdminOpcode::Abort => return self.abort(entry),
            AdminOpcode::AsyncEventRequest => self.request_event(entry),
            AdminOpcode::DoorbellBufferConfig if self.shared.options.shadow_doorbells => {
                self.configure_doorbells(entry)?
            }
            AdminOpcode::DoorbellBufferConfig
            | AdminOpcode::NamespaceManagement
            | AdminOpcode::FirmwareCommit
            | AdminOpcode::FirmwareDownload
            | AdminOpcode::DeviceSelfTest
            | AdminOpcode::NamespaceAttachment
            | AdminOpcode::KeepAlive
            | AdminOpcode::FormatNvm
            | AdminOpcode::Sanitize
            | AdminOpcode::Other(_) => Err(refused(GenericStatus::InvalidOpcode)),
        };
        Ok(outcome.unwrap_or_else(Outcome::from))
    }

    /// What the admin queue owes besides commands: deletions that wait, and events.
    pub(crate) fn admin_housekeeping(&mut self) -> Result<(), DmaFault> {
        self.finish_deletions()?;
        self.note_invalid_doorbells();
        self.post_events()
    }

    /// Abort (§5.1): ends a command that is held back. One that is at work is left alone.
    fn abort(&mut self, entry: &SubmissionEntry) -> Result<Outcome, DmaFault> {
        let command = Abort::decode(entry);
        let was_aborted = if command.queue == self.queue.id {
            self.abort_here(command.command_id)?
        } else {
            self.abort_elsewhere(command.queue, command.command_id)
        };
        let dword_0 = u32::from(!was_aborted);
        Ok(Outcome::Done(Status::SUCCESS, dword_0))
    }

    fn abort_here(&mut self, id: CommandId) -> Result<bool, DmaFault> {
        if self.shared.admin().events.withdraw(id) {
            self.post(id, GenericStatus::AbortRequested.into(), 0)?;
            return Ok(true);
        }
        let Some(index) = self.queue.outstanding.find(id) else {
            return Ok(false);
        };
        if !is_abortable(self.queue.outstanding.state(index)) {
            return Ok(false);
        }
        self.finish_slot(index, GenericStatus::AbortRequested.into(), 0)?;
        Ok(true)
    }

    /// Marks a command of another queue as ended; its completion is posted when that queue is
    /// looked at next.
    fn abort_elsewhere(&mut self, queue: QueueId, id: CommandId) -> bool {
        let Some(slot) = self.shared.queues.slot(queue) else {
            return false;
        };
        let mut other = slot.lock_submission();
        let Some(other) = other.as_mut() else {
            return false;
        };
        let found = other
            .outstanding
            .find(id)
            .filter(|index| is_abortable(other.outstanding.state(*index)));
        let Some(index) = found else {
            return false;
        };
        let status = GenericStatus::AbortRequested.into();
        other.outstanding.set_state(index, State::Ready(status, 0));
        self.shared.queues.mark(queue);
        true
    }

    /// Doorbell Buffer Config (§5.9).
    fn configure_doorbells(
        &mut self,
        entry: &SubmissionEntry,
    ) -> Result<Result<Outcome, Status>, DmaFault> {
        let command = DoorbellBufferConfig::decode(entry);
        let (values, indexes) = (command.shadow.get(), command.event_index.get());
        if !values.is_multiple_of(self.page) || !indexes.is_multiple_of(self.page) {
            return Ok(Err(refused(GenericStatus::InvalidField)));
        }
        let page = usize::try_from(self.page).expect("at most 64 KiB");
        for buffer in [values, indexes] {
            if self
                .dma
                .whole(buffer, page, &mut self.queue.data_hint)
                .is_err()
            {
                return Ok(Err(transfer_status(PrpError::Fault)));
            }
        }
        self.shared.shadow.configure(values, indexes);
        self.copy_doorbells()?;
        Ok(Ok(Status::SUCCESS.into()))
    }

    /// Queues that exist already go on from where their registers stand.
    fn copy_doorbells(&self) -> Result<(), DmaFault> {
        use std::sync::atomic::Ordering;
        let layout = self.shadow_layout();
        for (id, slot) in self.shared.queues.iter() {
            let tail = slot.tail.load(Ordering::Acquire);
            let head = slot.head.load(Ordering::Acquire);
            if slot.has_submission() {
                let doorbell = Doorbell::SubmissionTail;
                self.shared
                    .shadow
                    .store(self.dma, layout, id, doorbell, tail)?;
                self.shared.queues.mark(id);
            }
            if slot.has_completion() {
                let doorbell = Doorbell::CompletionHead;
                self.shared
                    .shadow
                    .store(self.dma, layout, id, doorbell, head)?;
            }
        }
        Ok(())
    }

    /// Copies a data structure to the host.
    fn send(&mut self, entry: &SubmissionEntry, bytes: &[u8]) -> Result<Outcome, Status> {
        let mut transfer = self.transfer(entry.data_pointer, bytes.len())?;
        transfer.copy_slice_in(bytes);
        Ok(Status::SUCCESS.into())
    }
}

/// Whether an Abort ends a command in this state.
fn is_abortable(state: State) -> bool {
    match state {
        State::Delayed(_) | State::Hung | State::Waiting(_) => true,
        State::Ready(..) | State::File(_) => false,
    }
}

/// A command-specific fault of the host's: the same command would fail again.
fn rejected(code: SpecificStatus) -> Status {
    Status::from(code).with_no_retry()
}
