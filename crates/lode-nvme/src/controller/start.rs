//! The admin commands that find out what a controller is and set it up (Base 2.0 §3.5.1).

use lode_block::WriteCache;
use lode_bus::Bus;
use lode_bus::Registers;
use lode_nvme_spec::command::{DoorbellBufferConfig, GetFeatures, Identify, SetFeatures};
use lode_nvme_spec::feature::{EventMask, FeatureId, QueueCounts, WRITE_CACHE_ENABLED};
use lode_nvme_spec::identify::{AdminFeatures, Cns, IdentifyController, IdentifyNvmController};
use lode_nvme_spec::prp;
use lode_nvme_spec::registers::{
    COMPLETION_ENTRY_SHIFT, SUBMISSION_ENTRY_SHIFT, Version, completion_doorbell,
};
use lode_nvme_spec::{Status, SubmissionEntry};
use lode_units::{Instant, NamespaceId, QueueId};

use super::events::ControllerEvent;
use super::{Controller, ControllerState};
use crate::admin::{AdminCompletion, AdminPoll};
use crate::error::Failure;
use crate::namespace::Limits;
use crate::options::{Quirks, WriteCachePolicy};

/// What an admin command was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Step(Step),
    EventRequest,
    HealthLog,
    ErrorLog,
    ChangedNamespaces,
    Abort,
    CreateCompletionQueue(QueueId),
    CreateSubmissionQueue(QueueId),
    DeleteSubmissionQueue(QueueId),
    DeleteCompletionQueue(QueueId),
}

/// A step of bring-up; each is one command. The last two also serve a later scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    IdentifyController,
    IdentifyCommandSet,
    QueueCount,
    ReadWriteCache,
    SetWriteCache { enabled: bool },
    ConfigureEvents,
    ShadowDoorbells,
    ListNamespaces { after: NamespaceId },
    IdentifyNamespace { id: NamespaceId },
}

impl<B: Bus> Controller<B> {
    /// One round of a controller that answers commands: status, completions, deadlines.
    pub(super) fn run(&mut self) {
        self.watch_status();
        // At most one ring's worth of completions a round.
        for _ in 0..COMPLETIONS_PER_POLL {
            if !matches!(
                self.state,
                ControllerState::Starting | ControllerState::Ready
            ) {
                return;
            }
            match self.admin.poll(&self.registers) {
                AdminPoll::Idle => break,
                AdminPoll::Stale => self.stats.stale_completions += 1,
                AdminPoll::Completed(completion) => self.finish(completion),
            }
        }
        if !matches!(
            self.state,
            ControllerState::Starting | ControllerState::Ready
        ) {
            return;
        }
        if let Some(opcode) = self.admin.overdue(self.now) {
            self.stats.admin_timeouts += 1;
            self.recover(Failure::AdminTimeout { opcode });
        }
    }

    /// Sends an admin command. False when every slot is in use.
    pub(super) fn send(&mut self, entry: SubmissionEntry, reads: bool, purpose: Purpose) -> bool {
        let deadline = match purpose {
            Purpose::EventRequest => Instant::FAR_FUTURE,
            _ => self.now + self.options.admin_timeout,
        };
        let is_sent = self
            .admin
            .send(&self.registers, entry, reads, purpose, deadline);
        self.stats.admin_commands += u64::from(is_sent);
        is_sent
    }

    fn finish(&mut self, completion: AdminCompletion<Purpose>) {
        let status = completion.entry.status();
        self.stats.admin_errors += u64::from(!status.is_success());
        match completion.purpose {
            Purpose::Step(step) => self.finish_step(step, &completion),
            Purpose::EventRequest => self.finish_event_request(&completion),
            Purpose::HealthLog | Purpose::ErrorLog | Purpose::ChangedNamespaces => {
                self.finish_log(&completion);
            }
            Purpose::Abort => self.finish_abort(&completion),
            Purpose::CreateCompletionQueue(queue) => self.finish_completion_queue(queue, status),
            Purpose::CreateSubmissionQueue(queue) => self.finish_submission_queue(queue, status),
            Purpose::DeleteSubmissionQueue(queue) => self.finish_submission_deletion(queue),
            Purpose::DeleteCompletionQueue(queue) => self.finish_completion_deletion(queue),
        }
        self.admin.release(completion);
        // A step that follows waits for the slot that was just given back.
        if let Some(step) = self.next_step.take() {
            self.begin_step(step);
        }
    }

