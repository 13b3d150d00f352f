//! The nodes of all trees.

use crate::tree::node::{Node, NodeId};
use crate::types::PoolBlock;

/// The nodes in memory, and what the next checkpoint has to know of them.
#[derive(Debug, Default)]
pub(crate) struct Store {
    nodes: Vec<Option<Node>>,
    vacant: Vec<NodeId>,
    dirty: usize,
    /// Blocks of nodes that were changed or removed since the last checkpoint.
    retired: Vec<PoolBlock>,
}

impl Store {
    #[inline]
    pub(crate) fn node(&self, id: NodeId) -> &Node {
        self.nodes[id.index()].as_ref().expect("a node in use")
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.index()].as_mut().expect("a node in use")
    }

    /// Two different nodes at once.
    pub(crate) fn pair_mut(&mut self, first: NodeId, second: NodeId) -> (&mut Node, &mut Node) {
        let [first, second] = self
            .nodes
            .get_disjoint_mut([first.index(), second.index()])
            .expect("two different nodes");
        (
            first.as_mut().expect("a node in use"),
            second.as_mut().expect("a node in use"),
        )
    }

    /// Takes a node in.
    pub(crate) fn add(&mut self, node: Node) -> NodeId {
        self.dirty += usize::from(node.is_dirty());
        if let Some(id) = self.vacant.pop() {
            self.nodes[id.index()] = Some(node);
            return id;
        }
        self.nodes.push(Some(node));
        NodeId::new(self.nodes.len() - 1)
    }

    /// Takes a node out of its tree; its block is free after the next checkpoint.
    pub(crate) fn remove(&mut self, id: NodeId) {
        let node = self.nodes[id.index()].take().expect("a node in use");
        match node.address {
            Some(address) => self.retired.push(address),
            None => self.dirty -= 1,
        }
        self.vacant.push(id);
    }

    /// Marks a node as changed. Its parent has been marked before.
    pub(crate) fn mark_dirty(&mut self, id: NodeId) {
        if let Some(address) = self.node_mut(id).address.take() {
            self.retired.push(address);
            self.dirty += 1;
        }
    }

    /// Notes that a changed node has been given to a checkpoint that writes it to `address`.
    pub(super) fn mark_clean(&mut self, id: NodeId, address: PoolBlock) {
        let before = self.node_mut(id).address.replace(address);
        assert!(before.is_none(), "only a changed node is written");
        self.dirty -= 1;
    }

    /// Nodes that the next checkpoint writes.
    pub(crate) fn dirty(&self) -> usize {
        self.dirty
    }

    /// Blocks that the next checkpoint sets free.
    pub(crate) fn retired(&self) -> &[PoolBlock] {
        &self.retired
    }

    /// Hands those retired blocks to a checkpoint that it can set free.
    pub(crate) fn take_retired(&mut self, can_free: impl Fn(PoolBlock) -> bool) -> Vec<PoolBlock> {
        let all = std::mem::take(&mut self.retired);
        let (taken, kept) = all.into_iter().partition(|&block| can_free(block));
        self.retired = kept;
        taken
    }
}
