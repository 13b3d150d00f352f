//! One call of [`lode_bus::Bus::advance`]: which queues are looked at.
//!
//! Several threads may be here at once: each takes the queues whose doorbell it has rung, and only
//! when there are none those that another thread neglects. A queue that is held by another thread
//! is marked again and looked at by whoever comes next.

use std::sync::atomic::Ordering;

use lode_units::{Instant, QueueId};

use crate::batch::{Batch, Locked};
use crate::controller::Shared;
use crate::dma::DmaTable;
use crate::lanes::lane;
use crate::namespace::NamespaceTable;
use crate::queues::Attention;

impl Shared {
    /// Works for a moment; see [`lode_bus::Bus::advance`].
    pub(crate) fn advance(&self, now: Instant) -> Option<Instant> {
        let control_due = self.advance_control(now);
        if !self.is_running.load(Ordering::Acquire) {
            return control_due;
        }
        let due = self.earliest_due.load(Ordering::Acquire);
        if now.as_nanos() >= due {
            self.mark_due(now);
        }
        let again = (self.advance_queues(now) == Marked::Some).then_some(now);
        let due = self.earliest_due.load(Ordering::Acquire);
        let due = (due != Instant::FAR_FUTURE.as_nanos()).then(|| Instant::from_nanos(due));
        control_due.into_iter().chain(again).chain(due).min()
    }

    fn advance_control(&self, now: Instant) -> Option<Instant> {
        let due = self.control_due.load(Ordering::Acquire);
        let is_due = now.as_nanos() >= due;
        if !self.registers.take_control_mark() && !is_due {
            return (due != Instant::FAR_FUTURE.as_nanos()).then(|| Instant::from_nanos(due));
        }
        let Some(mut control) = self.try_control() else {
            self.registers.mark_control();
            return Some(now);
        };
        let next = self.step_control(&mut control, now);
        let stored = next.unwrap_or(Instant::FAR_FUTURE).as_nanos();
        self.control_due.store(stored, Ordering::Release);
        next
    }

    /// Marks the queues on which a command is due, and finds the next moment.
    fn mark_due(&self, now: Instant) {
        // Whoever adds a command lowers its queue's moment first and this one after it; so
        // either the loop below sees it, or the new minimum comes after this swap.
        self.earliest_due
            .store(Instant::FAR_FUTURE.as_nanos(), Ordering::SeqCst);
        for (id, slot) in self.queues.iter() {
            let due = slot.due.load(Ordering::SeqCst);
            if now.as_nanos() >= due {
                self.queues.mark(id);
            } else {
                self.earliest_due.fetch_min(due, Ordering::SeqCst);
            }
        }
    }

    /// Looks at the queues of this thread's lane or, when there is nothing to do in it, at those
    /// that another lane neglects. Returns whether a queue waits that should be looked at again.
    fn advance_queues(&self, now: Instant) -> Marked {
        let marks = self.queues.marks();
        let own = lane();
        marks.note_look(own);
        if self.serve_lane(own, now) > 0 {
            return Marked::of(marks.has_marks(own));
        }
        let mut is_marked = false;
        for other in marks.others(own) {
            if marks.is_neglected(other) {
                self.serve_lane(other, now);
            }
            is_marked |= marks.has_marks(other);
        }
        Marked::of(is_marked)
    }

    /// Works on the queues of a lane that want attention; returns how many there were.
    fn serve_lane(&self, lane: usize, now: Instant) -> usize {
        let marks = self.queues.marks();
        let mut guards = None;
        let mut count = 0;
        for word in 0..marks.words() {
            let mut wanted = marks.take_marked(lane, word);
            while wanted != 0 {
                let bit = wanted.trailing_zeros();
                wanted &= wanted - 1;
                let number = u16::try_from(word * 64).expect("a queue identifier")
                    + u16::try_from(bit).expect("below 64");
                let queue = QueueId::new(number);
                self.queues.follow(lane, queue);
                // Taken before any queue: see the lock order of `Shared`.
                let (dma, namespaces) =
                    guards.get_or_insert_with(|| (self.dma.read(), self.namespaces.read()));
                self.serve(queue, now, dma, namespaces);
                count += 1;
            }
        }
        count
    }

    fn serve(&self, id: QueueId, now: Instant, dma: &DmaTable, namespaces: &NamespaceTable) {
        let Some(slot) = self.queues.slot(id) else {
            return;
        };
        let Some(mut queue) = slot.try_lock_submission() else {
            self.queues.mark(id);
            return;
        };
        let Some(queue) = queue.as_mut() else {
            self.queues.set_busy(id, Attention::OnDoorbell);
            return;
        };
        let Some(completion_slot) = self.queues.slot(queue.completion_queue) else {
            return;
        };
        let Some(mut completions) = completion_slot.try_lock_completion() else {
            self.queues.mark(id);
            return;
        };
        let Some(completions) = completions.as_mut() else {
            return;
        };
        let locked = Locked {
            queue,
            slot,
            completions,
            completion_slot,
        };
        Batch::new(self, dma, namespaces, locked, now).work();
    }
}

/// Whether a queue waits that should be looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marked {
    Some,
    None,
}

impl Marked {
    const fn of(is_marked: bool) -> Self {
        if is_marked { Self::Some } else { Self::None }
    }
}
