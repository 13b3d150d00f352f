//! Bringing nodes into memory.

use crate::format::block::{Block, BlockFault, open};
use crate::tree::node::{Node, NodeId, capacity};
use crate::tree::store::Store;
use crate::tree::{HEIGHT_MAX, KEY_END, Tree};
use crate::types::PoolBlock;

/// A node that has to be read: its block, and what the block must turn out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) block: PoolBlock,
    generation: u64,
    level: u8,
    low: u64,
    high: u64,
    /// The inner node that refers to it and the position there; `None` for the root.
    parent: Option<(NodeId, usize)>,
}

impl Tree {
    /// The first node on the way to `key` that is not in memory (nor known as damaged).
    pub(crate) fn wanted(&self, store: &Store, key: u64) -> Option<Wanted> {
        if self.height == 0 {
            return None;
        }
        let (mut child, mut level) = (self.root, self.height - 1);
        let (mut low, mut high, mut parent) = (0, KEY_END, None);
        while child.node.is_resident() {
            let node = store.node(child.node);
            if node.level() == 0 {
                return None;
            }
            let position = node.child_position(key);
            parent = Some((child.node, position));
            (low, high) = node.child_range(position, low, high);
            child = node.child_entry(position);
            level -= 1;
        }
        (child.node == NodeId::ABSENT).then_some(Wanted {
            block: child.block,
            generation: child.generation,
            level,
            low,
            high,
            parent,
        })
    }

    /// Makes the node on the way to `key` that could not be read count as not in memory.
    pub(crate) fn recall(&mut self, store: &mut Store, key: u64) {
        if self.root.node == NodeId::DAMAGED {
            self.root.node = NodeId::ABSENT;
        }
        let mut at = self.root.node;
        while self.height > 0 && at.is_resident() && store.node(at).level() > 0 {
            let position = store.node(at).child_position(key);
            let child = store.node(at).child(position);
            if child == NodeId::DAMAGED {
                store.node_mut(at).set_child(position, NodeId::ABSENT);
            }
            at = child;
        }
    }

    /// Takes in the bytes of the node that was [`wanted`](Self::wanted) for `key`; says `false`
    /// where they are not that node or `check` refuses it: the node then counts as damaged.
    pub(crate) fn attach(
        &mut self,
        store: &mut Store,
        wanted: &Wanted,
        bytes: Result<&Block, BlockFault>,
        pool: u64,
        check: impl Fn(&Node, u64, u64) -> bool,
    ) -> bool {
        let node = bytes
            .and_then(|block| self.verify(wanted, block, pool))
            .ok()
            .filter(|node| node.level() > 0 || check(node, wanted.low, wanted.high));
        let is_good = node.is_some();
        let id = node.map_or(NodeId::DAMAGED, |node| store.add(node));
        match wanted.parent {
            None => self.root.node = id,
            Some((parent, position)) => store.node_mut(parent).set_child(position, id),
        }
        is_good
    }

    fn verify(&self, wanted: &Wanted, block: &Block, pool: u64) -> Result<Node, BlockFault> {
        let header = open(block)?;
        let expected = (self.shape.kind, self.shape.owner, pool, wanted.block.get());
        if (header.kind, header.owner, header.pool, header.address) != expected {
            return Err(BlockFault::Foreign);
        }
        if header.generation != wanted.generation {
            return Err(BlockFault::Stale);
        }
        let leaf_capacity = capacity(self.shape.value_bytes);
        let count = u16::try_from(header.count).map_err(|_large| BlockFault::Contents)?;
        if header.level != wanted.level || header.level >= HEIGHT_MAX || count == 0 {
            return Err(BlockFault::Contents);
        }
        if usize::from(count) > leaf_capacity && header.level == 0 {
            return Err(BlockFault::Contents);
        }
        if header.level > 0 && usize::from(count) > capacity(super::node::CHILD_BYTES) {
            return Err(BlockFault::Contents);
        }
        let node = Node::from_block(
            Box::new(*block),
            header.level,
            self.shape.value_bytes,
            count,
            Some(wanted.block),
        );
        let keys_rise = (1..node.count()).all(|index| node.key(index - 1) < node.key(index));
        let keys_fit = node.key(0) >= wanted.low && node.key(node.count() - 1) < wanted.high;
        if keys_rise && keys_fit {
            Ok(node)
        } else {
            Err(BlockFault::Contents)
        }
    }
}
