//! Enabling, resetting, shutting down: what CC asks for and CSTS tells (NVMe Base 2.0 §3.5).
//!
//! ```text
//!              CC.EN = 1            enable_delay over
//!   Disabled ───────────► Enabling ───────────────────► Ready
//!      ▲                     │ CC.EN = 0                  │ CC.EN = 0
//!      │                     ▼                            ▼
//!      └──────────────── Disabling ◄──────────────────────┘
//!        disable_delay over, no file operation in flight
//! ```

use std::sync::atomic::Ordering;

use lode_nvme_spec::registers::{
    COMPLETION_ENTRY_SHIFT, ControllerStatus, SUBMISSION_ENTRY_SHIFT, ShutdownNotification,
    ShutdownStatus,
};
use lode_units::{Instant, QueueId};

use crate::controller::Shared;
use crate::queues::{CompletionQueue, QueuePlace, SubmissionQueue};

/// Where the controller stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Disabled,
    Enabling {
        ready_at: Instant,
    },
    Ready,
    Disabling {
        not_before: Instant,
    },
}

/// The state behind CC and CSTS, with what is left of queues that were dropped.
#[derive(Debug, Default)]
pub(crate) struct ControlState {
    phase: Phase,
    /// When the shutdown that was asked for is complete.
    shutdown_at: Option<Instant>,
    /// Queues of before a reset whose file operations still use the host's memory.
    draining: Vec<SubmissionQueue>,
}

impl ControlState {
    /// Waits for the file operations of dropped queues. Blocks; bounded.
    pub(crate) fn drain_files(&mut self) -> bool {
        self.draining
            .retain_mut(|queue| !queue.files.as_mut().is_none_or(|files| files.ring.drain()));
        self.draining.is_empty()
    }

    /// Takes what has ended of the file operations of dropped queues.
    fn poll_files(&mut self) {
        self.draining.retain_mut(|queue| {
            if let Some(files) = queue.files.as_mut() {
                files.ring.submit();
                while files.ring.reap().is_some() {}
            }
            queue.file_operations() > 0
        });
    }
}

impl Shared {
    /// Looks at CC and at the clock. Returns when to look again, if nothing is written before.
    pub(crate) fn step_control(&self, control: &mut ControlState, now: Instant) -> Option<Instant> {
        if self.registers.is_removed() {
            self.drop_queues(control);
            control.poll_files();
            return (!control.draining.is_empty()).then_some(now);
        }
        if self.registers.take_reset_request() {
            self.begin_reset(control, now);
        }
        self.step_phase(control, now);
        self.step_shutdown(control, now);
        let phase = match control.phase {
            Phase::Disabled | Phase::Ready => None,
            Phase::Enabling { ready_at } => Some(ready_at),
            Phase::Disabling { not_before } => Some(not_before.max(now)),
        };
        // A stuck CSTS.RDY would have the caller spin for nothing.
        let phase = phase.filter(|_| !self.is_ready_stuck.load(Ordering::Acquire));
        phase.into_iter().chain(control.shutdown_at).min()
    }

    fn begin_reset(&self, control: &mut ControlState, now: Instant) {
        self.resets.fetch_add(1, Ordering::Relaxed);
        self.is_running.store(false, Ordering::Release);
        self.drop_queues(control);
        self.forget_session();
        control.shutdown_at = None;
        control.phase = Phase::Disabling {
            not_before: now + self.options.disable_delay,
        };
    }

    /// Goes through as many phases as are due.
    fn step_phase(&self, control: &mut ControlState, now: Instant) {
        let is_stuck = self.is_ready_stuck.load(Ordering::Acquire);
        if let Phase::Disabling { not_before } = control.phase {
            control.poll_files();
            if is_stuck || now < not_before || !control.draining.is_empty() {
                return;
            }
            self.registers.set_status(ControllerStatus::default());
            control.phase = Phase::Disabled;
        }
        if control.phase == Phase::Disabled && self.registers.configuration().enabled {
            control.phase = Phase::Enabling {
                ready_at: now + self.options.enable_delay,
            };
        }
        if let Phase::Enabling { ready_at } = control.phase
            && now >= ready_at
            && !is_stuck
        {
            control.phase = Phase::Ready;
            self.become_ready();
        }
    }

