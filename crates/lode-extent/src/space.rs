//! The space map: which blocks of the pool are taken.
//!
//! A bitmap for each group, two levels of index blocks above, their roots in the superblock.
//! Every block of the map has a fixed pair of places and a checkpoint writes to the one that is
//! not in use, so that writing the map takes no space (`docs/format.md` §5). Blocks of the map
//! come into memory one by one and stay; a group that no checkpoint has written is wholly free
//! and needs no read.
//!
//! In memory a block of the pool is *owned* (some durable or recorded metadata refers to it) and
//! *busy* (it must not be handed out). Invariants, checked by [`Space::check`]:
//! 1. an owned block is busy;
//! 2. a busy block that is not owned is reserved by a write under way, or was freed by a change
//!    that is not durable yet;
//! 3. `free` counts the blocks that are not busy, in memory or not.

mod bitmap;
mod flush;
mod index;
mod reserve;
mod resident;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::format::geometry::{
    GROUP_BLOCKS, Geometry, INDEX_ENTRIES, SPACE_ROOTS, SPACE_TOP, group_fixed_blocks,
};
use crate::format::superblock::SpaceEntry;
use crate::space::bitmap::Group;
use crate::space::index::IndexNode;
use crate::types::PoolBlock;

pub(crate) use reserve::ReserveFault;

/// A block of the space map: its height above the bitmaps and its index at that height.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SpaceNode {
    pub(crate) level: u8,
    pub(crate) index: u32,
}

/// Adjacent blocks of the pool, within one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: PoolBlock,
    pub(crate) count: u32,
}

/// Why the map of a block cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpaceFault {
    /// A block of the map is not in memory.
    Absent(SpaceNode),
    /// A block of the map cannot be read: its groups are left alone.
    Damaged(SpaceNode),
}

/// The change contradicts what the map says: only from damaged metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict;

/// The space map of a pool.
#[derive(Debug)]
pub(crate) struct Space {
    roots: [SpaceEntry; SPACE_ROOTS],
    indexes: BTreeMap<SpaceNode, IndexNode>,
    groups: BTreeMap<u32, Group>,
    damaged: BTreeSet<SpaceNode>,
    free: u64,
    /// Busy and not owned.
    pending: u64,
}

impl Space {
    /// A map as the superblock's roots and count of free blocks describe it.
    pub(crate) fn new(roots: [SpaceEntry; SPACE_ROOTS], free: u64) -> Self {
        Self {
            roots,
            indexes: BTreeMap::new(),
            groups: BTreeMap::new(),
            damaged: BTreeSet::new(),
            free,
            pending: 0,
        }
    }

    /// Blocks that a new pool has free.
    pub(crate) fn initially_free(geometry: &Geometry) -> u64 {
        (0..geometry.groups())
            .map(|group| u64::from(geometry.group_blocks(group) - group_fixed_blocks(group)))
            .sum()
    }

    /// Blocks that are not busy.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Blocks that are busy and not owned.
    pub(crate) fn pending(&self) -> u64 {
        self.pending
    }

    pub(crate) fn roots(&self) -> &[SpaceEntry; SPACE_ROOTS] {
        &self.roots
    }

    /// Takes blocks that nobody had taken: for replay, where no write is under way.
    pub(crate) fn claim(&mut self, geometry: &Geometry, run: Run) -> Result<(), Conflict> {
        let Some((group, position)) = self.resident_group(geometry, run)? else {
            return Ok(());
        };
        if !group.busy.is_clear(position, run.count) {
            return Err(Conflict);
        }
        group.busy.set(position, run.count);
        self.free = self.free.checked_sub(run.count.into()).ok_or(Conflict)?;
        self.pending += u64::from(run.count);
        self.own(geometry, run)
    }

    /// Reserved blocks are referred to from now on.
    pub(crate) fn own(&mut self, geometry: &Geometry, run: Run) -> Result<(), Conflict> {
        let Some((group, position)) = self.resident_group(geometry, run)? else {
            return Ok(());
        };
        if !group.owned.is_clear(position, run.count) || !group.busy.is_full(position, run.count) {
            return Err(Conflict);
        }
        group.owned.set(position, run.count);
        group.is_dirty = true;
        self.pending -= u64::from(run.count);
        Ok(())
    }

    /// Blocks are no longer referred to, but stay busy until [`release`](Self::release)d.
    pub(crate) fn disown(&mut self, geometry: &Geometry, run: Run) -> Result<(), Conflict> {
        let Some((group, position)) = self.resident_group(geometry, run)? else {
            return Ok(());
        };
        if !group.owned.is_full(position, run.count) {
            return Err(Conflict);
        }
        group.owned.clear(position, run.count);
        group.is_dirty = true;
        self.pending += u64::from(run.count);
        Ok(())
    }

    /// Blocks that are not owned may be handed out again.
    pub(crate) fn release(&mut self, geometry: &Geometry, run: Run) -> Result<(), Conflict> {
        let Some((group, position)) = self.resident_group(geometry, run)? else {
            return Ok(());
        };
        if !group.owned.is_clear(position, run.count) || !group.busy.is_full(position, run.count) {
            return Err(Conflict);
        }
        group.busy.clear(position, run.count);
        group.longest_free = u32::MAX;
        self.free += u64::from(run.count);
        self.pending -= u64::from(run.count);
        Ok(())
    }

