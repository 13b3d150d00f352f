//! The queues: doorbells that any core may write, and the rings behind them, each under its own
//! lock.
//!
//! Lock order: submission queue, then completion queue; an admin command that works on an I/O
//! queue already holds those of the admin queue. Nothing is locked in the other direction.

mod completion;
mod marks;
mod submission;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use lode_units::{Instant, QueueId};

pub(crate) use completion::CompletionQueue;
pub(crate) use marks::{Attention, Marks};
pub(crate) use submission::{FileWork, QueuePlace, SubmissionQueue};

use crate::lanes::lane;

/// One queue identifier: its doorbells and its two rings. On cache lines of its own, since the
/// next one may belong to another core.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct QueueSlot {
    /// The submission tail that the host wrote last.
    pub(crate) tail: AtomicU32,
    /// The completion head that the host wrote last.
    pub(crate) head: AtomicU32,
    /// Entries of the submission queue; 0 when there is none.
    submission_entries: AtomicU32,
    /// Entries of the completion queue; 0 when there is none.
    completion_entries: AtomicU32,
    /// Which thread rang the submission doorbell last.
    pub(crate) ringer: AtomicUsize,
    /// The lane of that thread.
    lane: AtomicUsize,
    /// The earliest moment that a command here waits for, in nanoseconds.
    pub(crate) due: AtomicU64,
    submission_rings: AtomicU64,
    completion_rings: AtomicU64,
    submission: Mutex<Option<SubmissionQueue>>,
    completion: Mutex<Option<CompletionQueue>>,
}

/// A guard of a submission queue's place, empty or not.
pub(crate) type SubmissionGuard<'a> = MutexGuard<'a, Option<SubmissionQueue>>;
/// A guard of a completion queue's place, empty or not.
pub(crate) type CompletionGuard<'a> = MutexGuard<'a, Option<CompletionQueue>>;

impl QueueSlot {
    pub(crate) fn lock_submission(&self) -> SubmissionGuard<'_> {
        self.submission
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock_completion(&self) -> CompletionGuard<'_> {
        self.completion
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_lock_submission(&self) -> Option<SubmissionGuard<'_>> {
        available(self.submission.try_lock())
    }

    pub(crate) fn try_lock_completion(&self) -> Option<CompletionGuard<'_>> {
        available(self.completion.try_lock())
    }

    /// Puts a submission queue into its place; doorbells are valid from now on.
    pub(crate) fn install_submission(&self, queue: SubmissionQueue) {
        let mut place = self.lock_submission();
        self.tail.store(0, Ordering::Relaxed);
        self.due
            .store(Instant::FAR_FUTURE.as_nanos(), Ordering::Relaxed);
        self.submission_entries
            .store(queue.entries(), Ordering::Release);
        *place = Some(queue);
    }

    /// Puts a completion queue into its place.
    pub(crate) fn install_completion(&self, queue: CompletionQueue) {
        let mut place = self.lock_completion();
        self.head.store(0, Ordering::Relaxed);
        self.completion_entries
            .store(queue.entries(), Ordering::Release);
        *place = Some(queue);
    }

    /// Takes the submission queue out; its doorbell is invalid from now on.
    pub(crate) fn take_submission(&self) -> Option<SubmissionQueue> {
        let mut place = self.lock_submission();
        self.submission_entries.store(0, Ordering::Release);
        self.due
            .store(Instant::FAR_FUTURE.as_nanos(), Ordering::Relaxed);
        place.take()
    }

    /// Takes the completion queue out.
    pub(crate) fn take_completion(&self) -> Option<CompletionQueue> {
        let mut place = self.lock_completion();
        self.completion_entries.store(0, Ordering::Release);
        place.take()
    }

    pub(crate) fn has_submission(&self) -> bool {
        self.submission_entries.load(Ordering::Acquire) != 0
    }

    pub(crate) fn has_completion(&self) -> bool {
        self.completion_entries.load(Ordering::Acquire) != 0
    }

    /// How often the submission and the completion doorbell were written.
    pub(crate) fn rings(&self) -> (u64, u64) {
        (
            self.submission_rings.load(Ordering::Relaxed),
            self.completion_rings.load(Ordering::Relaxed),
        )
    }
}

/// Why a doorbell write was not taken (NVMe Base 2.0 §5.2.1, error events).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DoorbellError {
    /// The queue does not exist.
    Register,
    /// The value lies outside the queue.
    Value,
}

/// Every queue identifier, and which of them want attention.
#[derive(Debug)]
pub(crate) struct QueueTable {
    slots: Box<[QueueSlot]>,
    marks: Marks,
    invalid_register: AtomicBool,
    invalid_value: AtomicBool,
}

