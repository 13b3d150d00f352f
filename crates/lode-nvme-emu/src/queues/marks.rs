//! Which queues want attention, lane by lane.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use lode_units::QueueId;

use crate::lanes::{Apart, LANES};

/// The queues of one lane that want attention.
#[derive(Debug, Default)]
struct Lane {
    /// A bit for each queue whose doorbell was written.
    marked: [AtomicU64; WORDS],
    /// A bit for each queue that is looked at on every call: file operations in flight,
    /// completions that wait for room, shadow doorbells.
    busy: [AtomicU64; WORDS],
    /// How often a thread of this lane has looked.
    looks: AtomicU64,
    /// `looks` when a thread of another lane last found something here, plus one.
    seen: AtomicU64,
}

/// The marks of all queues. A queue belongs to the lane that rang its doorbell last; threads look
/// at their own lane first, and at another when its own threads neglect it.
#[derive(Debug)]
pub(crate) struct Marks {
    lanes: [Apart<Lane>; LANES],
    /// A bit for each lane in which a queue was ever marked.
    used: AtomicUsize,
    /// How many words of 64 queues are in use.
    words: usize,
}

/// When a queue is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attention {
    /// After its doorbell was written, or when a command is due.
    OnDoorbell,
    /// On every call.
    Always,
}

impl Marks {
    /// No marks, for so many queues.
    pub(crate) fn new(queues: usize) -> Self {
        let words = queues.div_ceil(64);
        assert!(words <= WORDS, "the options bound the queues");
        Self {
            lanes: Default::default(),
            used: AtomicUsize::new(0),
            words,
        }
    }

    /// Asks for a look at `queue` of `lane`. Pairs with the acquiring swap in
    /// [`Marks::take_marked`].
    pub(crate) fn mark(&self, lane: usize, queue: QueueId) {
        let (word, bit) = place(queue);
        let flag = 1 << lane;
        if self.used.load(Ordering::Relaxed) & flag == 0 {
            self.used.fetch_or(flag, Ordering::Relaxed);
        }
        self.lanes[lane].0.marked[word].fetch_or(bit, Ordering::Release);
    }

    /// Sets or clears whether `queue` is looked at on every call.
    pub(crate) fn set_busy(&self, lane: usize, queue: QueueId, attention: Attention) {
        let (word, bit) = place(queue);
        let word = &self.lanes[lane].0.busy[word];
        match attention {
            Attention::Always if word.load(Ordering::Relaxed) & bit == 0 => {
                word.fetch_or(bit, Ordering::Relaxed);
            }
            Attention::OnDoorbell if word.load(Ordering::Relaxed) & bit != 0 => {
                word.fetch_and(!bit, Ordering::Relaxed);
            }
            Attention::Always | Attention::OnDoorbell => {}
        }
    }

    /// How many words of 64 queues there are.
    pub(crate) const fn words(&self) -> usize {
        self.words
    }

    /// The queues of one word of a lane that want attention; their marks are taken.
    pub(crate) fn take_marked(&self, lane: usize, word: usize) -> u64 {
        let Apart(lane) = &self.lanes[lane];
        let marked = &lane.marked[word];
        let taken = match marked.load(Ordering::Relaxed) {
            0 => 0,
            _ => marked.swap(0, Ordering::Acquire),
        };
        taken | lane.busy[word].load(Ordering::Relaxed)
    }

    /// Whether a queue of `lane` was marked since it was looked at.
    pub(crate) fn has_marks(&self, lane: usize) -> bool {
        let Apart(lane) = &self.lanes[lane];
        any(&lane.marked[..self.words])
    }

    /// A thread of `lane` looks: the lane is not neglected.
    pub(crate) fn note_look(&self, lane: usize) {
        let Apart(lane) = &self.lanes[lane];
        let looks = lane.looks.load(Ordering::Relaxed);
        lane.looks.store(looks.wrapping_add(1), Ordering::Relaxed);
    }

    /// The lanes that a thread without work of its own may look at.
    pub(crate) fn others(&self, own: usize) -> impl Iterator<Item = usize> {
        let used = self.used.load(Ordering::Relaxed);
        (0..LANES).filter(move |lane| *lane != own && used >> lane & 1 == 1)
    }

    /// Whether a queue of `lane` has wanted attention for two looks from outside, and none of the
    /// lane's own threads has looked in between.
    pub(crate) fn is_neglected(&self, lane: usize) -> bool {
        let Apart(lane) = &self.lanes[lane];
        if !any(&lane.marked[..self.words]) && !any(&lane.busy[..self.words]) {
            return false;
        }
        let looks = lane.looks.load(Ordering::Relaxed).wrapping_add(1);
        lane.seen.swap(looks, Ordering::Relaxed) == looks
    }

    /// Forgets every mark.
    pub(crate) fn clear(&self) {
        for Apart(lane) in &self.lanes {
            for word in lane.marked.iter().chain(&lane.busy) {
                word.store(0, Ordering::Relaxed);
            }
        }
    }
}

fn any(words: &[AtomicU64]) -> bool {
    words.iter().any(|word| word.load(Ordering::Relaxed) != 0)
}

fn place(queue: QueueId) -> (usize, u64) {
    (usize::from(queue.get() / 64), 1 << (queue.get() % 64))
}

/// Words for the admin queue and the most I/O queues that a controller can have.
const WORDS: usize = 17;

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: QueueId = QueueId::new(70);

    #[test]
    fn a_mark_is_taken_once_and_from_its_own_lane() {
        let marks = Marks::new(128);
        marks.mark(3, QUEUE);
        assert_eq!(marks.take_marked(2, 1), 0);
        assert!(marks.has_marks(3));
        assert_eq!(marks.take_marked(3, 1), 1 << 6);
        assert_eq!(marks.take_marked(3, 1), 0);
        marks.set_busy(3, QUEUE, Attention::Always);
        assert_eq!(marks.take_marked(3, 1), 1 << 6);
        assert_eq!(marks.take_marked(3, 1), 1 << 6);
        marks.set_busy(3, QUEUE, Attention::OnDoorbell);
        assert_eq!(marks.take_marked(3, 1), 0);
    }

    #[test]
    fn a_lane_is_neglected_only_when_its_own_threads_stay_away() {
        let marks = Marks::new(128);
        assert_eq!(marks.others(0).next(), None);
        marks.mark(3, QUEUE);
        assert_eq!(marks.others(0).collect::<Vec<_>>(), [3]);
        assert_eq!(marks.others(3).next(), None);
        assert!(!marks.is_neglected(3), "first seen now");
        marks.note_look(3);
        assert!(!marks.is_neglected(3), "looked at in between");
        assert!(marks.is_neglected(3));
        marks.take_marked(3, 1);
        assert!(!marks.is_neglected(3), "nothing to do");
    }
}
