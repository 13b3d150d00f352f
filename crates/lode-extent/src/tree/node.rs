//! A node: a block of sorted entries, and for an inner node where its children are in memory.

use crate::format::block::{Block, HEADER_BYTES, PAYLOAD_BYTES, empty_block};
use crate::tree::{KEY_END, TreeFault};
use crate::types::PoolBlock;

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 6;
/// Bytes of an inner node's value: block (6) and generation (8).
pub(crate) const CHILD_BYTES: usize = 14;

const _: () = assert!(CHILD_BYTES == crate::extent::EXTENT_BYTES);
const _: () = assert!(capacity(CHILD_BYTES) * (KEY_BYTES + CHILD_BYTES) <= PAYLOAD_BYTES);

const ABSENT: u32 = u32::MAX;
const DAMAGED: u32 = u32::MAX - 1;

/// A node's place in the store, or why it is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeId(u32);

impl NodeId {
    /// The node is not in memory.
    pub(crate) const ABSENT: Self = Self(ABSENT);
    /// The node cannot be read.
    pub(crate) const DAMAGED: Self = Self(DAMAGED);

    pub(crate) fn new(index: usize) -> Self {
        let index = u32::try_from(index).expect("fewer than 2^32 nodes");
        assert!(index < DAMAGED, "fewer than 2^32 - 2 nodes");
        Self(index)
    }

    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    #[inline]
    pub(crate) const fn is_resident(self) -> bool {
        self.0 < DAMAGED
    }

    /// Itself where it is in memory; `key` is what the caller was looking for, `end` where the
    /// node's keys end.
    #[inline]
    pub(crate) const fn resident(self, key: u64, end: u64) -> Result<Self, TreeFault> {
        match self.0 {
            ABSENT => Err(TreeFault::Absent { key }),
            DAMAGED => Err(TreeFault::Damaged { key, end }),
            _ => Ok(self),
        }
    }
}

/// A reference to a node: on the device, and in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) node: NodeId,
    /// Where the node was when it was last written.
    pub(crate) block: PoolBlock,
    /// Which checkpoint wrote it.
    pub(crate) generation: u64,
}

impl Child {
    pub(crate) const fn absent(block: PoolBlock, generation: u64) -> Self {
        Self {
            node: NodeId::ABSENT,
            block,
            generation,
        }
    }
}

/// A node in memory.
#[derive(Debug)]
pub(crate) struct Node {
    block: Box<Block>,
    children: Vec<NodeId>,
    /// Where it is on the device; `None` while it is changed.
    pub(super) address: Option<PoolBlock>,
    value_bytes: u16,
    count: u16,
    level: u8,
}

impl Node {
    /// A node without entries.
    pub(crate) fn empty(level: u8, leaf_value_bytes: usize) -> Self {
        Self::from_block(empty_block(), level, leaf_value_bytes, 0, None)
    }

    /// The node in `block`, whose header said `level` and `count`.
    pub(crate) fn from_block(
        block: Box<Block>,
        level: u8,
        leaf_value_bytes: usize,
        count: u16,
        address: Option<PoolBlock>,
    ) -> Self {
        let value_bytes = if level == 0 {
            leaf_value_bytes
        } else {
            CHILD_BYTES
        };
        let children = if level == 0 { 0 } else { usize::from(count) };
        Self {
            block,
            children: vec![NodeId::ABSENT; children],
            address,
            value_bytes: u16::try_from(value_bytes).expect("a value fits a block"),
            count,
            level,
        }
    }

    #[inline]
    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    #[inline]
    pub(crate) fn count(&self) -> usize {
        usize::from(self.count)
    }

    pub(crate) fn capacity(&self) -> usize {
        capacity(usize::from(self.value_bytes))
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.address.is_none()
    }

    /// The whole block; its header is written when it is sealed.
    pub(super) fn block_mut(&mut self) -> &mut Block {
        &mut self.block
    }

    #[inline]
    pub(crate) fn key(&self, position: usize) -> u64 {
        key_at(&self.block, self.offset(position))
    }

    #[inline]
    pub(crate) fn value(&self, position: usize) -> &[u8] {
        let start = self.offset(position) + KEY_BYTES;
        &self.block[start..start + usize::from(self.value_bytes)]
    }

    pub(crate) fn value_mut(&mut self, position: usize) -> &mut [u8] {
        let start = self.offset(position) + KEY_BYTES;
        &mut self.block[start..start + usize::from(self.value_bytes)]
    }

    pub(crate) fn set_key(&mut self, position: usize, key: u64) {
        let start = self.offset(position);
        self.block[start..start + KEY_BYTES].copy_from_slice(&key.to_le_bytes()[..KEY_BYTES]);
    }

    /// Entries with a key at most `key`.
    #[inline]
    pub(crate) fn entries_up_to(&self, key: u64) -> usize {
        // Leaves of maps and all inner nodes: the entry's length as a constant makes each step
        // one load, one comparison and one conditional move.
        if usize::from(self.value_bytes) == CHILD_BYTES {
            search(&self.block, self.count(), KEY_BYTES + CHILD_BYTES, key)
        } else {
            search(&self.block, self.count(), self.entry_bytes(), key)
        }
    }

    /// The position of `key`, or where it would go.
    pub(crate) fn find(&self, key: u64) -> Result<usize, usize> {
        let after = self.entries_up_to(key);
        match after.checked_sub(1) {
            Some(position) if self.key(position) == key => Ok(position),
            _ => Err(after),
        }
    }

