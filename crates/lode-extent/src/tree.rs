//! A copy-on-write B+tree of fixed-size entries, held as the very blocks that go to the device.
//!
//! Keys are 48-bit numbers; the length of the values belongs to the [`Shape`]. Nodes come into
//! memory one by one: an operation that needs one which is not there says so before it changes
//! an entry. Nodes of all trees live in one [`Store`]; a changed node has no address until the
//! next checkpoint writes it to a new place ([`Tree::flush`]).
//!
//! Invariants, checked by [`Tree::check`]:
//! 1. the keys of a node rise strictly and lie in the range that its parent gives it;
//! 2. the parent of a changed node is changed;
//! 3. a node has an address exactly while it is unchanged;
//! 4. only the root may be short of entries, and no node is empty.

pub(crate) mod check;
mod edit;
pub(crate) mod flush;
pub(crate) mod node;
mod resident;
pub(crate) mod store;
#[cfg(test)]
mod tests;

use crate::format::block::BlockKind;
use crate::format::object::Root;
use crate::tree::node::{Child, NodeId};
use crate::tree::store::Store;

/// One past the largest key.
pub(crate) const KEY_END: u64 = 1 << 48;
/// The most levels of a tree: a tree of nodes at least a quarter full never gets there.
pub(crate) const HEIGHT_MAX: u8 = 10;

/// What the nodes of a tree are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) kind: BlockKind,
    /// The object or table that the tree belongs to.
    pub(crate) owner: u64,
    /// Bytes of a leaf's values.
    pub(crate) value_bytes: usize,
}

/// A tree; its nodes are in the [`Store`] that each call is given.
#[derive(Debug)]
pub(crate) struct Tree {
    shape: Shape,
    root: Child,
    height: u8,
}

/// A leaf, and the keys `low..high` that belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub(crate) node: NodeId,
    pub(crate) low: u64,
    pub(crate) high: u64,
}

/// Why an operation could not reach the leaf of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TreeFault {
    /// A node on the way to `key` is not in memory.
    Absent { key: u64 },
    /// A node on the way to `key` cannot be read; neither can the rest of the keys before `end`.
    Damaged { key: u64, end: u64 },
}

impl Tree {
    /// The tree that starts at `root`.
    pub(crate) fn new(shape: Shape, root: Root) -> Self {
        Self {
            shape,
            root: Child::absent(root.block, root.generation),
            height: root.height,
        }
    }

    /// Whether it has no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.height == 0
    }

    /// Levels, 0 for an empty tree.
    pub(crate) fn height(&self) -> u8 {
        self.height
    }

    /// Whether a checkpoint has to write it.
    pub(crate) fn is_dirty(&self, store: &Store) -> bool {
        self.root.node.is_resident() && store.node(self.root.node).is_dirty()
    }

    /// The leaf that `key` belongs to; `None` in an empty tree. Does not allocate.
    pub(crate) fn leaf(&self, store: &Store, key: u64) -> Result<Option<Leaf>, TreeFault> {
        if self.height == 0 {
            return Ok(None);
        }
        let mut leaf = Leaf {
            node: self.root.node.resident(key, KEY_END)?,
            low: 0,
            high: KEY_END,
        };
        loop {
            let node = store.node(leaf.node);
            if node.level() == 0 {
                return Ok(Some(leaf));
            }
            let position = node.child_position(key);
            (leaf.low, leaf.high) = node.child_range(position, leaf.low, leaf.high);
            leaf.node = node.child(position).resident(key, leaf.high)?;
        }
    }

    /// The value of `key`.
    pub(crate) fn get<'store>(
        &self,
        store: &'store Store,
        key: u64,
    ) -> Result<Option<&'store [u8]>, TreeFault> {
        let Some(leaf) = self.leaf(store, key)? else {
            return Ok(None);
        };
        let node = store.node(leaf.node);
        Ok(node.find(key).ok().map(|position| node.value(position)))
    }
}
