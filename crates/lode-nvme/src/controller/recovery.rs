//! What is done about a controller that went wrong: reset, reset of the function, the end.

use lode_bus::{Bus, Registers};
use lode_nvme_spec::registers::CC;
use lode_units::Instant;

use super::events::ControllerEvent;
use super::scan::Scan;
use super::{Controller, ControllerState};
use crate::error::Failure;
use crate::gate::Gate;

/// How far recovery has gone.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// Controller resets since it last was stable.
    attempts: u32,
    /// Whether the function was reset since then.
    has_reset_function: bool,
    /// Whether it was ever ready: then a new start is a recovery.
    was_ready: bool,
    ready_since: Option<Instant>,
    cause: Option<Failure>,
}

impl<B: Bus> Controller<B> {
    /// Goes one step further than last time: a controller reset while attempts remain, then one
    /// reset of the function, then the end.
    pub(super) fn recover(&mut self, cause: Failure) {
        self.recovery.ready_since = None;
        self.recovery.attempts += 1;
        if self.state == ControllerState::Ready {
            self.events
                .push(ControllerEvent::Resetting { cause }, &mut self.stats);
        }
        self.recovery.cause = Some(cause);
        if self.recovery.attempts <= self.options.reset_attempts_max {
            self.close_gate();
            self.disable(ControllerState::Disabling);
        } else {
            self.reset_function();
        }
    }

    /// The last resort. May block for some hundred milliseconds.
    pub(super) fn reset_function(&mut self) {
        let cause = self.recovery.cause.unwrap_or(Failure::StateTimeout {
            state: self.state.name(),
        });
        self.close_gate();
        if self.recovery.has_reset_function {
            self.fail(cause);
            return;
        }
        self.recovery.has_reset_function = true;
        self.recovery.cause = Some(cause);
        self.stats.function_resets += 1;
        match self.shared.bus.reset_function() {
            Ok(()) => self.disable(ControllerState::Disabling),
            Err(_) => self.fail(cause),
        }
    }

    /// Queues stop touching the device; memory in flight is the device's until
    /// [`Controller::release_quarantine`].
    fn close_gate(&mut self) {
        for entry in &mut self.links {
            entry.forget();
        }
        self.watch.forget();
        self.scan = Scan::default();
        self.next_step = None;
        self.aborts_in_flight = 0;
        if self.shared.view().gate() != Gate::Open {
            return;
        }
        self.shared.close();
        if self.recovery.was_ready {
            self.stats.resets += 1;
        }
    }

    /// CC.EN = 0 and CSTS.RDY = 0 were seen: the device touches no memory.
    pub(super) fn release_quarantine(&mut self) {
        if self.shared.view().gate() == Gate::Closed {
            self.shared.open();
        }
    }

    /// The controller works (again).
    pub(super) fn note_ready(&mut self) {
        if self.recovery.was_ready {
            self.stats.resets_completed += 1;
            self.events
                .push(ControllerEvent::Recovered, &mut self.stats);
        }
        self.recovery.was_ready = true;
        self.recovery.ready_since = Some(self.now);
    }

    /// Forgets earlier resets once the controller has worked for long enough.
    pub(super) fn note_stability(&mut self) {
        let Some(since) = self.recovery.ready_since else {
            return;
        };
        if self.now.saturating_duration_since(since) >= self.options.stable_after {
            self.recovery.attempts = 0;
            self.recovery.has_reset_function = false;
            self.recovery.cause = None;
        }
    }

    /// The end: nothing is asked of the device any more, its memory is hidden from it, and
    /// what its queues had in flight completes.
    pub(super) fn fail(&mut self, failure: Failure) {
        if self.state.is_end() {
            return;
        }
        self.failure = Some(failure);
        self.enter(ControllerState::Gone, Instant::FAR_FUTURE);
        // Best effort: a device that still listens stops by itself.
        self.configuration.enabled = false;
        self.registers.write_u32(CC, self.configuration.to_bits());
        self.hide_memory();
        self.shared.end();
        self.events
            .push(ControllerEvent::Gone { failure }, &mut self.stats);
    }
}
