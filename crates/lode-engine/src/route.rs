//! The router's decision as types: what completes on the poller that finds it done, and what goes
//! to the deferred stage.
//!
//! Each token stands for one request whose commands have all ended, and is spent once. An
//! [`Inline`] is made by [`Route::of`] alone and only for a read or a write that owes nothing; what
//! spends it is given no pool, so that it can begin no transaction and wait for nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use lode_block::Durability;

use crate::classify::Reasons;
use crate::control::Completion;
use crate::core::ShardCore;
use crate::op::{Op, OpIndex, Owner, Step};
use crate::request::{DataCompletion, Token};
use crate::stats::VolumeStats;

/// Which completions take the inline route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routing {
    /// Those that the rules allow.
    #[default]
    ByRule,
    /// None: what would complete inline goes through the deferred stage as well. For measuring
    /// what the inline route is worth.
    AllDeferred,
}

/// Where a request goes whose commands of this step have all ended.
#[derive(Debug)]
pub(crate) enum Route {
    /// Straight back to its caller.
    Inline(Inline),
    /// To the deferred stage.
    Deferred(Deferred),
    /// To its own next step, which moves data again.
    Onward,
}

impl Route {
    /// Decides by what the classifier has found, and by how the commands ended: an error never
    /// completes inline.
    #[inline]
    pub(crate) fn of(index: OpIndex, op: &Op, routing: Routing) -> Self {
        let deferred = || Self::Deferred(Deferred(Spendable::new(index)));
        if op.failure.is_some() || op.lost_lease {
            return deferred();
        }
        let Owner::Client(token) = op.owner else {
            return match op.step {
                Step::Read | Step::Write => deferred(),
                _ => Self::Onward,
            };
        };
        let achieved = match op.step {
            Step::Read | Step::Write if op.owes_nothing() => op.reached(),
            Step::Read | Step::Write => return deferred(),
            _ => return Self::Onward,
        };
        if routing == Routing::AllDeferred {
            return deferred();
        }
        Self::Inline(Inline {
            slot: Spendable::new(index),
            token,
            achieved,
        })
    }
}

/// A read or a pure overwrite that has succeeded and owes nothing.
#[derive(Debug)]
#[must_use = "a request is completed exactly once"]
pub(crate) struct Inline {
    slot: Spendable,
    token: Token,
    achieved: Durability,
}

impl Inline {
    /// Completes the request.
    #[inline]
    pub(crate) fn complete(self, figures: Option<&VolumeStats>, core: &mut ShardCore) {
        let index = self.slot.spend();
        let op = core.ops.get_mut(index);
        let buffer = op.buffer.take();
        if let Some(figures) = figures {
            let latency = core.now.as_nanos().saturating_sub(op.started.as_nanos());
            figures.record(op.operation, latency, op.length, true, Reasons::empty());
        }
        core.take_back_memory(index);
        core.ops.free(index);
        core.stats.completions_inline.increment();
        core.out.push(Completion::Data(DataCompletion {
            token: self.token,
            result: Ok(self.achieved),
            buffer,
        }));
    }

    /// The request.
    #[inline]
    pub(crate) const fn index(&self) -> OpIndex {
        self.slot.index
    }
}

/// A request that owes work, or failed.
#[derive(Debug)]
#[must_use = "a request is completed exactly once"]
pub(crate) struct Deferred(Spendable);

impl Deferred {
    /// Marks the request as one that the deferred stage will take up, and gives that its index.
    #[inline]
    pub(crate) fn enlist(self, core: &mut ShardCore) -> OpIndex {
        core.queued(self.0.spend())
    }
}

/// The index of a request, to be taken out exactly once.
#[derive(Debug)]
struct Spendable {
    index: OpIndex,
    is_spent: bool,
}

impl Spendable {
    #[inline]
    const fn new(index: OpIndex) -> Self {
        Self {
            index,
            is_spent: false,
        }
    }

    #[inline]
    fn spend(mut self) -> OpIndex {
        self.is_spent = true;
        self.index
    }
}

impl Drop for Spendable {
    #[inline]
    fn drop(&mut self) {
        if !self.is_spent {
            lost();
        }
    }
}

/// A token was dropped: its request will never end. That is a defect; it is counted, and a debug
/// build stops.
#[cold]
fn lost() {
    LOST.fetch_add(1, Ordering::Relaxed);
    debug_assert!(
        std::thread::panicking(),
        "a request was dropped instead of being completed"
    );
}

/// Requests of this process that were dropped instead of being completed. Anything but 0 is a
/// defect of the engine.
#[must_use]
pub fn requests_lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

static LOST: AtomicU64 = AtomicU64::new(0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_token_is_counted_and_stops_a_debug_build() {
        let before = requests_lost();
        let dropped = std::panic::catch_unwind(|| drop(Deferred(Spendable::new(3))));
        assert_eq!(requests_lost(), before + 1);
        assert_eq!(dropped.is_err(), cfg!(debug_assertions));
        assert_eq!(Spendable::new(3).spend(), 3, "a spent one is not");
        assert_eq!(requests_lost(), before + 1);
    }
}
