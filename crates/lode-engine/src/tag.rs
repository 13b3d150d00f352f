//! What a command of ours carries as its tag, so that its completion finds its way home.

use lode_block::Tag;

use crate::op::OpIndex;

/// Whose command it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandOwner {
    /// A request's: which, and the sectors of its range that the command covers.
    Op {
        /// The request.
        index: OpIndex,
        /// The first sector of 512 bytes, counted from the start of the step's range.
        sector: u32,
        /// How many sectors.
        count: u16,
    },
    /// The metadata operation in this slot.
    Metadata(u16),
    /// The flush group.
    Flush,
}

/// The unit in which a command's place in its request is kept.
pub(crate) const SECTOR_BYTES: u64 = 512;

impl CommandOwner {
    /// Packs into a tag: bits 63:62 whose; 61:46 slot; 45:14 sector; 13:0 sectors.
    #[inline]
    pub(crate) fn tag(self) -> Tag {
        Tag(match self {
            Self::Op {
                index,
                sector,
                count,
            } => u64::from(index) << 46 | u64::from(sector) << 14 | u64::from(count),
            Self::Metadata(slot) => KIND_METADATA << 62 | u64::from(slot) << 46,
            Self::Flush => KIND_FLUSH << 62,
        })
    }

    /// Unpacks a tag made by [`CommandOwner::tag`].
    #[expect(
        clippy::cast_possible_truncation,
        reason = "each field is cut to its width"
    )]
    #[inline]
    pub(crate) const fn of(tag: Tag) -> Self {
        let slot = (tag.0 >> 46) as u16;
        match tag.0 >> 62 {
            KIND_METADATA => Self::Metadata(slot),
            KIND_FLUSH => Self::Flush,
            _ => Self::Op {
                index: slot,
                sector: (tag.0 >> 14) as u32,
                count: (tag.0 & 0x3FFF) as u16,
            },
        }
    }
}

/// Whether a command is the pool's own, for its metadata, and no client's: for a device that stands
/// in front of another one and looks at what passes.
#[must_use]
pub const fn is_metadata_command(tag: Tag) -> bool {
    tag.0 >> 62 == KIND_METADATA
}

const KIND_METADATA: u64 = 1;
const KIND_FLUSH: u64 = 2;

/// The most sectors of one command: what 14 bits hold, rounded down to 4 MiB.
pub(crate) const COMMAND_MAX_BYTES: u32 = 4 << 20;
const _: () = assert!(COMMAND_MAX_BYTES as u64 / SECTOR_BYTES < 1 << 14);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_gives_back_what_it_was_made_of() {
        let owners = [
            CommandOwner::Op {
                index: 0,
                sector: 0,
                count: 1,
            },
            CommandOwner::Op {
                index: u16::MAX,
                sector: u32::MAX,
                count: 0x3FFF,
            },
            CommandOwner::Op {
                index: 0x1234,
                sector: 0x0BCD_EF01,
                count: 8192,
            },
            CommandOwner::Metadata(u16::MAX),
            CommandOwner::Metadata(3),
            CommandOwner::Flush,
        ];
        for owner in owners {
            assert_eq!(CommandOwner::of(owner.tag()), owner);
            let is_metadata = matches!(owner, CommandOwner::Metadata(_));
            assert_eq!(is_metadata_command(owner.tag()), is_metadata);
        }
    }
}
