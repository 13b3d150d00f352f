//! What has to be in memory before a change, and taking it in.

use crate::core::{ApplyFault, Core};
use crate::extent::{check_leaf, extent_at, first_reaching};
use crate::format::block::{Block, BlockFault};
use crate::format::object::VolumeRecord;
use crate::format::request::RequestRecord;
use crate::load::MissingBlock;
use crate::space::SpaceFault;
use crate::tree::{Leaf, TreeFault};
use crate::types::{PoolBlock, VolumeId};

impl Core {
    /// Sees to it that the map of a volume's units `first..end` is in memory, and the space map
    /// of everything that they hold; gives the leaves that the range touches.
    pub(crate) fn ensure_range(
        &mut self,
        volume: VolumeId,
        first: u64,
        end: u64,
    ) -> Result<usize, ApplyFault> {
        let (mut key, mut leaves) = (first, 0);
        while key < end {
            let Some(leaf) = self.map_leaf(volume, key)? else {
                break;
            };
            self.ensure_leaf_space(leaf, key, end)?;
            leaves += 1;
            key = leaf.high;
        }
        Ok(leaves)
    }

    /// The leaf of a unit of a volume.
    pub(crate) fn map_leaf(&self, id: VolumeId, key: u64) -> Result<Option<Leaf>, ApplyFault> {
        let volume = self.catalog.any(id).ok_or(ApplyFault::Conflict)?;
        if volume.is_closed {
            return Err(ApplyFault::Damaged(id));
        }
        volume
            .map
            .leaf(&self.store, key)
            .map_err(|fault| match fault {
                TreeFault::Absent { key } => {
                    ApplyFault::Absent(MissingBlock::Map { volume: id, key })
                }
                TreeFault::Damaged { .. } => ApplyFault::Damaged(id),
            })
    }

    /// Sees to it that the space map of a block is in memory.
    pub(crate) fn ensure_space(&mut self, block: PoolBlock) -> Result<(), ApplyFault> {
        match self.space.ensure_block(&self.geometry, block) {
            Ok(()) => Ok(()),
            Err(SpaceFault::Absent(node)) => Err(ApplyFault::Absent(MissingBlock::Space(node))),
            Err(SpaceFault::Damaged(node)) => Err(ApplyFault::Unreadable(
                self.space.current_place(&self.geometry, node),
            )),
        }
    }

    fn ensure_leaf_space(&mut self, leaf: Leaf, first: u64, end: u64) -> Result<(), ApplyFault> {
        let position = first_reaching(self.store.node(leaf.node), first);
        for position in position..self.store.node(leaf.node).count() {
            let extent = extent_at(self.store.node(leaf.node), position);
            if extent.logical >= end {
                break;
            }
            self.ensure_space(extent.physical)?;
        }
        Ok(())
    }

    /// Where to read a missing block; `None` when it is no longer missing.
    pub(crate) fn wanted_block(&mut self, what: MissingBlock) -> Option<PoolBlock> {
        match what {
            MissingBlock::Map { volume, key } => {
                let map = &self.catalog.any(volume)?.map;
                map.wanted(&self.store, key).map(|wanted| wanted.block)
            }
            MissingBlock::Objects { key } => self
                .objects
                .wanted(&self.store, key)
                .map(|wanted| wanted.block),
            MissingBlock::Requests { key } => self
                .requests
                .wanted(&self.store, key)
                .map(|wanted| wanted.block),
            MissingBlock::Space(node) => self
                .space
                .wanted(&self.geometry, node)
                .map(|wanted| wanted.block),
        }
    }

    /// Makes what could not be read count as not in memory: the parts of these maps, and of the
    /// space map.
    pub(crate) fn recall_damaged(&mut self, maps: &[(VolumeId, u64)]) {
        self.space.recall_damaged();
        self.catalog.recall_damaged();
        for &(volume, key) in maps {
            if let Some(volume) = self.catalog.any_mut(volume) {
                volume.map.recall(&mut self.store, key);
            }
        }
    }

    /// Takes in the bytes of a missing block, if `block` is still where it is to be read from.
    /// `false`: the block is damaged, and what is below it cannot be used.
    pub(crate) fn attach(
        &mut self,
        what: MissingBlock,
        block: PoolBlock,
        bytes: Result<&Block, BlockFault>,
    ) -> bool {
        if self.wanted_block(what) != Some(block) {
            return true;
        }
        match what {
            MissingBlock::Map { volume, key } => self.attach_map(volume, key, bytes),
            MissingBlock::Objects { key } => {
                let pool = self.fold();
                let Some(wanted) = self.objects.wanted(&self.store, key) else {
                    return true;
                };
                self.objects
                    .attach(&mut self.store, &wanted, bytes, pool, |leaf, _, _| {
                        (0..leaf.count()).all(|at| VolumeRecord::decode(leaf.value(at)).is_ok())
                    })
            }
            MissingBlock::Requests { key } => {
                let pool = self.fold();
                let Some(wanted) = self.requests.wanted(&self.store, key) else {
                    return true;
                };
                self.requests
                    .attach(&mut self.store, &wanted, bytes, pool, |leaf, _, _| {
                        (0..leaf.count()).all(|at| RequestRecord::decode(leaf.value(at)).is_ok())
                    })
            }
            MissingBlock::Space(node) => {
                let pool = self.fold();
                let Some(wanted) = self.space.wanted(&self.geometry, node) else {
                    return true;
                };
                self.space.attach(&self.geometry, &wanted, bytes, pool)
            }
        }
    }

    fn attach_map(&mut self, id: VolumeId, key: u64, bytes: Result<&Block, BlockFault>) -> bool {
        let pool = self.fold();
        let Some(volume) = self.catalog.any_mut(id) else {
            return true;
        };
        let Some(wanted) = volume.map.wanted(&self.store, key) else {
            return true;
        };
        let geometry = &self.geometry;
        let is_good = volume
            .map
            .attach(&mut self.store, &wanted, bytes, pool, |leaf, _, high| {
                check_leaf(leaf, high, geometry).is_ok()
            });
        volume.is_damaged |= !is_good;
        is_good
    }
}