    /// Makes the blocks of a run that are free busy, and says how many: they are for a change that
    /// cannot be applied yet. Where the map cannot be read nothing is free to anybody.
    pub(crate) fn set_aside(&mut self, geometry: &Geometry, run: Run) -> Result<u64, Conflict> {
        let Some((group, position)) = self.resident_group(geometry, run)? else {
            return Ok(0);
        };
        let mut taken = 0;
        for bit in position..position + run.count {
            if group.busy.is_clear(bit, 1) {
                group.busy.set(bit, 1);
                taken += 1;
            }
        }
        self.free = self.free.checked_sub(taken).ok_or(Conflict)?;
        self.pending += taken;
        Ok(taken)
    }

    /// Whether nobody has taken any block of a run, as far as its map is in memory.
    pub(crate) fn is_clear(&self, geometry: &Geometry, run: Run) -> bool {
        let Some((group, position)) = geometry.group_of(run.start) else {
            return true;
        };
        let is_within = run.count <= geometry.group_blocks(group) - position;
        let group = self.groups.get(&group).filter(|_| is_within);
        group.is_none_or(|group| group.busy.is_clear(position, run.count))
    }

    /// The group of a run, which the caller has brought into memory; `None` where its map is
    /// damaged: such a run is neither taken nor given back.
    fn resident_group(
        &mut self,
        geometry: &Geometry,
        run: Run,
    ) -> Result<Option<(&mut Group, u32)>, Conflict> {
        let (group, position) = geometry.group_of(run.start).ok_or(Conflict)?;
        if run.count > geometry.group_blocks(group) - position {
            return Err(Conflict);
        }
        Ok(self.groups.get_mut(&group).map(|group| (group, position)))
    }

    /// Checks the part of the map that is in memory.
    pub(crate) fn check(&self, geometry: &Geometry) -> Result<(), &'static str> {
        let (mut pending, mut free) = (0, 0);
        for (&index, group) in &self.groups {
            let busy = u64::from(group.busy.count());
            let owned = u64::from(group.owned.count());
            if !group.busy.contains(&group.owned) {
                return Err("an owned block is not busy");
            }
            let fixed = group_fixed_blocks(index);
            if !group.owned.is_full(0, fixed) {
                return Err("the space map does not own its own blocks");
            }
            pending += busy - owned;
            free += u64::from(geometry.group_blocks(index)) - busy_within(geometry, index, group);
        }
        if pending != self.pending {
            return Err("the count of pending blocks is wrong");
        }
        if self.is_whole(geometry) && free != self.free {
            return Err("the count of free blocks is wrong");
        }
        Ok(())
    }

    /// Whether every group is in memory.
    pub(crate) fn is_whole(&self, geometry: &Geometry) -> bool {
        u32::try_from(self.groups.len()).is_ok_and(|groups| groups == geometry.groups())
    }

    /// Whether a block is owned; `None` where its group is not in memory.
    pub(crate) fn is_owned(&self, geometry: &Geometry, block: PoolBlock) -> Option<bool> {
        let (group, position) = geometry.group_of(block)?;
        Some(self.groups.get(&group)?.owned.is_full(position, 1))
    }

    /// Owned blocks of the groups in memory, those of the map itself left out.
    pub(crate) fn owned_in_memory(&self, geometry: &Geometry) -> u64 {
        self.groups
            .iter()
            .map(|(&index, group)| {
                let beyond = u64::from(group.owned.count())
                    - u64::from(GROUP_BLOCKS - geometry.group_blocks(index));
                beyond - u64::from(group_fixed_blocks(index))
            })
            .sum()
    }
}

fn busy_within(geometry: &Geometry, index: u32, group: &Group) -> u64 {
    let beyond = GROUP_BLOCKS - geometry.group_blocks(index);
    u64::from(group.busy.count() - beyond)
}

impl SpaceNode {
    /// The bitmap of a group.
    pub(crate) const fn bitmap(group: u32) -> Self {
        Self {
            level: 0,
            index: group,
        }
    }

    /// The index block that refers to this one; `None` at the top, where the superblock does.
    pub(crate) const fn parent(self) -> Option<Self> {
        if self.level >= SPACE_TOP {
            return None;
        }
        Some(Self {
            level: self.level + 1,
            index: self.index / INDEX_ENTRIES,
        })
    }

    /// The first group below this block.
    const fn first_group(self) -> u32 {
        match self.level {
            0 => self.index,
            1 => self.index * INDEX_ENTRIES,
            _ => self.index * INDEX_ENTRIES * INDEX_ENTRIES,
        }
    }

    /// Where the block lies when it is in `slot` of its pair.
    pub(crate) fn place(self, geometry: &Geometry, slot: u8) -> PoolBlock {
        geometry
            .group_start(self.first_group())
            .plus(u64::from(self.level) * 2 + u64::from(slot))
    }
}
