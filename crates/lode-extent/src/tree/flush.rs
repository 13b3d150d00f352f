//! Writing the changed nodes of a tree to new places.

use crate::format::block::{Block, Header, seal};
use crate::format::object::Root;
use crate::tree::Tree;
use crate::tree::node::NodeId;
use crate::tree::store::Store;
use crate::types::PoolBlock;

/// Where a checkpoint's nodes go.
#[derive(Debug)]
pub(crate) struct Flush<'a> {
    pub(crate) generation: u64,
    pub(crate) pool: u64,
    /// Blocks for the nodes, one for each changed node.
    pub(crate) places: &'a mut Vec<PoolBlock>,
    /// The sealed blocks.
    pub(crate) written: &'a mut Vec<(PoolBlock, Box<Block>)>,
}

impl Tree {
    /// Gives every changed node a new place and appends its block to `flush.written`.
    pub(crate) fn flush(&mut self, store: &mut Store, flush: &mut Flush<'_>) {
        if self.is_dirty(store) {
            self.root.block = self.flush_node(store, self.root.node, flush);
            self.root.generation = flush.generation;
        }
    }

    /// Where the tree starts. Only exact while nothing is changed.
    pub(crate) fn placed_root(&self) -> Root {
        if self.height == 0 {
            return Root::default();
        }
        Root {
            block: self.root.block,
            generation: self.root.generation,
            height: self.height,
        }
    }

    fn flush_node(&self, store: &mut Store, id: NodeId, flush: &mut Flush<'_>) -> PoolBlock {
        for position in 0..store.node(id).children_count() {
            let child = store.node(id).child(position);
            if child.is_resident() && store.node(child).is_dirty() {
                let block = self.flush_node(store, child, flush);
                store
                    .node_mut(id)
                    .place_child(position, block, flush.generation);
            }
        }
        let place = flush.places.pop().expect("a place for each changed node");
        let node = store.node_mut(id);
        let header = Header {
            kind: self.shape.kind,
            address: place.get(),
            generation: flush.generation,
            pool: flush.pool,
            owner: self.shape.owner,
            count: u32::try_from(node.count()).expect("at most a block of entries"),
            level: node.level(),
        };
        seal(node.block_mut(), &header);
        flush.written.push((place, Box::new(*node.block_mut())));
        store.mark_clean(id, place);
        place
    }
}