    /// Creates the admin queues, or fails the controller when what was set up is not possible.
    fn become_ready(&self) {
        let configuration = self.registers.configuration();
        let (attributes, submission, completion) = self.registers.admin_queues();
        let page = 1_u64 << (12 + configuration.page_size);
        let is_possible = configuration.page_size <= self.options.page_size_max_shift
            && configuration.command_set == 0
            && attributes.submission_entries >= 2
            && attributes.completion_entries >= 2
            && submission.is_multiple_of(page)
            && completion.is_multiple_of(page);
        if !is_possible {
            self.fail();
            return;
        }
        let admin = QueueId::new(0);
        let slot = self.queues.slot(admin).expect("the admin queue's slot");
        let entries = attributes.completion_entries.into();
        slot.install_completion(CompletionQueue::new(completion, entries, Some(0)));
        let place = QueuePlace {
            id: admin,
            base: submission,
            entries: attributes.submission_entries.into(),
        };
        slot.install_submission(self.new_submission_queue(place, admin));
        let mut status = self.registers.status();
        status.ready = true;
        self.registers.set_status(status);
        self.is_running.store(true, Ordering::Release);
        self.queues.mark(admin);
    }

    fn step_shutdown(&self, control: &mut ControlState, now: Instant) {
        let mut status = self.registers.status();
        let asked = self.registers.configuration().shutdown;
        if asked == ShutdownNotification::None || asked == ShutdownNotification::Reserved {
            return;
        }
        if status.shutdown == ShutdownStatus::Normal {
            status.shutdown = ShutdownStatus::Occurring;
            self.registers.set_status(status);
            control.shutdown_at = Some(now + self.options.shutdown_delay);
        }
        if control.shutdown_at.is_some_and(|at| now >= at) {
            control.shutdown_at = None;
            self.is_running.store(false, Ordering::Release);
            if asked == ShutdownNotification::Normal {
                self.flush_all();
            }
            status.shutdown = ShutdownStatus::Complete;
            self.registers.set_status(status);
        }
    }

    /// Puts every cache onto its media, as a normal shutdown does (NVMe Base 2.0 §3.6.1).
    fn flush_all(&self) {
        for namespace in self.namespaces.read().iter() {
            if namespace.flush().is_err() {
                // The host is not told by anything but this: the shutdown ends all the same.
                self.fail();
            }
        }
    }

    /// Takes every queue away; outstanding commands end without a completion.
    fn drop_queues(&self, control: &mut ControlState) {
        for (_id, slot) in self.queues.iter() {
            if let Some(queue) = slot.take_submission() {
                let vanished = queue.outstanding.count() as u64;
                self.vanished.fetch_add(vanished, Ordering::Relaxed);
                self.retired().add(&queue.counters);
                if queue.file_operations() > 0 {
                    control.draining.push(queue);
                }
            }
            slot.take_completion();
        }
        self.queues.clear_marks();
        self.earliest_due
            .store(Instant::FAR_FUTURE.as_nanos(), Ordering::Relaxed);
    }

    /// Forgets what a host has set up since the controller was enabled.
    fn forget_session(&self) {
        self.shadow.clear();
        self.is_write_cache_enabled.store(true, Ordering::Relaxed);
        self.admin().reset();
    }

    /// Resets the whole function: registers as after power-on. Blocks until no file operation is
    /// in flight.
    pub(crate) fn reset_function(&self) {
        let mut control = self.control();
        self.is_running.store(false, Ordering::Release);
        self.drop_queues(&mut control);
        control.drain_files();
        self.forget_session();
        self.is_ready_stuck.store(false, Ordering::Release);
        control.phase = Phase::Disabled;
        control.shutdown_at = None;
        self.registers.clear();
    }

    pub(crate) fn new_submission_queue(
        &self,
        place: QueuePlace,
        completion_queue: QueueId,
    ) -> SubmissionQueue {
        let transfer_max =
            usize::try_from(self.options.transfer_max_bytes()).expect("at most 16 MiB");
        SubmissionQueue::new(place, completion_queue, transfer_max)
    }

    /// Whether CC has the entry sizes that I/O queues need.
    pub(crate) fn has_entry_sizes(&self) -> bool {
        let configuration = self.registers.configuration();
        configuration.submission_entry_shift == SUBMISSION_ENTRY_SHIFT
            && configuration.completion_entry_shift == COMPLETION_ENTRY_SHIFT
    }
}
