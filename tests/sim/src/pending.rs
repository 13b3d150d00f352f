//! Requests in flight, as the model remembers them.

use crate::model::Blocks;

/// A request in flight.
#[derive(Debug)]
pub(crate) struct Pending {
    /// The event that it was begun at.
    pub(crate) begun: u64,
    /// The volume, and which of those that have borne its name.
    pub(crate) volume: usize,
    pub(crate) generation: u64,
    /// A resize came after it, on whatever core, that takes some of its blocks away.
    pub(crate) is_overtaken: bool,
    pub(crate) kind: Kind,
}

impl Pending {
    /// One past the last block that it is about.
    pub(crate) fn end(&self) -> usize {
        match &self.kind {
            Kind::Read { blocks, .. }
            | Kind::Change { blocks }
            | Kind::Discard { blocks }
            | Kind::Compare { blocks, .. } => blocks.end,
            Kind::Flush | Kind::Create | Kind::Resize { .. } | Kind::Delete | Kind::Open => 0,
        }
    }
}

/// What it is to do.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Read the blocks.
    Read {
        /// Which.
        blocks: Blocks,
        /// Whether what is found is what there is from now on.
        settles: bool,
    },
    /// Make the blocks hold a value: write, write zeroes.
    Change {
        /// Which.
        blocks: Blocks,
    },
    /// Give them back, so that they read as zeros.
    Discard {
        /// Which: whole units.
        blocks: Blocks,
    },
    /// Make the blocks hold a value where they hold what is expected.
    Compare {
        /// Which.
        blocks: Blocks,
        /// What is expected of each.
        expected: Vec<u64>,
    },
    /// Make what has ended durable.
    Flush,
    /// Make the volume.
    Create,
    /// Give it a new size in blocks.
    Resize {
        /// Which.
        blocks: usize,
        /// The blocks that are zeroed on the way.
        zeroed: Blocks,
    },
    /// Delete it.
    Delete,
    /// Look for it after a boot.
    Open,
}
