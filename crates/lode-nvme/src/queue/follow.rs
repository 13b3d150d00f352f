//! How a queue follows its controller through resets, and what it does about commands that hang.

use lode_block::{Completion, DeviceError, ErrorKind};
use lode_bus::Bus;
use lode_units::Instant;
use std::time::Duration;

use super::NamespaceQueue;
use super::slot::{Slot, SlotPhase};
use crate::gate::{Gate, GateView};
use crate::link::LinkState;
use crate::stats::{error_index, operation_index};

/// Where a queue stands.
///
/// ```text
/// Waiting ─► Live ─► Quarantined ─► Draining ─► Waiting
///    │        └─ saw only the end of a reset ──►┘
///    └─────────► Quarantined (untouched) ─► Waiting
/// any ─► Gone
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The rings are empty or hold only requests that the device never saw; the controller is
    /// to create the pair.
    Waiting,
    /// The device has the pair.
    Live,
    /// The controller is being reset: nothing is touched.
    Quarantined {
        /// Whether the device may have seen what is in flight.
        was_live: bool,
    },
    /// The device let go of everything: what was in flight is being completed.
    Draining,
    /// The device is gone, or refused the pair: what was in flight is being completed.
    Gone,
}

impl<B: Bus> NamespaceQueue<B> {
    /// One round of a queue that is not live, or whose controller's gate moved.
    #[cold]
    pub(super) fn follow(&mut self, view: GateView, completions: &mut Vec<Completion>) -> usize {
        if view != self.seen {
            self.seen = view;
            self.note_gate(view);
        }
        let found = match self.mode {
            Mode::Draining => self.drain(ErrorKind::Retry, completions),
            Mode::Gone => self.drain(ErrorKind::Gone, completions),
            Mode::Waiting | Mode::Live | Mode::Quarantined { .. } => 0,
        };
        if self.mode == Mode::Draining && self.free.len() == self.slots.len() {
            self.restart();
        }
        if self.mode == Mode::Waiting {
            self.look_for_creation();
        }
        found
    }

    /// Follows the gate before a request is taken: one that comes after a reset has begun is held
    /// rather than mixed with those that the device had.
    #[cold]
    pub(super) fn follow_early(&mut self) {
        self.seen = self.shared.view();
        self.note_gate(self.seen);
        if self.mode == Mode::Draining && self.free.len() == self.slots.len() {
            self.restart();
        }
    }

    fn note_gate(&mut self, view: GateView) {
        self.mode = match (view.gate(), self.mode) {
            (_, Mode::Gone) | (Gate::Gone, _) => Mode::Gone,
            (_, Mode::Draining) => Mode::Draining,
            (Gate::Closed, Mode::Live) => Mode::Quarantined { was_live: true },
            (Gate::Closed, Mode::Waiting) => Mode::Quarantined { was_live: false },
            (Gate::Closed, Mode::Quarantined { was_live }) => Mode::Quarantined { was_live },
            (Gate::Open, Mode::Live | Mode::Quarantined { was_live: true }) => Mode::Draining,
            (Gate::Open, Mode::Waiting | Mode::Quarantined { was_live: false }) => {
                self.link.want(view.epoch());
                Mode::Waiting
            }
        };
    }

    /// Ends requests in flight with `kind`, as many as `completions` has room for.
    fn drain(&mut self, kind: ErrorKind, completions: &mut Vec<Completion>) -> usize {
        let room = completions.capacity() - completions.len();
        let mut found = 0;
        if self.free.len() == self.slots.len() {
            return 0;
        }
        for slot in &mut self.slots {
            if found == room {
                break;
            }
            if slot.phase == SlotPhase::Free {
                continue;
            }
            slot.phase = SlotPhase::Free;
            self.free.push(self.ids.slot(slot.id));
            self.stats.completed[operation_index(slot.operation)] += 1;
            self.stats.errors[error_index(kind)] += 1;
            self.stats.recovered += 1;
            completions.push(Completion {
                tag: slot.tag,
                result: Err(DeviceError::local(kind)),
            });
            found += 1;
        }
        found
    }

