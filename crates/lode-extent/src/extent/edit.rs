//! Changing a map: new extents replace what their range held.

use smallvec::SmallVec;

use crate::extent::{Extent, ExtentKind, extent_at, first_reaching};
use crate::tree::node::{Node, NodeId};
use crate::tree::store::Store;
use crate::tree::{Tree, TreeFault};
use crate::types::PoolBlock;

/// Extents that an edit took out, in full or in part.
pub(crate) type Removed = SmallVec<[Extent; 8]>;

/// Entries that one edit of a leaf may add: a hole in the middle of an extent, filled.
const EDIT_ROOM: usize = 2;

/// Where the blocks of a new mapping lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtentSource {
    pub(crate) physical: PoolBlock,
    pub(crate) kind: ExtentKind,
    pub(crate) birth: u32,
}

/// Maps `first..end` to `source`, or to nothing, and appends what it replaced to `removed`.
///
/// The leaves of the range must be in memory; a fault leaves the part before it done.
pub(crate) fn replace(
    map: &mut Tree,
    store: &mut Store,
    (first, end): (u64, u64),
    source: Option<ExtentSource>,
    removed: &mut Removed,
) -> Result<(), TreeFault> {
    let mut block = first;
    while block < end {
        let (leaf_node, stop) = match source {
            Some(_) => {
                let leaf = map.edit_leaf(store, block, EDIT_ROOM)?;
                (Some(leaf.node), leaf.high.min(end))
            }
            None => edit_where_mapped(map, store, block, end)?,
        };
        if let Some(node) = leaf_node {
            let extent = source.map(|source| Extent {
                logical: block,
                physical: source.physical.plus(block - first),
                count: u32::try_from(stop - block).expect("a mapping is short"),
                kind: source.kind,
                birth: source.birth,
            });
            replace_in_leaf(store.node_mut(node), block, stop, extent, removed);
            if extent.is_none() {
                map.tidy(store, block);
            }
        }
        block = stop;
    }
    Ok(())
}

/// The leaf of `block`, made ready for a change where it maps any of `block..end`; and where
/// this leaf's part of the range ends.
fn edit_where_mapped(
    map: &mut Tree,
    store: &mut Store,
    block: u64,
    end: u64,
) -> Result<(Option<NodeId>, u64), TreeFault> {
    let Some(leaf) = map.leaf(store, block)? else {
        return Ok((None, end));
    };
    let stop = leaf.high.min(end);
    let node = store.node(leaf.node);
    let position = first_reaching(node, block);
    if position == node.count() || node.key(position) >= stop {
        return Ok((None, stop));
    }
    let leaf = map.edit_leaf(store, block, EDIT_ROOM)?;
    Ok((Some(leaf.node), leaf.high.min(end)))
}

fn replace_in_leaf(
    leaf: &mut Node,
    first: u64,
    end: u64,
    extent: Option<Extent>,
    removed: &mut Removed,
) {
    let mut from = first_reaching(leaf, first);
    let mut to = from;
    let mut put: SmallVec<[Extent; 3]> = SmallVec::new();
    let mut rest = None;
    while to < leaf.count() {
        let old = extent_at(leaf, to);
        if old.logical >= end {
            break;
        }
        if old.logical < first {
            put.push(old.part(old.logical, first));
        }
        if old.end() > end {
            rest = Some(old.part(end, old.end()));
        }
        removed.push(old.part(old.logical.max(first), old.end().min(end)));
        to += 1;
    }
    if extent.is_some() && put.is_empty() && from > 0 {
        from -= 1;
        put.push(extent_at(leaf, from));
    }
    if extent.is_some() && rest.is_none() && to < leaf.count() {
        rest = Some(extent_at(leaf, to));
        to += 1;
    }
    for next in extent.into_iter().chain(rest) {
        match put.last().and_then(|last| last.joined(&next)) {
            Some(joined) => *put.last_mut().expect("it was joined") = joined,
            None => put.push(next),
        }
    }
    leaf.remove(from, to);
    for (position, extent) in (from..).zip(&put) {
        leaf.insert(position, extent.logical, &extent.encode());
    }
}
