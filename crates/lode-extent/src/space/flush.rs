//! Writing the changed blocks of the space map.

use crate::format::block::{Block, BlockKind, Header, empty_block, seal};
use crate::format::geometry::{GROUP_BLOCKS, Geometry, INDEX_ENTRIES, SPACE_TOP};
use crate::format::superblock::SpaceEntry;
use crate::space::resident::{low_half, position_in_parent};
use crate::space::{Space, SpaceNode};
use crate::types::PoolBlock;

impl Space {
    /// Appends the block of each changed part of the map to `written`, each for the place of its
    /// pair that is not in use, and points the level above at it.
    pub(crate) fn flush(
        &mut self,
        geometry: &Geometry,
        generation: u64,
        pool: u64,
        written: &mut Vec<(PoolBlock, Box<Block>)>,
    ) {
        for level in 0..=SPACE_TOP {
            for node in self.dirty_nodes(level) {
                let mut block = empty_block();
                let free = self.write_node(node, &mut block);
                let slot = self.advance_entry(node, generation, free);
                let place = node.place(geometry, slot);
                let header = Header {
                    kind: if level == 0 {
                        BlockKind::SpaceBitmap
                    } else {
                        BlockKind::SpaceIndex
                    },
                    address: place.get(),
                    generation,
                    pool,
                    owner: u64::from(node.index),
                    count: 0,
                    level,
                };
                seal(&mut block, &header);
                written.push((place, block));
            }
        }
    }

    fn dirty_nodes(&self, level: u8) -> Vec<SpaceNode> {
        if level == 0 {
            return self
                .groups
                .iter()
                .filter(|(_, group)| group.is_dirty)
                .map(|(&index, _)| SpaceNode::bitmap(index))
                .collect();
        }
        self.indexes
            .iter()
            .filter(|(node, index)| node.level == level && index.is_dirty)
            .map(|(&node, _)| node)
            .collect()
    }

    /// Puts a changed block of the map into `block`; gives the free hint for the level above.
    fn write_node(&mut self, node: SpaceNode, block: &mut Block) -> u16 {
        if node.level == 0 {
            let group = self.groups.get_mut(&node.index).expect("a changed group");
            group.is_dirty = false;
            group.owned.write(block);
            let free = GROUP_BLOCKS - group.owned.count();
            return u16::try_from(free).expect("a group has fewer than 65536 blocks");
        }
        let index = self.indexes.get_mut(&node).expect("a changed index");
        index.is_dirty = false;
        index.write(block);
        index.free_hint()
    }

    fn advance_entry(&mut self, node: SpaceNode, generation: u64, free: u16) -> u8 {
        let entry = match node.parent() {
            None => &mut self.roots[position_in_parent(node, u32::MAX)],
            Some(parent) => {
                let index = self
                    .indexes
                    .get_mut(&parent)
                    .expect("the index above a block in memory is in memory");
                index.is_dirty = true;
                &mut index.entries[position_in_parent(node, INDEX_ENTRIES)]
            }
        };
        let slot = if entry.is_written { 1 - entry.slot } else { 0 };
        *entry = SpaceEntry {
            generation: low_half(generation),
            free,
            is_written: true,
            slot,
        };
        slot
    }
}