    /// Everything in flight has ended: the rings are emptied for the controller to create anew.
    fn restart(&mut self) {
        self.doubts.clear();
        self.submission.restart();
        self.completion.restart();
        self.shown = 0;
        self.untold = 0;
        self.mode = match self.seen.gate() {
            Gate::Gone => Mode::Gone,
            Gate::Closed => Mode::Quarantined { was_live: false },
            Gate::Open => {
                self.link.want(self.seen.epoch());
                Mode::Waiting
            }
        };
    }

    fn look_for_creation(&mut self) {
        match self.link.state() {
            LinkState::Live { epoch, uses_shadow } if epoch == self.seen.epoch() => {
                self.go_live(uses_shadow);
            }
            LinkState::Failed => self.mode = Mode::Gone,
            LinkState::Live { .. } | LinkState::Wanted { .. } | LinkState::Closed => {}
        }
    }

    /// The controller has the pair: shows it what was held back. Deadlines begin now.
    fn go_live(&mut self, uses_shadow: bool) {
        self.submission_doorbell.restart(uses_shadow);
        self.completion_doorbell.restart(uses_shadow);
        self.mode = Mode::Live;
        self.shown = 0;
        self.first = None;
        self.scan_at = Instant::ZERO;
        for slot in &mut self.slots {
            slot.deadline = Slot::UNSTAMPED;
        }
        let tail = self.submission.tail();
        if tail != 0 {
            self.show(tail);
        }
    }

    /// Sets the deadline of the command that ended idleness, or else looks at all of them.
    pub(super) fn look_at_deadlines(&mut self) {
        let Some(first) = self.first.take() else {
            self.scan();
            return;
        };
        let slot = &mut self.slots[usize::from(first)];
        if slot.phase == SlotPhase::InFlight && slot.deadline == Slot::UNSTAMPED {
            slot.deadline = self.now + self.options.command_timeout;
        }
        self.scan_at = self.now + self.options.command_timeout / SCANS_PER_TIMEOUT;
    }

    /// Looks at the deadline of every command in flight. Runs rarely: a command whose deadline
    /// was not set at once has up to an eighth more time than it should.
    #[cold]
    fn scan(&mut self) {
        let now = self.now;
        let mut next = now + self.options.command_timeout / SCANS_PER_TIMEOUT;
        let mut reset = false;
        for slot in &mut self.slots {
            if !slot.is_with_device() {
                continue;
            }
            if slot.deadline == Slot::UNSTAMPED && slot.phase == SlotPhase::InFlight {
                slot.deadline = now + self.options.command_timeout;
            }
            if slot.phase == SlotPhase::InFlight && slot.deadline <= now {
                slot.phase = SlotPhase::Overdue;
                slot.deadline = now + self.options.abort_timeout;
                self.stats.timeouts += 1;
            }
            if slot.phase == SlotPhase::Overdue {
                if self.link.request_abort(slot.id) {
                    slot.phase = SlotPhase::Aborting;
                    self.stats.aborts_requested += 1;
                } else {
                    next = next.min(now + ABORT_RETRY_INTERVAL);
                }
            }
            let waits = matches!(slot.phase, SlotPhase::Overdue | SlotPhase::Aborting);
            if waits && slot.deadline <= now {
                slot.phase = SlotPhase::Hopeless;
                slot.deadline = Slot::UNSTAMPED;
                reset = true;
            }
            next = next.min(slot.deadline);
        }
        if reset {
            self.shared.request_reset(self.seen.epoch());
            self.stats.resets_requested += 1;
        }
        self.scan_at = next;
    }
}

const SCANS_PER_TIMEOUT: u32 = 8;
/// How soon an abort is asked for again when another one is still to be taken on.
const ABORT_RETRY_INTERVAL: Duration = Duration::from_millis(10);
