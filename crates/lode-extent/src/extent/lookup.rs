//! Answering how a range of a volume is mapped.

use smallvec::SmallVec;

use crate::extent::{Extent, ExtentKind, extent_at};
use crate::piece::{Piece, PieceFlags, PieceKind};
use crate::tree::node::Node;
use crate::tree::store::Store;
use crate::tree::{Tree, TreeFault};
use crate::types::{LogicalBlock, PoolBlock};

/// Appends the pieces of the blocks `first..end`. Allocates only where `into` spills.
#[inline]
pub(crate) fn pieces(
    map: &Tree,
    store: &Store,
    first: u64,
    end: u64,
    into: &mut SmallVec<[Piece; 4]>,
) -> Result<(), TreeFault> {
    let mut block = first;
    while block < end {
        let Some(leaf) = map.leaf(store, block)? else {
            push_hole(into, block, end);
            return Ok(());
        };
        let stop = leaf.high.min(end);
        pieces_of_leaf(store.node(leaf.node), block, stop, into);
        block = stop;
    }
    Ok(())
}

#[inline]
fn pieces_of_leaf(leaf: &Node, first: u64, end: u64, into: &mut SmallVec<[Piece; 4]>) {
    let mut position = leaf.entries_up_to(first);
    let mut block = first;
    // Most lookups end with the extent that holds their first block.
    if let Some(before) = position.checked_sub(1) {
        let extent = extent_at(leaf, before);
        if extent.end() > block {
            block = push_part(into, &extent, block, end);
        }
    }
    while block < end && position < leaf.count() {
        let extent = extent_at(leaf, position);
        position += 1;
        if extent.logical >= end {
            break;
        }
        if extent.logical > block {
            push_hole(into, block, extent.logical);
        }
        block = push_part(into, &extent, extent.logical, end);
    }
    if block < end {
        push_hole(into, block, end);
    }
}

/// Appends the part of an extent from `start` on, up to `end` at most; gives where it ends.
#[inline]
fn push_part(into: &mut SmallVec<[Piece; 4]>, extent: &Extent, start: u64, end: u64) -> u64 {
    let part = extent.part(start, extent.end().min(end));
    into.push(Piece {
        kind: match part.kind {
            ExtentKind::Written => PieceKind::Written,
            ExtentKind::Unwritten => PieceKind::Unwritten,
        },
        flags: PieceFlags::empty(),
        logical: LogicalBlock::new(part.logical),
        physical: part.physical,
        count: part.count,
    });
    part.end()
}

/// Appends a hole, or lengthens the one that ends where this one starts.
fn push_hole(into: &mut SmallVec<[Piece; 4]>, start: u64, end: u64) {
    let count = u32::try_from(end - start).expect("a lookup covers at most 2^32 - 1 blocks");
    if let Some(last) = into.last_mut()
        && last.kind == PieceKind::Hole
        && last.logical.get() + u64::from(last.count) == start
    {
        last.count += count;
        return;
    }
    into.push(Piece {
        kind: PieceKind::Hole,
        flags: PieceFlags::empty(),
        logical: LogicalBlock::new(start),
        physical: PoolBlock::new(0),
        count,
    });
}
