//! The classifier: from the facts of a write to what its completion owes. A pure function.
//!
//! All pieces of a request decide together: facts accumulate, permissions are only ever taken
//! away. Adding a piece never turns a deferred completion into an inline one, nor does raising
//! the durability.

use lode_block::{Durability, Geometry};
use lode_extent::{Piece, PieceFlags, PieceKind};

bitflags::bitflags! {
    /// Why a completion goes through the deferred stage.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Reasons: u16 {
        /// A command failed: nothing of the request is recorded.
        const ERROR = 1;
        /// Blocks that shared their place were written elsewhere and must be remapped.
        const REMAP = 1 << 1;
        /// New blocks must be recorded before they can be reached.
        const ALLOCATION = 1 << 2;
        /// Unwritten blocks must be marked written.
        const CONVERT = 1 << 3;
        /// The object has grown.
        const SIZE = 1 << 4;
        /// Mappings must be removed.
        const UNMAP = 1 << 5;
        /// Two steps under one exclusion.
        const COMPARE = 1 << 6;
        /// Cached pages must be invalidated.
        const INVALIDATE = 1 << 7;
        /// A flush must follow the data.
        const FLUSH = 1 << 8;
        /// The metadata that reach the data must become durable.
        const METADATA = 1 << 9;
        /// All attributes must become durable.
        const FULL = 1 << 10;
        /// Another core decides: it is the home of the pool.
        const HOME = 1 << 11;
        /// Nothing of its own: every completion is deferred by order.
        const ORDERED = 1 << 12;
    }
}

/// Names of the reasons as metrics show them, in the order of precedence in which a request with
/// several is counted.
pub const REASON_NAMES: [(Reasons, &str); 13] = [
    (Reasons::ERROR, "error"),
    (Reasons::REMAP, "remap"),
    (Reasons::ALLOCATION, "record_allocation"),
    (Reasons::CONVERT, "convert"),
    (Reasons::SIZE, "size"),
    (Reasons::UNMAP, "unmap"),
    (Reasons::COMPARE, "compare"),
    (Reasons::INVALIDATE, "invalidate"),
    (Reasons::FLUSH, "flush"),
    (Reasons::METADATA, "metadata"),
    (Reasons::FULL, "full"),
    (Reasons::HOME, "home"),
    (Reasons::ORDERED, "ordered"),
];

/// What is known of the pieces that a write touches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PieceFacts {
    /// Some piece has no place, or a place that was only just taken.
    pub has_unallocated: bool,
    /// Some piece is allocated but reads as zeros.
    pub has_unwritten: bool,
    /// Some piece is allocated and written.
    pub has_written: bool,
    /// Some piece can be reached from a snapshot or clone as well.
    pub has_shared: bool,
    /// Some piece is reached through metadata that are not durable yet.
    pub has_dirty_metadata: bool,
}

impl PieceFacts {
    /// The facts of `pieces`.
    #[must_use]
    pub fn of(pieces: &[Piece]) -> Self {
        pieces
            .iter()
            .fold(Self::default(), |facts, piece| facts.and(piece))
    }

    /// These facts and those of one more piece.
    #[must_use]
    pub fn and(mut self, piece: &Piece) -> Self {
        match piece.kind {
            PieceKind::Hole => self.has_unallocated = true,
            PieceKind::Unwritten => self.has_unwritten = true,
            PieceKind::Written => self.has_written = true,
        }
        self.has_unallocated |= piece.flags.contains(PieceFlags::NEW);
        self.has_shared |= piece.flags.contains(PieceFlags::SHARED);
        self.has_dirty_metadata |= piece.flags.contains(PieceFlags::META_DIRTY);
        self
    }
}

/// What of the devices' write caches decides: the weakest device of those that the request
/// touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheFacts {
    /// A completed write may be lost at a power cut.
    pub is_volatile: bool,
    /// Single writes can be forced to the media.
    pub supports_write_through: bool,
}

impl CacheFacts {
    /// The facts of one device.
    #[must_use]
    pub const fn of(geometry: &Geometry) -> Self {
        Self {
            is_volatile: geometry.has_volatile_cache(),
            supports_write_through: geometry.supports_write_through,
        }
    }

    /// The facts of all devices of a pool together.
    pub(crate) fn of_all<'a>(devices: impl Iterator<Item = &'a Geometry>) -> Self {
        devices.map(Self::of).reduce(Self::and).unwrap_or(Self {
            is_volatile: false,
            supports_write_through: true,
        })
    }

    /// The facts of two devices together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        // A device without a volatile cache needs no write-through: it does not weaken the pair.
        let first = !self.is_volatile || self.supports_write_through;
        let second = !other.is_volatile || other.supports_write_through;
        Self {
            is_volatile: self.is_volatile || other.is_volatile,
            supports_write_through: first && second,
        }
    }
}

/// All that the completion of a write depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteFacts {
    /// The pieces.
    pub pieces: PieceFacts,
    /// The devices.
    pub cache: CacheFacts,
    /// What was asked for, the strongest of all sources.
    pub durability: Durability,
    /// The write ends past the object's size.
    pub extends: bool,
    /// Pages of the range are cached.
    pub has_cached_pages: bool,
}

/// How the data commands are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataCommand {
    /// As a plain write.
    Plain,
    /// Each forced to the media.
    WriteThrough,
}

/// What a write's completion owes. Two independent facts, never merged: why it cannot complete
/// inline, and whether a flush must follow its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classification {
    /// Empty: complete inline, on the poller that finds the last command done.
    pub completion_work: Reasons,
    /// A flush follows the last data completion.
    pub needs_flush: bool,
    /// How the data travel.
    pub command: DataCommand,
}

impl Classification {
    /// Whether the poller may complete the request itself.
    #[must_use]
    pub const fn is_inline(&self) -> bool {
        self.completion_work.is_empty()
    }
}

/// Classifies a write. No I/O, no state.
#[must_use]
pub fn classify_write(facts: &WriteFacts) -> Classification {
    let structural = structural_work(facts);
    if facts.durability == Durability::None {
        return Classification {
            completion_work: structural,
            needs_flush: false,
            command: DataCommand::Plain,
        };
    }
    let mut work = structural;
    let owes_metadata = !structural.is_empty() || facts.pieces.has_dirty_metadata;
    work.set(Reasons::METADATA, owes_metadata);
    work.set(Reasons::FULL, facts.durability == Durability::Full);
    let can_write_through = facts.cache.supports_write_through && work.is_empty();
    let needs_flush = facts.cache.is_volatile && !can_write_through;
    work.set(Reasons::FLUSH, needs_flush);
    let command = if facts.cache.is_volatile && can_write_through {
        DataCommand::WriteThrough
    } else {
        DataCommand::Plain
    };
    Classification {
        completion_work: work,
        needs_flush,
        command,
    }
}

/// What must change in the metadata or the cache, whatever the durability.
fn structural_work(facts: &WriteFacts) -> Reasons {
    let mut work = Reasons::empty();
    work.set(Reasons::ALLOCATION, facts.pieces.has_unallocated);
    work.set(Reasons::CONVERT, facts.pieces.has_unwritten);
    work.set(Reasons::REMAP, facts.pieces.has_shared);
    work.set(Reasons::SIZE, facts.extends);
    work.set(Reasons::INVALIDATE, facts.has_cached_pages);
    work
}

#[cfg(test)]
mod tests;