    pub(super) fn begin_start(&mut self) {
        self.begin_step(Step::IdentifyController);
    }

    pub(super) fn begin_step(&mut self, step: Step) {
        let none = NamespaceId::new(0);
        let (entry, reads) = match step {
            Step::IdentifyController => (Identify::new(Cns::Controller, none).encode(), true),
            Step::IdentifyCommandSet => (
                Identify::new(Cns::CommandSetController, none).encode(),
                true,
            ),
            Step::QueueCount => (self.ask_queues(), false),
            Step::ReadWriteCache => {
                let feature = GetFeatures::current(FeatureId::VolatileWriteCache);
                (feature.encode(), false)
            }
            Step::SetWriteCache { enabled } => {
                let value = if enabled { WRITE_CACHE_ENABLED } else { 0 };
                (set(FeatureId::VolatileWriteCache, value), false)
            }
            Step::ConfigureEvents => {
                let value = self.event_mask().bits();
                (set(FeatureId::AsyncEventConfiguration, value), false)
            }
            Step::ShadowDoorbells => (self.offer_shadow_doorbells(), false),
            Step::ListNamespaces { after } => {
                (Identify::new(Cns::ActiveNamespaces, after).encode(), true)
            }
            Step::IdentifyNamespace { id } => (Identify::new(Cns::Namespace, id).encode(), true),
        };
        if !self.send(entry, reads, Purpose::Step(step)) {
            // Tried again when a slot comes back.
            self.next_step = Some(step);
        }
    }

    fn finish_step(&mut self, step: Step, completion: &AdminCompletion<Purpose>) {
        let status = completion.entry.status();
        let value = completion.entry.dword_0.get();
        let next = match step {
            Step::IdentifyController if status.is_success() => {
                let identify: IdentifyController = self.admin.data(completion, 0);
                if let Err(failure) = accept(&identify) {
                    self.fail(failure);
                    return;
                }
                Some(self.learn_controller(&identify))
            }
            Step::IdentifyCommandSet => {
                if status.is_success() {
                    let identify: IdentifyNvmController = self.admin.data(completion, 0);
                    self.facts.limits = Limits::told(&identify, self.page_min_shift());
                }
                Some(Step::QueueCount)
            }
            Step::QueueCount if status.is_success() => Some(self.learn_queues(value)),
            Step::ReadWriteCache => Some(self.learn_write_cache(status, value)),
            Step::SetWriteCache { enabled } if status.is_success() => {
                self.facts.write_cache = write_cache(enabled);
                Some(Step::ConfigureEvents)
            }
            Step::ConfigureEvents => Some(self.after_events()),
            Step::ShadowDoorbells => {
                self.facts.uses_shadow = status.is_success();
                Some(FIRST_LIST)
            }
            Step::ListNamespaces { after } => self.learn_list(after, status, completion),
            Step::IdentifyNamespace { id } => self.learn_namespace(id, status, completion),
            Step::IdentifyController | Step::QueueCount | Step::SetWriteCache { .. } => {
                let opcode = completion.opcode;
                self.recover(Failure::AdminFailed { opcode, status });
                return;
            }
        };
        match next {
            Some(step) => self.next_step = Some(step),
            None => self.finish_scan(),
        }
    }

    fn learn_controller(&mut self, identify: &IdentifyController) -> Step {
        let shift = self.page_min_shift();
        self.facts.learn(identify, shift, self.options.quirks);
        self.start_scan();
        // Early controllers have no such structure, and some answer an unknown CNS badly.
        let has_command_set = self.facts.version >= COMMAND_SET_IDENTIFY_SINCE;
        if has_command_set {
            Step::IdentifyCommandSet
        } else {
            Step::QueueCount
        }
    }

    /// Number of Queues (§5.27.1.5): never more than the doorbell window has room for.
    fn ask_queues(&self) -> SubmissionEntry {
        let mut asked = self.options.queue_pairs.max(1);
        if self.facts.quirks.contains(Quirks::ONE_QUEUE_PAIR) {
            asked = 1;
        }
        let stride = self.capabilities.doorbell_stride;
        let length = self.registers.length_bytes();
        let fits =
            |count: u16| u64::from(completion_doorbell(QueueId::new(count), stride)) + 4 <= length;
        while asked > 1 && !fits(asked) {
            asked -= 1;
        }
        let counts = QueueCounts {
            submission: u32::from(asked),
            completion: u32::from(asked),
        };
        set(FeatureId::NumberOfQueues, counts.to_dword())
    }

