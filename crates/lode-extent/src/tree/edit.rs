//! Changing a tree: room is made on the way down, shortage is mended from the bottom up.

use smallvec::SmallVec;

use crate::tree::node::{Child, Node, NodeId};
use crate::tree::store::Store;
use crate::tree::{HEIGHT_MAX, KEY_END, Leaf, Tree, TreeFault};
use crate::types::PoolBlock;

/// The inner nodes from the root down, each with the position of the child that was taken.
type Path = SmallVec<[(NodeId, usize); 8]>;

impl Tree {
    /// The leaf of `key`, marked as changed, with room for `room` more entries.
    ///
    /// Entries stay as they are; an absent node is reported before anything is split for it.
    pub(crate) fn edit_leaf(
        &mut self,
        store: &mut Store,
        key: u64,
        room: usize,
    ) -> Result<Leaf, TreeFault> {
        self.leaf(store, key)?;
        if self.height == 0 {
            self.plant(store);
        }
        if is_crowded(store.node(self.root.node), room) {
            self.grow(store);
        }
        let mut leaf = Leaf {
            node: self.root.node,
            low: 0,
            high: KEY_END,
        };
        loop {
            store.mark_dirty(leaf.node);
            let node = store.node(leaf.node);
            if node.level() == 0 {
                return Ok(leaf);
            }
            let mut position = node.child_position(key);
            let child = node.child(position);
            if is_crowded(store.node(child), room) {
                self.split(store, leaf.node, position, key);
                position = store.node(leaf.node).child_position(key);
            }
            let node = store.node(leaf.node);
            (leaf.low, leaf.high) = node.child_range(position, leaf.low, leaf.high);
            leaf.node = node.child(position);
        }
    }

    /// Sets the value of `key`.
    pub(crate) fn upsert(
        &mut self,
        store: &mut Store,
        key: u64,
        value: &[u8],
    ) -> Result<(), TreeFault> {
        let leaf = self.edit_leaf(store, key, 1)?;
        let node = store.node_mut(leaf.node);
        match node.find(key) {
            Ok(position) => node.value_mut(position).copy_from_slice(value),
            Err(position) => node.insert(position, key, value),
        }
        Ok(())
    }

    /// Takes `key` out; says whether it was there.
    pub(crate) fn remove(&mut self, store: &mut Store, key: u64) -> Result<bool, TreeFault> {
        if self.get(store, key)?.is_none() {
            return Ok(false);
        }
        let leaf = self.edit_leaf(store, key, 0)?;
        let node = store.node_mut(leaf.node);
        let position = node.find(key).expect("the key was found just now");
        node.remove(position, position + 1);
        self.tidy(store, key);
        Ok(true)
    }

    /// Mends what a removal left short on the way to `key`: empty nodes go, short ones are
    /// merged with a neighbour that is in memory.
    pub(crate) fn tidy(&mut self, store: &mut Store, key: u64) {
        let path = self.path(store, key);
        for &(parent, position) in path.iter().rev() {
            let child = store.node(parent).child(position);
            let (count, capacity) = (store.node(child).count(), store.node(child).capacity());
            if count == 0 {
                store.node_mut(parent).remove(position, position + 1);
                store.remove(child);
            } else if count >= capacity / 4 || !merge_with_neighbour(store, parent, position) {
                break;
            }
        }
        self.shrink(store);
    }

    fn path(&self, store: &Store, key: u64) -> Path {
        let mut path = Path::new();
        let mut id = self.root.node;
        while id.is_resident() && store.node(id).level() > 0 {
            let position = store.node(id).child_position(key);
            path.push((id, position));
            id = store.node(id).child(position);
        }
        path
    }

    fn plant(&mut self, store: &mut Store) {
        let root = store.add(Node::empty(0, self.shape.value_bytes));
        self.root = unwritten(root);
        self.height = 1;
    }

    /// Puts a new root above the old one.
    fn grow(&mut self, store: &mut Store) {
        assert!(self.height < HEIGHT_MAX, "a tree stays low");
        store.mark_dirty(self.root.node);
        let mut root = Node::empty(self.height, self.shape.value_bytes);
        root.insert_child(0, 0, unwritten(self.root.node));
        self.root = unwritten(store.add(root));
        self.height += 1;
    }

    /// Takes roots with one child, and an empty root leaf, away.
    fn shrink(&mut self, store: &mut Store) {
        while self.height > 0 {
            let root = store.node(self.root.node);
            let only = match (root.level(), root.count()) {
                (_, 0) => None,
                (0, _) => return,
                (_, 1) => Some(root.child_entry(0)),
                (_, _) => return,
            };
            if only.is_some_and(|child| !child.node.is_resident()) {
                return;
            }
            store.remove(self.root.node);
            self.height = only.map_or(0, |_| self.height - 1);
            self.root = only.unwrap_or(unwritten(NodeId::ABSENT));
        }
    }

    /// Splits the child at `position`, so that the part `key` belongs to has room.
    fn split(&self, store: &mut Store, parent: NodeId, position: usize, key: u64) {
        let left = store.node(parent).child(position);
        store.mark_dirty(left);
        let level = store.node(left).level();
        let right = store.add(Node::empty(level, self.shape.value_bytes));
        let (left_node, right_node) = store.pair_mut(left, right);
        let last = left_node.count() - 1;
        // Rising keys, as of a volume written from its start, leave full nodes behind.
        let at = if key > left_node.key(last) {
            last
        } else {
            left_node.count() / 2
        };
        left_node.move_tail(at, right_node);
        let (first, separator) = (left_node.key(0), right_node.key(0));
        let parent = store.node_mut(parent);
        if position == 0 && parent.key(0) > first {
            // The first child took keys over from a neighbour that is gone.
            parent.set_key(0, first);
        }
        parent.insert_child(position + 1, separator, unwritten(right));
    }
}

fn unwritten(node: NodeId) -> Child {
    Child {
        node,
        block: PoolBlock::new(0),
        generation: 0,
    }
}

fn is_crowded(node: &Node, leaf_room: usize) -> bool {
    let room = if node.level() == 0 { leaf_room } else { 1 };
    node.count() + room > node.capacity()
}

/// Merges the short child at `position` with the one after or before it, where that one is in
/// memory and both leave a quarter free; says whether it did.
fn merge_with_neighbour(store: &mut Store, parent: NodeId, position: usize) -> bool {
    let candidates = [Some(position), position.checked_sub(1)];
    for left in candidates.into_iter().flatten() {
        if left + 1 < store.node(parent).count() && merge(store, parent, left) {
            return true;
        }
    }
    false
}

fn merge(store: &mut Store, parent: NodeId, left_position: usize) -> bool {
    let node = store.node(parent);
    let (left, right) = (node.child(left_position), node.child(left_position + 1));
    if !left.is_resident() || !right.is_resident() {
        return false;
    }
    let separator = node.key(left_position + 1);
    let (left_node, right_node) = (store.node(left), store.node(right));
    if left_node.count() + right_node.count() > left_node.capacity() * 3 / 4 {
        return false;
    }
    store.mark_dirty(left);
    let (left_node, right_node) = store.pair_mut(left, right);
    if right_node.level() > 0 {
        // The first child of a node reaches down to the node's own start.
        right_node.set_key(0, separator);
    }
    right_node.move_tail(0, left_node);
    store
        .node_mut(parent)
        .remove(left_position + 1, left_position + 2);
    store.remove(right);
    true
}