impl QueueTable {
    /// The admin queue and `pairs` I/O queue pairs, none of them created yet.
    pub(crate) fn new(pairs: u16) -> Self {
        let count = usize::from(pairs) + 1;
        Self {
            slots: std::iter::repeat_with(QueueSlot::default)
                .take(count)
                .collect(),
            marks: Marks::new(count),
            invalid_register: AtomicBool::new(false),
            invalid_value: AtomicBool::new(false),
        }
    }

    /// Which queues want attention.
    pub(crate) const fn marks(&self) -> &Marks {
        &self.marks
    }

    pub(crate) fn slot(&self, queue: QueueId) -> Option<&QueueSlot> {
        self.slots.get(usize::from(queue.get()))
    }

    /// Every queue identifier with its slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (QueueId, &QueueSlot)> {
        (0..=u16::MAX).map(QueueId::new).zip(self.slots.iter())
    }

    /// Takes a doorbell write: `index` counts doorbells from the first.
    pub(crate) fn ring(&self, index: u32, value: u32, ringer: usize) {
        let queue = index / 2;
        let slot = usize::try_from(queue)
            .ok()
            .and_then(|queue| self.slots.get(queue));
        let outcome = match (slot, index % 2) {
            (None, _) => Err(DoorbellError::Register),
            (Some(slot), 0) => self.ring_submission(queue, slot, value, ringer),
            (Some(slot), _) => {
                slot.completion_rings.fetch_add(1, Ordering::Relaxed);
                let entries = slot.completion_entries.load(Ordering::Acquire);
                store_below(&slot.head, value, entries)
            }
        };
        if let Err(error) = outcome {
            let flag = match error {
                DoorbellError::Register => &self.invalid_register,
                DoorbellError::Value => &self.invalid_value,
            };
            flag.store(true, Ordering::Relaxed);
            self.mark(QueueId::new(0));
        }
    }

    fn ring_submission(
        &self,
        queue: u32,
        slot: &QueueSlot,
        value: u32,
        ringer: usize,
    ) -> Result<(), DoorbellError> {
        slot.submission_rings.fetch_add(1, Ordering::Relaxed);
        let entries = slot.submission_entries.load(Ordering::Acquire);
        store_below(&slot.tail, value, entries)?;
        slot.ringer.store(ringer, Ordering::Relaxed);
        slot.lane.store(lane(), Ordering::Relaxed);
        self.mark(QueueId::new(
            u16::try_from(queue).expect("a queue of the table"),
        ));
        Ok(())
    }

    /// The invalid doorbell writes since the last call, each kind once.
    pub(crate) fn take_invalid(&self) -> impl Iterator<Item = DoorbellError> {
        let register = self
            .invalid_register
            .swap(false, Ordering::Relaxed)
            .then_some(DoorbellError::Register);
        let value = self
            .invalid_value
            .swap(false, Ordering::Relaxed)
            .then_some(DoorbellError::Value);
        register.into_iter().chain(value)
    }

    /// Asks for a look at `queue`.
    pub(crate) fn mark(&self, queue: QueueId) {
        if let Some(slot) = self.slot(queue) {
            self.marks.mark(slot.lane.load(Ordering::Relaxed), queue);
        }
    }

    /// Sets or clears whether `queue` is looked at on every call.
    pub(crate) fn set_busy(&self, queue: QueueId, attention: Attention) {
        if let Some(slot) = self.slot(queue) {
            let lane = slot.lane.load(Ordering::Relaxed);
            self.marks.set_busy(lane, queue, attention);
        }
    }

    /// A queue was found in `lane`. When another lane rings it by now, it is left to that one from
    /// the next look on.
    pub(crate) fn follow(&self, lane: usize, queue: QueueId) {
        let rung_by = self
            .slot(queue)
            .map(|slot| slot.lane.load(Ordering::Relaxed));
        if rung_by != Some(lane) {
            self.marks.set_busy(lane, queue, Attention::OnDoorbell);
        }
    }

    /// Forgets every mark, and doorbell writes that were not possible.
    pub(crate) fn clear_marks(&self) {
        self.invalid_register.store(false, Ordering::Relaxed);
        self.invalid_value.store(false, Ordering::Relaxed);
        self.marks.clear();
    }
}

fn store_below(target: &AtomicU32, value: u32, entries: u32) -> Result<(), DoorbellError> {
    if entries == 0 {
        return Err(DoorbellError::Register);
    }
    if value >= entries {
        return Err(DoorbellError::Value);
    }
    target.store(value, Ordering::Release);
    Ok(())
}

fn available<'a, T>(
    outcome: Result<MutexGuard<'a, T>, TryLockError<MutexGuard<'a, T>>>,
) -> Option<MutexGuard<'a, T>> {
    match outcome {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