    fn learn_queues(&mut self, value: u32) -> Step {
        let counts = QueueCounts::from_dword(value);
        let offered = counts.submission.min(counts.completion);
        let asked = QueueCounts::from_dword(self.ask_queues().dword_11.get()).submission;
        let granted = u16::try_from(offered.min(asked)).expect("no more than was asked for");
        self.facts.queue_pairs = granted;
        if granted < self.options.queue_pairs {
            let event = ControllerEvent::FewerQueues {
                asked: self.options.queue_pairs,
                granted,
            };
            self.events.push(event, &mut self.stats);
        }
        if self.facts.has_write_cache {
            return Step::ReadWriteCache;
        }
        self.cache_target.get_or_insert(false);
        self.facts.write_cache = WriteCache::None;
        Step::ConfigureEvents
    }

    /// The cache is set to what was decided at the first start: a reset may have undone it, and
    /// queues that are open rely on it.
    fn learn_write_cache(&mut self, status: Status, value: u32) -> Step {
        // A cache that does not tell its state is taken for one in use.
        let is_enabled = !status.is_success() || value & WRITE_CACHE_ENABLED != 0;
        let target = *self
            .cache_target
            .get_or_insert(match self.options.write_cache {
                WriteCachePolicy::Keep => is_enabled,
                WriteCachePolicy::Enable => true,
                WriteCachePolicy::Disable => false,
            });
        self.facts.write_cache = write_cache(is_enabled);
        if is_enabled == target {
            Step::ConfigureEvents
        } else {
            Step::SetWriteCache { enabled: target }
        }
    }

    fn event_mask(&self) -> EventMask {
        let optional = EventMask::NAMESPACE_ATTRIBUTES | EventMask::FIRMWARE_ACTIVATION;
        let offered = EventMask::from_bits_truncate(self.facts.optional_events);
        EventMask::all().difference(optional) | (optional & offered)
    }

    fn after_events(&self) -> Step {
        let is_offered = self
            .facts
            .admin_features
            .contains(AdminFeatures::DOORBELL_BUFFER);
        let is_wanted = self.options.uses_shadow_doorbells
            && !self.facts.quirks.contains(Quirks::NO_SHADOW_DOORBELLS);
        if is_offered && is_wanted {
            Step::ShadowDoorbells
        } else {
            FIRST_LIST
        }
    }

    fn offer_shadow_doorbells(&mut self) -> SubmissionEntry {
        let (values, shadow) = self.admin.shadow_values();
        let (events, event_index) = self.admin.shadow_events();
        let page = 1 << self.page_min_shift();
        self.admin.memory().fill_zero(values, page);
        self.admin.memory().fill_zero(events, page);
        self.admin.mirror_doorbells();
        DoorbellBufferConfig {
            shadow,
            event_index,
        }
        .encode()
    }

    pub(super) fn page_min_shift(&self) -> u32 {
        prp::PAGE_SHIFT_MIN + u32::from(self.capabilities.page_size_min)
    }
}

/// Refuses a controller without I/O (CNTRLTYPE: 0 is not told, 1 I/O, 2 discovery, 3
/// administrative) or with queue entries of another size.
const fn accept(identify: &IdentifyController) -> Result<(), Failure> {
    let kind = identify.controller_type;
    if kind == 2 || kind == 3 {
        return Err(Failure::NoIoController { kind });
    }
    // Bits 3:0 are the smallest size; a device that tells nothing has 0 there.
    if identify.submission_entry_sizes & 0xF > SUBMISSION_ENTRY_SHIFT
        || identify.completion_entry_sizes & 0xF > COMPLETION_ENTRY_SHIFT
    {
        return Err(Failure::EntrySizes);
    }
    Ok(())
}

fn set(feature: FeatureId, value: u32) -> SubmissionEntry {
    SetFeatures {
        feature,
        is_saved: false,
        value,
    }
    .encode()
}

const fn write_cache(is_enabled: bool) -> WriteCache {
    if is_enabled {
        WriteCache::Volatile
    } else {
        WriteCache::Disabled
    }
}

pub(super) const FIRST_LIST: Step = Step::ListNamespaces {
    after: NamespaceId::new(0),
};
const COMMAND_SET_IDENTIFY_SINCE: Version = Version {
    major: 1,
    minor: 4,
    tertiary: 0,
};
/// As many as the admin ring has entries.
const COMPLETIONS_PER_POLL: usize = 32;
