//! Asynchronous events (NVMe Base 2.0 §5.2): what happened, and the requests that wait for it.

use std::collections::VecDeque;

use lode_nvme_spec::feature::EventMask;
use lode_nvme_spec::log_page::{CriticalWarning, LogPageId};
use lode_nvme_spec::{
    AsyncEvent, ErrorEvent, EventType, HealthEvent, NoticeEvent, SpecificStatus, Status,
    SubmissionEntry,
};
use lode_units::CommandId;

use super::rejected;
use crate::batch::{Batch, Outcome};
use crate::dma::DmaFault;
use crate::queues::DoorbellError;

/// An event that no request has taken yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingEvent {
    event: EventType,
    log_page: LogPageId,
    /// The bit of the feature that lets it through; empty for one that is always reported.
    mask: EventMask,
}

impl PendingEvent {
    /// A namespace came or went.
    pub(crate) const NAMESPACE_ATTRIBUTES: Self = Self {
        event: EventType::Notice(NoticeEvent::NamespaceAttributes),
        log_page: LogPageId::ChangedNamespaces,
        mask: EventMask::NAMESPACE_ATTRIBUTES,
    };

    const fn error(event: ErrorEvent) -> Self {
        Self {
            event: EventType::Error(event),
            log_page: LogPageId::ErrorInformation,
            mask: EventMask::empty(),
        }
    }
}

/// Requests, events, and which kinds of event wait for their log page to be read.
#[derive(Debug, Default)]
pub(super) struct EventState {
    requests: VecDeque<CommandId>,
    pending: VecDeque<PendingEvent>,
    /// Log pages whose events are held back until the page was read.
    unread: Vec<LogPageId>,
}

impl EventState {
    /// Notes an event that `enabled` lets through. An event that is pending already is not
    /// repeated, and one that finds no room is dropped: the log page tells the same.
    pub(super) fn push(&mut self, event: PendingEvent, enabled: EventMask) {
        let is_known = self.pending.contains(&event);
        if enabled.contains(event.mask) && !is_known && self.pending.len() < PENDING_MAX {
            self.pending.push_back(event);
        }
    }

    /// Notes critical warnings that are new.
    pub(super) fn push_health(&mut self, fresh: u8, enabled: EventMask) {
        for (warning, mask, event) in HEALTH_EVENTS {
            if fresh & warning.bits() != 0 {
                let event = PendingEvent {
                    event: EventType::Health(event),
                    log_page: LogPageId::Health,
                    mask,
                };
                self.push(event, enabled);
            }
        }
    }

    /// Takes a request back. Returns whether there was one.
    pub(super) fn withdraw(&mut self, id: CommandId) -> bool {
        let position = self.requests.iter().position(|request| *request == id);
        position.and_then(|at| self.requests.remove(at)).is_some()
    }

    /// The host has read a log page: its events are let through again.
    pub(super) fn page_was_read(&mut self, page: LogPageId) {
        self.unread.retain(|unread| *unread != page);
    }

    /// The next request with its event.
    fn take(&mut self) -> Option<(CommandId, AsyncEvent)> {
        let is_free = |event: &PendingEvent| !self.unread.contains(&event.log_page);
        let position = self.pending.iter().position(is_free)?;
        let id = self.requests.pop_front()?;
        let event = self.pending.remove(position)?;
        self.unread.push(event.log_page);
        let told = AsyncEvent {
            event: event.event,
            log_page: event.log_page.raw(),
        };
        Some((id, told))
    }
}

impl Batch<'_> {
    /// Asynchronous Event Request (§5.2): stays open until there is an event.
    pub(super) fn request_event(&mut self, entry: &SubmissionEntry) -> Result<Outcome, Status> {
        let mut admin = self.shared.admin();
        if admin.events.requests.len() >= REQUESTS_MAX {
            return Err(rejected(SpecificStatus::AsyncEventLimitExceeded));
        }
        admin.events.requests.push_back(entry.command_id());
        Ok(Outcome::Kept)
    }

    /// Turns invalid doorbell writes into events.
    pub(super) fn note_invalid_doorbells(&self) {
        for error in self.shared.queues.take_invalid() {
            let event = match error {
                DoorbellError::Register => ErrorEvent::InvalidDoorbell,
                DoorbellError::Value => ErrorEvent::InvalidDoorbellValue,
            };
            let mut admin = self.shared.admin();
            let enabled = admin.features.event_mask();
            admin.events.push(PendingEvent::error(event), enabled);
        }
    }

    /// Completes requests for which there are events.
    pub(super) fn post_events(&mut self) -> Result<(), DmaFault> {
        while self.has_room()? {
            let Some((id, event)) = self.shared.admin().events.take() else {
                return Ok(());
            };
            self.post(id, Status::SUCCESS, event.to_dword())?;
        }
        self.park();
        Ok(())
    }
}

const HEALTH_EVENTS: [(CriticalWarning, EventMask, HealthEvent); 5] = [
    (CriticalWarning::SPARE, EventMask::SPARE, HealthEvent::Spare),
    (
        CriticalWarning::TEMPERATURE,
        EventMask::TEMPERATURE,
        HealthEvent::Temperature,
    ),
    (
        CriticalWarning::RELIABILITY,
        EventMask::RELIABILITY,
        HealthEvent::Reliability,
    ),
    (
        CriticalWarning::READ_ONLY,
        EventMask::READ_ONLY,
        HealthEvent::Reliability,
    ),
    (
        CriticalWarning::BACKUP_FAILED,
        EventMask::BACKUP_FAILED,
        HealthEvent::Reliability,
    ),
];

/// AERL plus one: the most requests that may be open.
pub(super) const REQUESTS_MAX: usize = 4;
const PENDING_MAX: usize = 32;
