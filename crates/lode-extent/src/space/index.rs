//! Index blocks of the space map.

use zerocopy::{FromBytes, IntoBytes};

use crate::format::block::{Block, BlockFault, HEADER_BYTES};
use crate::format::superblock::{RawSpaceEntry, SpaceEntry};

const ENTRIES: usize = 504;
const ENTRY_BYTES: usize = 8;

/// An index block in memory.
#[derive(Debug)]
pub(crate) struct IndexNode {
    pub(crate) entries: Vec<SpaceEntry>,
    pub(crate) is_dirty: bool,
}

impl IndexNode {
    /// An index below which nothing was ever written.
    pub(crate) fn unused() -> Self {
        Self {
            entries: vec![SpaceEntry::default(); ENTRIES],
            is_dirty: false,
        }
    }

    /// The index in a block's payload.
    pub(crate) fn read(block: &Block) -> Result<Self, BlockFault> {
        let entries = block[HEADER_BYTES..]
            .chunks_exact(ENTRY_BYTES)
            .map(|bytes| {
                let raw = RawSpaceEntry::ref_from_bytes(bytes).expect("8 bytes of any value");
                raw.entry()
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            entries,
            is_dirty: false,
        })
    }

    /// Puts the index into a block's payload.
    pub(crate) fn write(&self, block: &mut Block) {
        let chunks = block[HEADER_BYTES..].chunks_exact_mut(ENTRY_BYTES);
        for (entry, bytes) in self.entries.iter().zip(chunks) {
            bytes.copy_from_slice(RawSpaceEntry::new(*entry).as_bytes());
        }
    }

    /// What the entry above says of it: entries whose part has a free block.
    pub(crate) fn free_hint(&self) -> u16 {
        let free = self
            .entries
            .iter()
            .filter(|entry| !entry.is_written || entry.free > 0)
            .count();
        u16::try_from(free).expect("at most 504")
    }
}
