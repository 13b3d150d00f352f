//! Whether a change fits: into the journal, and into the space that its metadata will take.
//!
//! A checkpoint writes every changed node to a new block before it frees the old ones. So the
//! free blocks must at all times cover the changed nodes; data is turned away earlier, while
//! [`Core::headroom`] blocks are left, so that a full pool still deletes and discards.

use crate::core::Core;
use crate::tree::HEIGHT_MAX;

/// Changed nodes that make a checkpoint begin: cutting it copies them at once, in a few
/// milliseconds.
const DIRTY_NODES_TRIGGER: u64 = 1024;
/// Changed nodes at which changes wait for the checkpoint.
const DIRTY_NODES_MAX: u64 = 2 * DIRTY_NODES_TRIGGER;

const _: () = assert!(DIRTY_NODES_TRIGGER < DIRTY_NODES_MAX);

/// What becomes of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It fits.
    Granted,
    /// It will fit after a checkpoint.
    Wait,
    /// It does not fit, and a checkpoint changes nothing about that.
    NoSpace,
}

impl Core {
    /// Blocks that data may not take.
    pub(crate) fn headroom(&self) -> u64 {
        (self.geometry.blocks() / 64).clamp(64, DIRTY_NODES_MAX)
    }

    /// Nodes that the next checkpoint has to write.
    pub(crate) fn dirty_nodes(&self) -> u64 {
        u64::try_from(self.store.dirty()).expect("nodes in memory")
    }

    /// Whether a change of `bytes` of records that touches at most `nodes` nodes may be recorded.
    pub(crate) fn admits(&self, bytes: usize, nodes: u64) -> Admission {
        let needed = self.dirty_nodes() + nodes + self.object_leaves();
        if !self.journal.has_room(bytes) || self.dirty_nodes() > self.dirty_nodes_max() {
            return Admission::Wait;
        }
        if needed <= self.space.free() {
            return Admission::Granted;
        }
        // A checkpoint makes changed nodes clean, a commit sets freed blocks free; without
        // either, waiting is of no use.
        if self.dirty_nodes() > 0 || self.space.pending() > self.kept.set_aside() {
            Admission::Wait
        } else {
            Admission::NoSpace
        }
    }

    /// Blocks that data may take now.
    pub(crate) fn free_for_data(&self) -> u64 {
        let kept = self.headroom() + self.dirty_nodes() + self.object_leaves();
        self.space.free().saturating_sub(kept)
    }

    /// Whether a checkpoint is due.
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        self.journal.used() > self.journal.capacity() / 2
            || self.dirty_nodes() > self.dirty_nodes_max() / 2
    }

    /// Nodes that a change of `leaves` leaves of one map touches at most: the leaves, the nodes
    /// that they split into, and their paths.
    pub(crate) fn nodes_touched(&self, leaves: usize) -> u64 {
        let leaves = u64::try_from(leaves).expect("leaves in memory");
        3 * leaves + 2 * u64::from(HEIGHT_MAX)
    }

    fn dirty_nodes_max(&self) -> u64 {
        DIRTY_NODES_MAX.min(self.headroom())
    }

    /// Nodes of the object table that a checkpoint touches to note the new roots.
    fn object_leaves(&self) -> u64 {
        let volumes = u64::try_from(self.catalog.dirty.len()).expect("volumes in memory");
        2 * volumes + u64::from(self.objects.height())
    }
}