    /// Puts an entry at `position`. The caller has seen to the room and the order.
    pub(crate) fn insert(&mut self, position: usize, key: u64, value: &[u8]) {
        assert!(self.count() < self.capacity(), "a node has room");
        let (start, end) = (self.offset(position), self.offset(self.count()));
        let entry = self.entry_bytes();
        self.block.copy_within(start..end, start + entry);
        self.count += 1;
        self.set_key(position, key);
        self.value_mut(position).copy_from_slice(value);
    }

    /// Takes the entries `from..to` out.
    pub(crate) fn remove(&mut self, from: usize, to: usize) {
        let (start, tail) = (self.offset(from), self.offset(to));
        let end = self.offset(self.count());
        self.block.copy_within(tail..end, start);
        let removed = to - from;
        // Unused bytes stay zero, so that equal nodes are equal blocks.
        self.block[end - (tail - start)..end].fill(0);
        self.count -= u16::try_from(removed).expect("at most all entries");
        if self.level > 0 {
            self.children.drain(from..to);
        }
    }

    /// Moves the entries from `position` on to the end of `other`.
    pub(crate) fn move_tail(&mut self, position: usize, other: &mut Self) {
        let (start, end) = (self.offset(position), self.offset(self.count()));
        let target = other.offset(other.count());
        other.block[target..target + (end - start)].copy_from_slice(&self.block[start..end]);
        self.block[start..end].fill(0);
        let moved = self.count() - position;
        let moved_count = u16::try_from(moved).expect("at most all entries");
        self.count -= moved_count;
        other.count += moved_count;
        if self.level > 0 {
            other.children.extend(self.children.drain(position..));
        }
    }

    /// The child that `key` belongs to.
    #[inline]
    pub(crate) fn child_position(&self, key: u64) -> usize {
        self.entries_up_to(key).saturating_sub(1)
    }

    /// The keys of the child at `position`, in a node whose own keys are `low..high`.
    #[inline]
    pub(crate) fn child_range(&self, position: usize, low: u64, high: u64) -> (u64, u64) {
        let child_low = if position == 0 {
            low
        } else {
            self.key(position)
        };
        let child_high = if position + 1 < self.count() {
            self.key(position + 1)
        } else {
            high
        };
        (child_low, child_high)
    }

    #[inline]
    pub(crate) fn child(&self, position: usize) -> NodeId {
        self.children[position]
    }

    /// Children; 0 for a leaf.
    pub(crate) fn children_count(&self) -> usize {
        self.children.len()
    }

    /// The reference to a child, with its place on the device.
    pub(crate) fn child_entry(&self, position: usize) -> Child {
        let value = self.value(position);
        let [a, b, c, d, e, f, generation @ ..] = value else {
            unreachable!("a child entry has {CHILD_BYTES} bytes");
        };
        let generation = generation.try_into().expect("8 bytes follow the block");
        Child {
            node: self.children[position],
            block: PoolBlock::new(u64::from_le_bytes([*a, *b, *c, *d, *e, *f, 0, 0])),
            generation: u64::from_le_bytes(generation),
        }
    }

    pub(crate) fn set_child(&mut self, position: usize, node: NodeId) {
        self.children[position] = node;
    }

    /// Puts a child at `position`.
    pub(crate) fn insert_child(&mut self, position: usize, key: u64, child: Child) {
        self.insert(position, key, &child_value(child));
        self.children.insert(position, child.node);
    }

    /// Notes where a child has been written.
    pub(crate) fn place_child(&mut self, position: usize, block: PoolBlock, generation: u64) {
        let child = Child {
            node: self.children[position],
            block,
            generation,
        };
        self.value_mut(position)
            .copy_from_slice(&child_value(child));
    }

    fn entry_bytes(&self) -> usize {
        KEY_BYTES + usize::from(self.value_bytes)
    }

    #[inline]
    fn offset(&self, position: usize) -> usize {
        HEADER_BYTES + position * self.entry_bytes()
    }
}

/// Entries among the first `count`, each of `entry_bytes`, whose key is at most `key`: a binary
/// search without a branch that data decides. It runs over byte offsets, so that a step waits for
/// an addition, a load, a comparison and a conditional move.
#[inline(always)]
fn search(block: &Block, count: usize, entry_bytes: usize, key: u64) -> usize {
    let (mut start, mut length) = (HEADER_BYTES, count);
    while length > 1 {
        let half = length / 2;
        let middle = start + half * entry_bytes;
        let is_reached = key_at(block, middle) <= key;
        start = std::hint::select_unpredictable(is_reached, middle, start);
        length -= half;
    }
    // Everywhere but at the first entry the last step forward has compared the key already.
    let is_first = start == HEADER_BYTES;
    if is_first && (count == 0 || key_at(block, start) > key) {
        return 0;
    }
    (start - HEADER_BYTES) / entry_bytes + 1
}

/// The key at byte `offset`, read with the two bytes that follow it.
#[inline(always)]
fn key_at(block: &Block, offset: usize) -> u64 {
    let word = block[offset..offset + 8].try_into().expect("8 bytes");
    u64::from_le_bytes(word) & (KEY_END - 1)
}

/// Entries of a node whose values have `value_bytes`.
pub(crate) const fn capacity(value_bytes: usize) -> usize {
    PAYLOAD_BYTES / (KEY_BYTES + value_bytes)
}

fn child_value(child: Child) -> [u8; CHILD_BYTES] {
    let mut value = [0; CHILD_BYTES];
    value[..KEY_BYTES].copy_from_slice(&child.block.get().to_le_bytes()[..KEY_BYTES]);
    value[KEY_BYTES..].copy_from_slice(&child.generation.to_le_bytes());
    value
}
