//! A controller in use: its status, its asynchronous events, its logs.

use std::time::Duration;

use lode_bus::Bus;
use lode_nvme_spec::command::GetLogPage;
use lode_nvme_spec::log_page::{ErrorEntry, HealthLog, LogPageId};
use lode_nvme_spec::{AdminOpcode, AsyncEvent, EventType, NoticeEvent, SubmissionEntry};
use lode_units::{Instant, NamespaceId};

use super::events::{self, ControllerEvent};
use super::identity::ERROR_LOG_ENTRIES_MAX;
use super::start::Purpose;
use super::{Controller, ControllerState};
use crate::admin::{AdminCompletion, AdminQueue};
use crate::error::Failure;
use crate::options::ControllerOptions;

/// What is read of a controller from time to time, and what was read last.
#[derive(Debug)]
pub(super) struct Watch {
    interval: Duration,
    health_interval: Option<Duration>,
    status_at: Instant,
    health_at: Instant,
    wants: Wants,
    /// Asynchronous event requests that the controller holds.
    event_requests: usize,
    /// How many of them it turned down: that many fewer are sent.
    event_requests_refused: usize,
    health: Option<HealthLog>,
    error_log: Vec<ErrorEntry>,
}

/// What is to be read as soon as a slot is free.
#[derive(Debug, Default)]
struct Wants {
    health: bool,
    error_log: bool,
    changed_namespaces: bool,
    scan: bool,
}

impl Watch {
    pub(super) fn new(options: &ControllerOptions) -> Self {
        Self {
            interval: options.watch_interval,
            health_interval: options.health_interval,
            status_at: Instant::ZERO,
            health_at: Instant::ZERO,
            wants: Wants::default(),
            event_requests: 0,
            event_requests_refused: 0,
            health: None,
            error_log: Vec::with_capacity(ERROR_LOG_ENTRIES_MAX),
        }
    }

    /// The controller is being reset: it holds no request of ours any more.
    pub(super) const fn forget(&mut self) {
        self.event_requests = 0;
        self.event_requests_refused = 0;
    }

    pub(super) const fn health(&self) -> Option<&HealthLog> {
        self.health.as_ref()
    }

    pub(super) fn error_log(&self) -> &[ErrorEntry] {
        &self.error_log
    }

    pub(super) const fn want_health(&mut self) {
        self.wants.health = true;
    }

    pub(super) const fn want_error_log(&mut self) {
        self.wants.error_log = true;
    }

    pub(super) const fn want_scan(&mut self) {
        self.wants.scan = true;
    }

    pub(super) fn next_due(&self) -> Instant {
        match self.health_interval {
            Some(_) => self.status_at.min(self.health_at),
            None => self.status_at,
        }
    }

    const fn has_wants(&self) -> bool {
        let wants = &self.wants;
        wants.health || wants.error_log || wants.changed_namespaces || wants.scan
    }
}

impl<B: Bus> Controller<B> {
    /// Reads the status register when it is time to, and acts on what it says.
    pub(super) fn watch_status(&mut self) {
        if self.now < self.watch.status_at && self.all_ones_since.is_none() {
            return;
        }
        self.watch.status_at = self.now + self.watch.interval;
        let Some(status) = self.read_status() else {
            return;
        };
        // A controller that stopped being ready by itself was reset behind our back.
        if status.fatal || !status.ready {
            self.recover(Failure::FatalStatus);
        }
    }

    /// One round of a controller in use, after its completions were looked at.
    pub(super) fn serve(&mut self) {
        self.note_stability();
        if self.shared.is_reset_requested() {
            self.recover(Failure::CommandsHang);
            return;
        }
        self.serve_links();
        if self.state != ControllerState::Ready {
            return;
        }
        self.request_events();
        if self.shared.is_scan_requested() {
            self.watch.wants.scan = true;
        }
        self.read_logs();
    }

    /// Whether something is under way that ends soon.
    pub(super) fn is_busy(&self) -> bool {
        self.admin.is_waiting() || self.watch.has_wants() || !self.is_settled()
    }

    /// Whether queues and namespaces are as they were asked for. Logs do not count: a device
    /// may have news without end.
    pub(super) fn is_settled(&self) -> bool {
        let epoch = self.shared.view().epoch();
        !self.watch.wants.scan
            && !self.scan.is_running
            && self.next_step.is_none()
            && !self.links.iter().any(|entry| entry.is_busy(epoch))
    }

