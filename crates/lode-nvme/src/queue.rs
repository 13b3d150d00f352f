//! One I/O queue pair for one namespace, on one core.

mod doubt;
mod follow;
mod slot;
mod submit;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lode_block::{BlockDevice, Completion, DeviceError, ErrorKind, Geometry, Rejected, Request};
use lode_bus::Bus;
use lode_nvme_spec::CommandEnd;
use lode_units::{Instant, NamespaceId, QueueId};

use crate::command_id::CommandIds;
use crate::doorbell::{Doorbell, Shadow};
use crate::gate::{GateView, Shared};
use crate::link::Link;
use crate::namespace::Namespace;
use crate::options::QueueOptions;
use crate::prp::PrpLists;
use crate::ring::{CompletionRing, SubmissionRing};
use crate::stats::{QueueStats, error_index, operation_index};
use crate::status::outcome;

use doubt::Doubts;
use follow::Mode;
use slot::{Slot, SlotPhase};
use submit::Encoder;

/// One core's way to one namespace: an I/O queue pair. Used from one thread, which need not be
/// the controller's. Its poll also lets a device that runs inside this process work
/// ([`Bus::advance`]), and its next deadline is no later than that device's: the caller need not
/// do either.
///
/// While the controller is being reset, requests are accepted and held; they reach the device
/// when the pair has been created anew. What the device had in hand completes with
/// [`lode_block::ErrorKind::Retry`] once the device has let go of it.
///
/// A command that hangs is aborted, and the controller reset if that does not help, only while
/// the controller is polled too.
///
/// Drain it before dropping it: nobody is told of requests that are in flight then. Their
/// memory must stay alive until the controller has deleted the pair.
pub struct NamespaceQueue<B: Bus> {
    registers: B::Registers,
    submission: SubmissionRing,
    completion: CompletionRing,
    submission_doorbell: Doorbell,
    completion_doorbell: Doorbell,
    encoder: Encoder,
    ids: CommandIds,
    slots: Box<[Slot]>,
    free: Vec<u16>,
    /// The tail that the controller was told of last.
    shown: u32,
    /// Completions taken of which the controller has not been told.
    untold: usize,
    /// With how many of them it is told.
    untold_max: usize,
    mode: Mode,
    seen: GateView,
    /// When deadlines are looked at next.
    scan_at: Instant,
    /// The command that ended idleness, while its deadline is not set.
    first: Option<u16>,
    now: Instant,
    bus_due: Option<Instant>,
    doubts: Doubts,
    stats: QueueStats,
    geometry: Geometry,
    options: QueueOptions,
    link: Arc<Link>,
    shared: Arc<Shared<B>>,
}

/// What a controller makes a queue from.
pub(crate) struct QueueParts<B: Bus> {
    pub(crate) shared: Arc<Shared<B>>,
    pub(crate) registers: B::Registers,
    pub(crate) link: Arc<Link>,
    pub(crate) submission: SubmissionRing,
    pub(crate) completion: CompletionRing,
    pub(crate) submission_doorbell: (u32, Option<Shadow>),
    pub(crate) completion_doorbell: (u32, Option<Shadow>),
    pub(crate) lists: PrpLists,
    pub(crate) namespace: Namespace,
    pub(crate) options: QueueOptions,
}

impl<B: Bus> NamespaceQueue<B> {
    pub(crate) fn new(parts: QueueParts<B>) -> Self {
        let slot_count = parts.link.entries - 1;
        let ids = CommandIds::new(slot_count);
        let mut geometry = parts.namespace.geometry.clone();
        geometry.queue_depth_max = u32::from(slot_count);
        let (submission_register, submission_shadow) = parts.submission_doorbell;
        let (completion_register, completion_shadow) = parts.completion_doorbell;
        Self {
            registers: parts.registers,
            submission: parts.submission,
            completion: parts.completion,
            submission_doorbell: Doorbell::new(submission_register, submission_shadow),
            completion_doorbell: Doorbell::new(completion_register, completion_shadow),
            encoder: Encoder::new(&parts.namespace, parts.lists),
            ids,
            slots: (0..slot_count)
                .map(|index| Slot::new(ids.first(index)))
                .collect(),
            // The lowest slot is used first.
            free: (0..slot_count).rev().collect(),
            shown: 0,
            untold: 0,
            untold_max: untold_max(parts.options.interrupt_vector.is_some(), slot_count),
            mode: Mode::Waiting,
            seen: parts.shared.view(),
            scan_at: Instant::FAR_FUTURE,
            first: None,
            now: Instant::ZERO,
            bus_due: None,
            doubts: Doubts::default(),
            stats: QueueStats::default(),
            geometry,
            options: parts.options,
            link: parts.link,
            shared: parts.shared,
        }
    }

    /// Its queue identifier on the controller.
    #[must_use]
    pub fn id(&self) -> QueueId {
        self.link.queue
    }

    /// The namespace that it leads to.
    #[must_use]
    pub fn namespace(&self) -> NamespaceId {
        self.link.claim.namespace
    }

