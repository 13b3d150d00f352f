//! The pieces that a lookup answers with, in the words of iomap.

use crate::types::{LogicalBlock, PoolBlock};

/// A stretch of a volume that is mapped in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// How it is mapped.
    pub kind: PieceKind,
    /// What a writer has to know.
    pub flags: PieceFlags,
    /// First unit.
    pub logical: LogicalBlock,
    /// Where the first unit lies; block 0 (never data) for a hole.
    pub physical: PoolBlock,
    /// Units of 4 KiB, at least 1.
    pub count: u32,
}

/// How a piece is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceKind {
    /// Nothing allocated: reads as zeros.
    Hole,
    /// Allocated, but reads as zeros.
    Unwritten,
    /// Allocated, and holds data.
    Written,
}

bitflags::bitflags! {
    /// What a writer has to know about a piece.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PieceFlags: u8 {
        /// Also reachable from a snapshot or clone: a write must go elsewhere.
        const SHARED = 1;
        /// The metadata that makes the piece reachable may not be durable yet: a durable write
        /// needs a commit as well. May be set for a piece whose metadata is durable.
        const META_DIRTY = 2;
        /// Allocated by the request at hand: what it does not write must be zeroed. Set by
        /// callers on their own allocations, never by a lookup.
        const NEW = 4;
    }
}