    /// Whether a queue has yet to follow the last reset.
    pub(super) fn awaits_queues(&self) -> bool {
        let epoch = self.shared.view().epoch();
        self.links.iter().any(|entry| entry.is_behind(epoch))
    }

    /// Keeps as many asynchronous event requests at the controller as it allows.
    fn request_events(&mut self) {
        let limit = self
            .facts
            .event_requests_max
            .saturating_sub(self.watch.event_requests_refused);
        while self.watch.event_requests < limit {
            let entry = SubmissionEntry::new(AdminOpcode::AsyncEventRequest.raw());
            if !self.send(entry, false, Purpose::EventRequest) {
                return;
            }
            self.watch.event_requests += 1;
        }
    }

    pub(super) fn finish_event_request(&mut self, completion: &AdminCompletion<Purpose>) {
        self.watch.event_requests = self.watch.event_requests.saturating_sub(1);
        if !completion.entry.status().is_success() {
            self.watch.event_requests_refused += 1;
            return;
        }
        let event = AsyncEvent::from_dword(completion.entry.dword_0.get());
        events::count(event, &mut self.stats);
        self.events
            .push(ControllerEvent::Async(event), &mut self.stats);
        // Reading the event's log page re-arms it (§5.2.1).
        match event.event {
            EventType::Error(_) => self.watch.wants.error_log = true,
            EventType::Health(_) => self.watch.wants.health = true,
            EventType::Notice(NoticeEvent::NamespaceAttributes) => {
                self.watch.wants.changed_namespaces = true;
            }
            EventType::Notice(_) | EventType::Other { .. } => {}
        }
    }

    fn read_logs(&mut self) {
        if let Some(interval) = self.watch.health_interval
            && self.now >= self.watch.health_at
        {
            self.watch.health_at = self.now + interval;
            self.watch.wants.health = true;
        }
        // Slots are kept free for aborts and for queues.
        if self.watch.has_wants() && self.admin.free_slots() > SLOTS_RESERVED {
            self.read_wanted();
        }
    }

    fn read_wanted(&mut self) {
        if std::mem::take(&mut self.watch.wants.health) {
            self.read_log(
                LogPageId::Health,
                size_of::<HealthLog>(),
                Purpose::HealthLog,
            );
        }
        if std::mem::take(&mut self.watch.wants.error_log) {
            let length = self.facts.error_log_entries * size_of::<ErrorEntry>();
            self.read_log(LogPageId::ErrorInformation, length, Purpose::ErrorLog);
        }
        if std::mem::take(&mut self.watch.wants.changed_namespaces) {
            let length = AdminQueue::<Purpose>::DATA_BYTES;
            self.read_log(
                LogPageId::ChangedNamespaces,
                length,
                Purpose::ChangedNamespaces,
            );
        }
        if self.watch.wants.scan && !self.scan.is_running {
            self.watch.wants.scan = false;
            self.begin_scan();
        }
    }

    fn read_log(&mut self, page: LogPageId, length: usize, purpose: Purpose) {
        let command = GetLogPage {
            page,
            namespace: NamespaceId::new(u32::MAX),
            retains_event: false,
            length_bytes: u32::try_from(length).expect("a log is at most one page long"),
            offset_bytes: 0,
        };
        let is_sent = self.send(command.encode(), true, purpose);
        debug_assert!(is_sent, "slots were counted before");
    }

    pub(super) fn finish_log(&mut self, completion: &AdminCompletion<Purpose>) {
        if completion.purpose == Purpose::ChangedNamespaces {
            // Whatever the list says, it is read to re-arm the event; all are identified anew.
            self.watch.wants.scan = true;
            return;
        }
        if !completion.entry.status().is_success() {
            return;
        }
        let event = if completion.purpose == Purpose::HealthLog {
            self.watch.health = Some(self.admin.data(completion, 0));
            ControllerEvent::HealthRead
        } else {
            self.watch.error_log.clear();
            for index in 0..self.facts.error_log_entries {
                let entry: ErrorEntry =
                    self.admin.data(completion, index * size_of::<ErrorEntry>());
                if entry.error_count.get() != 0 {
                    self.watch.error_log.push(entry);
                }
            }
            ControllerEvent::ErrorLogRead
        };
        self.events.push(event, &mut self.stats);
    }
}

/// Admin slots that logs and scans leave alone.
const SLOTS_RESERVED: usize = 12;
