//! Extents, and the map of a volume: a tree of them.
//!
//! Invariants, checked by [`check_leaf`]:
//! 1. the extents of a map do not overlap;
//! 2. an extent ends within the keys of its leaf, so that one leaf answers for a block;
//! 3. an extent lies within one allocation group.

mod edit;
mod lookup;
#[cfg(test)]
mod tests;

pub(crate) use edit::{ExtentSource, Removed, replace};
pub(crate) use lookup::pieces;

use crate::format::geometry::Geometry;
use crate::tree::KEY_END;
use crate::tree::node::Node;
use crate::types::PoolBlock;

/// Bytes of an extent in a leaf, without its key.
pub(crate) const EXTENT_BYTES: usize = 14;
/// The longest extent in blocks.
pub(crate) const EXTENT_COUNT_MAX: u32 = (1 << 28) - 1;

const COUNT_BITS: u32 = 28;

/// What an extent holds. The numbers are those of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtentKind {
    Written,
    Unwritten,
}

/// A run of blocks of a volume that lies together in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) logical: u64,
    pub(crate) physical: PoolBlock,
    pub(crate) count: u32,
    pub(crate) kind: ExtentKind,
    /// The epoch of the volume in which it was allocated: shared with a snapshot taken later.
    pub(crate) birth: u32,
}

impl Extent {
    pub(crate) fn end(&self) -> u64 {
        self.logical + u64::from(self.count)
    }

    /// The part from `start` to `end`, which lie within.
    fn part(&self, start: u64, end: u64) -> Self {
        let count = u32::try_from(end - start).expect("a part of an extent");
        Self {
            logical: start,
            physical: self.physical.plus(start - self.logical),
            count,
            ..*self
        }
    }

    /// Both as one extent, where `next` continues this one.
    fn joined(&self, next: &Self) -> Option<Self> {
        let count = self.count.checked_add(next.count)?;
        (self.end() == next.logical
            && self.physical.plus(self.count.into()) == next.physical
            && self.kind == next.kind
            && self.birth == next.birth
            && count <= EXTENT_COUNT_MAX)
            .then_some(Self { count, ..*self })
    }

    /// The value in a leaf: block (6 bytes), kind (top 4 bits) with count (28 bits), birth epoch.
    pub(crate) fn encode(&self) -> [u8; EXTENT_BYTES] {
        let kind: u32 = match self.kind {
            ExtentKind::Written => 1,
            ExtentKind::Unwritten => 2,
        };
        let mut value = [0; EXTENT_BYTES];
        value[..6].copy_from_slice(&self.physical.get().to_le_bytes()[..6]);
        value[6..10].copy_from_slice(&(kind << COUNT_BITS | self.count).to_le_bytes());
        value[10..].copy_from_slice(&self.birth.to_le_bytes());
        value
    }

    /// The extent of an entry; `None` where its kind or count is not of the format.
    #[inline]
    pub(crate) fn decode(logical: u64, value: &[u8]) -> Option<Self> {
        let value: &[u8; EXTENT_BYTES] = value.try_into().ok()?;
        // Two loads that overlap: block with half of the count word, then count word and birth.
        let low = u64::from_le_bytes(*value.first_chunk().expect("14 bytes hold 8"));
        let high = u64::from_le_bytes(*value.last_chunk().expect("14 bytes hold 8"));
        let (word, birth) = (low_half(high), low_half(high >> 32));
        let kind = match word >> COUNT_BITS {
            1 => ExtentKind::Written,
            2 => ExtentKind::Unwritten,
            _ => return None,
        };
        let count = word & EXTENT_COUNT_MAX;
        (count > 0).then_some(Self {
            logical,
            physical: PoolBlock::new(low & (KEY_END - 1)),
            count,
            kind,
            birth,
        })
    }
}

#[inline]
fn low_half(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).expect("32 bits")
}

/// The extent at `position` of a leaf that has been checked when it came into memory.
#[inline]
pub(crate) fn extent_at(leaf: &Node, position: usize) -> Extent {
    Extent::decode(leaf.key(position), leaf.value(position)).expect("a checked leaf")
}

/// Position of the extent that holds `block`, or of the first one after it.
#[inline]
pub(crate) fn first_reaching(leaf: &Node, block: u64) -> usize {
    let after = leaf.entries_up_to(block);
    match after.checked_sub(1) {
        Some(position) if extent_at(leaf, position).end() > block => position,
        _ => after,
    }
}

/// What is wrong with a leaf of a map whose keys are to be `low..high`.
pub(crate) fn check_leaf(leaf: &Node, high: u64, geometry: &Geometry) -> Result<(), &'static str> {
    let mut free_from = 0;
    for position in 0..leaf.count() {
        let extent = Extent::decode(leaf.key(position), leaf.value(position))
            .ok_or("an extent of unknown kind or without blocks")?;
        if extent.logical < free_from {
            return Err("extents overlap");
        }
        free_from = extent.end();
        let last = extent
            .physical
            .get()
            .checked_add(u64::from(extent.count) - 1);
        let first_group = geometry.group_of(extent.physical);
        let last_group = last.and_then(|last| geometry.group_of(PoolBlock::new(last)));
        match (first_group, last_group) {
            (Some((first, _)), Some((last, _))) if first == last => {}
            _ => return Err("an extent lies outside of the groups"),
        }
    }
    if free_from > high {
        return Err("an extent crosses the border of its leaf");
    }
    Ok(())
}
