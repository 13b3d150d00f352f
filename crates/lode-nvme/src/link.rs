//! What a controller and one of its queues tell each other.
//!
//! ```text
//!             queue            controller         controller
//!   (open) ─► Wanted(epoch) ─► Live(epoch)        Failed
//!               ▲      │            │               ▲
//!               │      └────────────┼───────────────┘ creation refused
//!               └── queue saw the ──┘
//!                   next epoch
//!   any ─► Closed (queue dropped): the controller deletes the queue and lets its memory go
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lode_bus::DmaMemory;
use lode_units::{CommandId, Iova, QueueId};

use crate::namespace::Claim;

/// The shared part of one I/O queue pair.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) queue: QueueId,
    pub(crate) claim: Claim,
    pub(crate) entries: u16,
    pub(crate) submission_base: Iova,
    pub(crate) completion_base: Iova,
    pub(crate) interrupt_vector: Option<u16>,
    /// The rings and lists: alive while either side holds the link.
    pub(crate) memory: DmaMemory,
    state: AtomicU64,
    /// The command that the queue wants aborted: see [`Link::request_abort`].
    abort: AtomicU64,
    /// Whether the last scan found the namespace.
    is_attached: AtomicBool,
}

/// Where a queue stands with its controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// The queue's rings are empty and wait to be created in this epoch.
    Wanted {
        /// The epoch that the queue has followed to.
        epoch: u64,
    },
    /// The controller has created the queue in this epoch.
    Live {
        /// The epoch of creation.
        epoch: u64,
        /// Whether the controller was told of shadow doorbells.
        uses_shadow: bool,
    },
    /// The controller refused to create it: it stays unusable.
    Failed,
    /// The queue is no longer held by anybody.
    Closed,
}

impl LinkState {
    const fn encode(self) -> u64 {
        match self {
            Self::Wanted { epoch } => epoch << 3,
            Self::Live {
                epoch,
                uses_shadow: false,
            } => epoch << 3 | 1,
            Self::Live {
                epoch,
                uses_shadow: true,
            } => epoch << 3 | 2,
            Self::Failed => 3,
            Self::Closed => 4,
        }
    }

    const fn decode(word: u64) -> Self {
        let epoch = word >> 3;
        match word & 7 {
            0 => Self::Wanted { epoch },
            1 => Self::Live {
                epoch,
                uses_shadow: false,
            },
            2 => Self::Live {
                epoch,
                uses_shadow: true,
            },
            3 => Self::Failed,
            _ => Self::Closed,
        }
    }
}

/// What a link is made from.
#[derive(Debug)]
pub(crate) struct LinkParts {
    pub(crate) queue: QueueId,
    pub(crate) claim: Claim,
    pub(crate) entries: u16,
    pub(crate) submission_base: Iova,
    pub(crate) completion_base: Iova,
    pub(crate) interrupt_vector: Option<u16>,
    pub(crate) memory: DmaMemory,
    pub(crate) epoch: u64,
}

impl Link {
    pub(crate) fn new(parts: LinkParts) -> Self {
        let wanted = LinkState::Wanted { epoch: parts.epoch };
        Self {
            queue: parts.queue,
            claim: parts.claim,
            entries: parts.entries,
            submission_base: parts.submission_base,
            completion_base: parts.completion_base,
            interrupt_vector: parts.interrupt_vector,
            memory: parts.memory,
            state: AtomicU64::new(wanted.encode()),
            abort: AtomicU64::new(0),
            is_attached: AtomicBool::new(true),
        }
    }

    /// The state. Acquire pairs with the other side's release: whoever sees `Wanted` sees empty
    /// rings, whoever sees `Live` sees a created queue.
    pub(crate) fn state(&self) -> LinkState {
        LinkState::decode(self.state.load(Ordering::Acquire))
    }

    /// The queue's side: its rings are empty and it follows `epoch`.
    pub(crate) fn want(&self, epoch: u64) {
        self.abort.store(0, Ordering::Relaxed);
        self.state
            .store(LinkState::Wanted { epoch }.encode(), Ordering::Release);
    }

    /// The queue's side: it is dropped.
    pub(crate) fn close(&self) {
        self.state
            .store(LinkState::Closed.encode(), Ordering::Release);
    }

    /// The controller's side: from `Wanted { epoch }` to `next`. False when the queue was
    /// dropped meanwhile.
    pub(crate) fn answer(&self, epoch: u64, next: LinkState) -> bool {
        self.state
            .compare_exchange(
                LinkState::Wanted { epoch }.encode(),
                next.encode(),
                Ordering::AcqRel,
                Ordering::Acquire,
            )
            .is_ok()
    }

    /// The controller's side: whether a scan that is about to be finished has found the namespace.
    pub(crate) fn note_attached(&self, is_attached: bool) {
        self.is_attached.store(is_attached, Ordering::Relaxed);
    }

    /// Whether the last scan found the namespace.
    pub(crate) fn is_attached(&self) -> bool {
        self.is_attached.load(Ordering::Relaxed)
    }

    /// The queue's side: asks for `command` to be aborted. False while an earlier wish has not
    /// been taken.
    pub(crate) fn request_abort(&self, command: CommandId) -> bool {
        let wish = ABORT_WISH | u64::from(command.get());
        self.abort
            .compare_exchange(0, wish, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// The controller's side: takes the wish.
    pub(crate) fn take_abort(&self) -> Option<CommandId> {
        if self.abort.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let wish = self.abort.swap(0, Ordering::Relaxed);
        let [low, high, ..] = wish.to_le_bytes();
        (wish & ABORT_WISH != 0).then(|| CommandId::new(u16::from_le_bytes([low, high])))
    }
}

const ABORT_WISH: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_comes_back() {
        for state in [
            LinkState::Wanted { epoch: 0 },
            LinkState::Wanted { epoch: 1 << 40 },
            LinkState::Live {
                epoch: 7,
                uses_shadow: false,
            },
            LinkState::Live {
                epoch: 7,
                uses_shadow: true,
            },
            LinkState::Failed,
            LinkState::Closed,
        ] {
            assert_eq!(LinkState::decode(state.encode()), state);
        }
    }
}
