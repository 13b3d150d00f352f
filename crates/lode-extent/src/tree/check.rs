//! The invariants of a tree.

use crate::tree::node::{Node, NodeId};
use crate::tree::store::Store;
use crate::tree::{KEY_END, Tree};
use crate::types::PoolBlock;

/// What a walk over a tree found.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// Blocks of unchanged nodes, whether in memory or not.
    pub(crate) blocks: Vec<PoolBlock>,
    /// Nodes that are not in memory or damaged: nothing below them was seen.
    pub(crate) unseen: usize,
    /// Nodes that cannot be read.
    pub(crate) damaged: usize,
    /// Changed nodes.
    pub(crate) dirty: usize,
}

impl Tree {
    /// Walks the part of the tree that is in memory; `leaf` sees each leaf with its range and
    /// says what is wrong with it.
    pub(crate) fn check(
        &self,
        store: &Store,
        walk: &mut Walk,
        leaf: &mut dyn FnMut(&Node, u64, u64) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        if self.height == 0 {
            return Ok(());
        }
        let (root, height) = (self.root, self.height);
        let range = (0, KEY_END);
        if root.node.is_resident() {
            return self.check_node(store, root.node, height - 1, range, walk, leaf);
        }
        note_unseen(walk, root.node, root.block);
        Ok(())
    }

    fn check_node(
        &self,
        store: &Store,
        id: NodeId,
        level: u8,
        (low, high): (u64, u64),
        walk: &mut Walk,
        leaf: &mut dyn FnMut(&Node, u64, u64) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        let node = store.node(id);
        walk.dirty += usize::from(node.is_dirty());
        walk.blocks.extend(node.address);
        if node.level() != level || node.count() == 0 || node.count() > node.capacity() {
            return Err("a node has a wrong level or count");
        }
        if (1..node.count()).any(|index| node.key(index - 1) >= node.key(index)) {
            return Err("the keys of a node do not rise");
        }
        if node.key(node.count() - 1) >= high || node.key(0) < low {
            return Err("a key lies outside of its node's range");
        }
        if level == 0 {
            return leaf(node, low, high);
        }
        for position in 0..node.count() {
            let child = node.child_entry(position);
            let range = node.child_range(position, low, high);
            if !child.node.is_resident() {
                note_unseen(walk, child.node, child.block);
                continue;
            }
            let seen = store.node(child.node);
            if seen.is_dirty() && !node.is_dirty() {
                return Err("a changed node has an unchanged parent");
            }
            if seen.address.is_some_and(|address| address != child.block) {
                return Err("a node is not where its parent says");
            }
            self.check_node(store, child.node, level - 1, range, walk, leaf)?;
        }
        Ok(())
    }
}

fn note_unseen(walk: &mut Walk, id: NodeId, block: PoolBlock) {
    walk.unseen += 1;
    walk.damaged += usize::from(id == NodeId::DAMAGED);
    walk.blocks.push(block);
}