    /// Whether the controller has the pair and requests reach it; false while it is being
    /// created or the controller is being reset, and for good once the device is gone.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        matches!(self.mode, Mode::Live)
    }

    /// Whether it takes no more requests.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        matches!(self.mode, Mode::Gone)
    }

    /// What it has done.
    #[must_use]
    pub const fn stats(&self) -> QueueStats {
        self.stats
    }

    /// Somebody is going to wait for the queue's interrupt: the controller is told of every
    /// completion taken so far, and from now on with each poll. So is a queue that has just been
    /// made with a vector.
    pub fn heed_interrupt(&mut self) {
        if self.options.interrupt_vector.is_none() {
            return;
        }
        self.untold_max = untold_max(true, self.link.entries - 1);
        // Once a reset has begun nothing is rung; what was taken is of no account after it.
        let is_followed = self.mode == Mode::Live && self.shared.view() == self.seen;
        if self.untold > 0 && is_followed {
            self.tell_taken();
        }
    }

    /// Nobody waits for the queue's interrupt before [`NamespaceQueue::heed_interrupt`]:
    /// completions are acknowledged as rarely as those of a queue that is only polled.
    pub fn disregard_interrupt(&mut self) {
        self.untold_max = untold_max(false, self.link.entries - 1);
    }

    /// Takes completions off the ring.
    #[inline]
    fn reap(&mut self, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        let mut taken = 0;
        // A device that posts nonsense without end is left after one round of the ring.
        let taken_max = self.ring_entries();
        while completions.len() < completions.capacity() && taken < taken_max {
            let Some(end) = self.completion.pop_end() else {
                break;
            };
            taken += 1;
            if let Some(completion) = self.finish(end) {
                completions.push(completion);
            }
        }
        if taken > 0 {
            self.stats.productive_polls += 1;
            self.untold += taken;
            if self.untold >= self.untold_max {
                self.tell_taken();
            }
        }
        completions.len() - before
    }

    /// Tells the controller how far the completion ring was read.
    fn tell_taken(&mut self) {
        self.untold = 0;
        let head = self.completion.head();
        let is_written = self.completion_doorbell.ring(&self.registers, head);
        self.stats.completion_doorbells += u64::from(is_written);
    }

    #[inline]
    const fn ring_entries(&self) -> usize {
        self.slots.len() + 1
    }

    /// Ends the request that `end` names; `None` when it names none in flight.
    #[inline]
    fn finish(&mut self, end: CommandEnd) -> Option<Completion> {
        let id = end.command_id;
        let index = self.ids.index(id);
        let slot = self.slots.get(index);
        if !slot.is_some_and(|slot| slot.is_named(id)) {
            self.stats.stale_completions += 1;
            return None;
        }
        let result = outcome(end.status);
        if let Err(error) = result
            && self.is_doubtful(error)
        {
            self.doubt(index, error);
            return None;
        }
        Some(self.end(index, result))
    }

    /// Frees the slot at `index`, whose request has ended with `result`.
    #[inline]
    fn end(&mut self, index: usize, result: Result<(), DeviceError>) -> Completion {
        let slot = &mut self.slots[index];
        let operation = slot.operation;
        let tag = slot.tag;
        slot.phase = SlotPhase::Free;
        self.free.push(self.ids.slot(slot.id));
        self.stats.completed[operation_index(operation)] += 1;
        if let Err(error) = result {
            self.stats.errors[error_index(error.kind)] += 1;
            let is_media = error.kind == ErrorKind::Media;
            self.stats.media_errors[operation_index(operation)] += u64::from(is_media);
        }
        Completion { tag, result }
    }
}

impl<B: Bus> BlockDevice for NamespaceQueue<B> {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    #[inline]
    fn submit(&mut self, request: Request) -> Result<(), Rejected> {
        self.take(request)
    }

    fn kick(&mut self) {
        let tail = self.submission.tail();
        // When a reset has begun, poll follows it; nothing is rung on the way.
        if tail == self.shown || self.mode != Mode::Live || self.shared.view() != self.seen {
            return;
        }
        self.show(tail);
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) -> usize {
        self.now = now;
        self.bus_due = self.shared.bus.advance(now);
        let view = self.shared.view();
        if view != self.seen || self.mode != Mode::Live {
            let found = self.follow(view, completions);
            if self.mode != Mode::Live {
                return found;
            }
        }
        let mut found = self.reap(completions);
        if !self.doubts.is_empty() {
            found += self.resolve(completions);
        }
        if now >= self.scan_at && self.in_flight() > 0 {
            self.look_at_deadlines();
        }
        found
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn next_deadline(&self) -> Option<Instant> {
        let own = match self.mode {
            Mode::Live if !self.doubts.is_empty() => Some(self.now + FOLLOW_INTERVAL),
            Mode::Live if self.in_flight() > 0 => Some(self.scan_at),
            Mode::Gone if self.in_flight() == 0 => None,
            Mode::Live => None,
            Mode::Waiting | Mode::Quarantined { .. } | Mode::Draining | Mode::Gone => {
                Some(self.now + FOLLOW_INTERVAL)
            }
        };
        match (own, self.bus_due) {
            (Some(own), Some(due)) => Some(own.min(due)),
            (own, due) => own.or(due),
        }
    }
}

impl<B: Bus> Drop for NamespaceQueue<B> {
    fn drop(&mut self) {
        self.link.close();
    }
}

impl<B: Bus> fmt::Debug for NamespaceQueue<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("NamespaceQueue")
            .field("bus", &self.shared.bus.name())
            .field("queue", &self.link.queue)
            .field("namespace", &self.link.claim.namespace)
            .field("mode", &self.mode)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

/// With how many completions taken a controller is told of them. A register is written for each
/// half of the ring rather than for each poll: until then the other half has room for what is in
/// flight, and [`NamespaceQueue::show`] looks whether that is enough. Where somebody heeds the
/// interrupts, at once: a controller need not interrupt again while the host has not said that it
/// saw the last completions.
fn untold_max(is_heeded: bool, slot_count: u16) -> usize {
    if is_heeded {
        1
    } else {
        usize::from(slot_count).div_ceil(2)
    }
}

/// How soon a queue that waits for its controller wants to be polled again.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(1);
