//! Bringing blocks of the space map into memory.

use crate::format::block::{Block, BlockFault, BlockKind, open};
use crate::format::geometry::{GROUP_BLOCKS, Geometry, INDEX_ENTRIES, group_fixed_blocks};
use crate::format::superblock::SpaceEntry;
use crate::space::bitmap::{Bitmap, Group};
use crate::space::index::IndexNode;
use crate::space::{Space, SpaceFault, SpaceNode};
use crate::types::PoolBlock;

/// A block of the map that has to be read, and what it must turn out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WantedSpace {
    pub(crate) node: SpaceNode,
    pub(crate) block: PoolBlock,
    generation: u32,
}

impl Space {
    /// Sees to it that a group is in memory; one that no checkpoint wrote is made here.
    pub(crate) fn ensure_group(
        &mut self,
        geometry: &Geometry,
        group: u32,
    ) -> Result<(), SpaceFault> {
        if self.groups.contains_key(&group) {
            return Ok(());
        }
        let node = SpaceNode::bitmap(group);
        if self.entry(geometry, node)?.is_written {
            return Err(SpaceFault::Absent(node));
        }
        let unused = Group::unused(geometry.group_blocks(group), group_fixed_blocks(group));
        self.groups.insert(group, unused);
        Ok(())
    }

    /// Sees to it that the group of a block is in memory.
    pub(crate) fn ensure_block(
        &mut self,
        geometry: &Geometry,
        block: PoolBlock,
    ) -> Result<(), SpaceFault> {
        match geometry.group_of(block) {
            Some((group, _)) => self.ensure_group(geometry, group),
            None => Ok(()),
        }
    }

    /// Whether the map of a block was found to be unreadable.
    pub(crate) fn is_unreadable(&self, geometry: &Geometry, block: PoolBlock) -> bool {
        let Some((group, _)) = geometry.group_of(block) else {
            return false;
        };
        let bitmap = Some(SpaceNode::bitmap(group));
        let mut above = std::iter::successors(bitmap, |node| node.parent());
        !self.groups.contains_key(&group) && above.any(|node| self.damaged.contains(&node))
    }

    /// Blocks of the groups whose map was found to be unreadable; the ends of devices count as
    /// whole groups.
    pub(crate) fn unreadable_blocks_max(&self, geometry: &Geometry) -> u64 {
        let groups = |node: &SpaceNode| {
            let below = u64::from(INDEX_ENTRIES).pow(u32::from(node.level));
            let left = u64::from(geometry.groups().saturating_sub(node.first_group()));
            below.min(left)
        };
        self.damaged.iter().map(groups).sum::<u64>() * u64::from(GROUP_BLOCKS)
    }

    /// Where a block of the map lies, the level above it being in memory.
    pub(crate) fn current_place(&self, geometry: &Geometry, node: SpaceNode) -> PoolBlock {
        let entry = match node.parent() {
            None => self.roots.get(position_in_parent(node, u32::MAX)),
            Some(parent) => self
                .indexes
                .get(&parent)
                .and_then(|index| index.entries.get(position_in_parent(node, INDEX_ENTRIES))),
        };
        node.place(geometry, entry.map_or(0, |entry| entry.slot))
    }

    /// Blocks of the map that cannot be read are asked for again when they are needed next.
    pub(crate) fn recall_damaged(&mut self) {
        self.damaged.clear();
    }

    /// Whether a block of the map cannot be read.
    pub(crate) fn has_damage(&self) -> bool {
        !self.damaged.is_empty()
    }

    /// What the level above says of a block of the map.
    pub(crate) fn entry(
        &mut self,
        geometry: &Geometry,
        node: SpaceNode,
    ) -> Result<SpaceEntry, SpaceFault> {
        if self.damaged.contains(&node) {
            return Err(SpaceFault::Damaged(node));
        }
        let Some(parent) = node.parent() else {
            return Ok(self.roots[position_in_parent(node, u32::MAX)]);
        };
        self.ensure_index(geometry, parent)?;
        let index = &self.indexes[&parent];
        Ok(index.entries[position_in_parent(node, INDEX_ENTRIES)])
    }

    fn ensure_index(&mut self, geometry: &Geometry, node: SpaceNode) -> Result<(), SpaceFault> {
        if self.indexes.contains_key(&node) {
            return Ok(());
        }
        if self.entry(geometry, node)?.is_written {
            return Err(SpaceFault::Absent(node));
        }
        self.indexes.insert(node, IndexNode::unused());
        Ok(())
    }

    /// How to read a block of the map; `None` when it is in memory, damaged, or was never
    /// written.
    pub(crate) fn wanted(&mut self, geometry: &Geometry, node: SpaceNode) -> Option<WantedSpace> {
        if self.indexes.contains_key(&node)
            || (node.level == 0 && self.groups.contains_key(&node.index))
        {
            return None;
        }
        let entry = self.entry(geometry, node).ok()?;
        entry.is_written.then(|| WantedSpace {
            node,
            block: node.place(geometry, entry.slot),
            generation: entry.generation,
        })
    }

    /// Takes in the bytes of a block that was wanted; says `false` where they are not it: the
    /// part of the pool below it is then left alone.
    pub(crate) fn attach(
        &mut self,
        geometry: &Geometry,
        wanted: &WantedSpace,
        bytes: Result<&Block, BlockFault>,
        pool: u64,
    ) -> bool {
        let taken = bytes.and_then(|block| {
            verify(wanted, block, pool)?;
            self.take_in(geometry, wanted.node, block)
        });
        if taken.is_err() {
            self.damaged.insert(wanted.node);
        }
        taken.is_ok()
    }

    fn take_in(
        &mut self,
        geometry: &Geometry,
        node: SpaceNode,
        block: &Block,
    ) -> Result<(), BlockFault> {
        if node.level > 0 {
            self.indexes.insert(node, IndexNode::read(block)?);
            return Ok(());
        }
        let owned = Bitmap::read(block);
        let blocks = geometry.group_blocks(node.index);
        let beyond = GROUP_BLOCKS - blocks;
        let fixed = group_fixed_blocks(node.index);
        if !owned.is_full(blocks, beyond) || !owned.is_full(0, fixed) {
            return Err(BlockFault::Contents);
        }
        self.groups.insert(node.index, Group::with_owned(owned));
        Ok(())
    }
}

fn verify(wanted: &WantedSpace, block: &Block, pool: u64) -> Result<(), BlockFault> {
    let header = open(block)?;
    let kind = if wanted.node.level == 0 {
        BlockKind::SpaceBitmap
    } else {
        BlockKind::SpaceIndex
    };
    let found = (header.kind, header.level, header.owner, header.pool);
    let expected = (kind, wanted.node.level, u64::from(wanted.node.index), pool);
    if found != expected || header.address != wanted.block.get() {
        return Err(BlockFault::Foreign);
    }
    if low_half(header.generation) != wanted.generation {
        return Err(BlockFault::Stale);
    }
    Ok(())
}

/// The half of a generation that an entry of the map holds.
pub(super) fn low_half(generation: u64) -> u32 {
    u32::try_from(generation & u64::from(u32::MAX)).expect("32 bits")
}

/// Where the entry of a block lies in a parent of `entries` entries.
pub(super) fn position_in_parent(node: SpaceNode, entries: u32) -> usize {
    usize::try_from(node.index % entries).expect("an entry of a block")
}
