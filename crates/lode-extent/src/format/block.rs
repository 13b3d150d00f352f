//! What every metadata block shares: its size, its header, its checksum.

use std::mem::{offset_of, size_of};

use crc_fast::{CrcAlgorithm, checksum};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a metadata block, and of the unit that every address counts.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// [`BLOCK_BYTES`] where a 64-bit number is meant.
pub(crate) const BLOCK_BYTES_U64: u64 = 4096;
/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 64;
/// Bytes that a block carries after its header.
pub(crate) const PAYLOAD_BYTES: usize = BLOCK_BYTES - HEADER_BYTES;
/// The format version that this program writes.
pub(crate) const FORMAT_VERSION: u16 = 1;

const MAGIC: [u8; 4] = *b"LODE";

/// A metadata block in memory.
pub(crate) type Block = [u8; BLOCK_BYTES];

/// An empty block on the heap.
pub(crate) fn empty_block() -> Box<Block> {
    Box::new([0; BLOCK_BYTES])
}

/// What a block is. Numbers are never used again for something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum BlockKind {
    Superblock = 1,
    Journal = 2,
    SpaceBitmap = 3,
    SpaceIndex = 4,
    ObjectTable = 5,
    RequestTable = 6,
    ExtentMap = 7,
    // 8 dead list, 9 directory, 10 attributes: reserved (docs/format.md §8).
}

/// The header's fields that vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: BlockKind,
    /// The block's own address: a pool block, for a superblock a block of its device.
    pub(crate) address: u64,
    /// The checkpoint that wrote it; for a journal block the incarnation.
    pub(crate) generation: u64,
    /// The pool's uuid folded to 64 bits.
    pub(crate) pool: u64,
    /// The object or table it belongs to; for a journal block its sequence number, for a block
    /// of the space map its index.
    pub(crate) owner: u64,
    /// Entries, or bytes used.
    pub(crate) count: u32,
    /// Height above the leaves of a tree or above the bitmaps.
    pub(crate) level: u8,
}

/// Why bytes are not the block that was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BlockFault {
    #[error("not a metadata block")]
    Magic,
    #[error("format version {found}")]
    Version { found: u16 },
    #[error("checksum mismatch")]
    Checksum,
    #[error("a block of another place, pool, kind or owner")]
    Foreign,
    #[error("a block of another checkpoint")]
    Stale,
    #[error("contents break the format")]
    Contents,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    checksum: U32,
    magic: [u8; 4],
    kind: U16,
    version: U16,
    count: U32,
    address: U64,
    generation: U64,
    pool: U64,
    owner: U64,
    level: u8,
    reserved: [u8; 15],
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);
const _: () = assert!(offset_of!(RawHeader, magic) == 4);
const _: () = assert!(offset_of!(RawHeader, version) == 10);
const _: () = assert!(offset_of!(RawHeader, address) == 16);
const _: () = assert!(offset_of!(RawHeader, owner) == 40);
const _: () = assert!(offset_of!(RawHeader, level) == 48);

impl BlockKind {
    fn from_raw(raw: u16) -> Option<Self> {
        Some(match raw {
            1 => Self::Superblock,
            2 => Self::Journal,
            3 => Self::SpaceBitmap,
            4 => Self::SpaceIndex,
            5 => Self::ObjectTable,
            6 => Self::RequestTable,
            7 => Self::ExtentMap,
            _ => return None,
        })
    }

    const fn raw(self) -> u16 {
        self as u16
    }
}

/// Writes `header` and the checksum over a block whose payload is complete.
pub(crate) fn seal(block: &mut Block, header: &Header) {
    let raw = RawHeader {
        checksum: U32::ZERO,
        magic: MAGIC,
        kind: U16::new(header.kind.raw()),
        version: U16::new(FORMAT_VERSION),
        count: U32::new(header.count),
        address: U64::new(header.address),
        generation: U64::new(header.generation),
        pool: U64::new(header.pool),
        owner: U64::new(header.owner),
        level: header.level,
        reserved: [0; 15],
    };
    block[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
    let sum = checksum_of(block);
    block[..4].copy_from_slice(&sum.to_le_bytes());
}

/// The header of a block that is whole and of this format version.
pub(crate) fn open(block: &Block) -> Result<Header, BlockFault> {
    let (raw, _) = RawHeader::ref_from_prefix(block).expect("a block holds a header");
    if raw.magic != MAGIC {
        return Err(BlockFault::Magic);
    }
    if raw.checksum.get() != checksum_of(block) {
        return Err(match raw.version.get() {
            // Another version may keep its checksum elsewhere.
            FORMAT_VERSION => BlockFault::Checksum,
            found => BlockFault::Version { found },
        });
    }
    if raw.version.get() != FORMAT_VERSION {
        return Err(BlockFault::Version {
            found: raw.version.get(),
        });
    }
    let kind = BlockKind::from_raw(raw.kind.get()).ok_or(BlockFault::Contents)?;
    if raw.reserved != [0; 15] {
        return Err(BlockFault::Contents);
    }
    Ok(Header {
        kind,
        address: raw.address.get(),
        generation: raw.generation.get(),
        pool: raw.pool.get(),
        owner: raw.owner.get(),
        count: raw.count.get(),
        level: raw.level,
    })
}

/// The bytes as a block.
pub(crate) fn as_block(bytes: &[u8]) -> Result<&Block, BlockFault> {
    bytes.try_into().map_err(|_length| BlockFault::Contents)
}

fn checksum_of(block: &Block) -> u32 {
    let sum = checksum(CrcAlgorithm::Crc32Iscsi, &block[4..]);
    u32::try_from(sum).expect("a 32-bit checksum")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            kind: BlockKind::ExtentMap,
            address: 77,
            generation: 5,
            pool: 0xABCD,
            owner: 19,
            count: 3,
            level: 1,
        }
    }

    #[test]
    fn a_sealed_block_opens_with_its_header() {
        let mut block = empty_block();
        block[100] = 9;
        seal(&mut block, &header());
        assert_eq!(open(&block), Ok(header()));
    }

    #[test]
    fn every_single_changed_byte_is_noticed() {
        let mut block = empty_block();
        seal(&mut block, &header());
        for position in 0..BLOCK_BYTES {
            block[position] ^= 0x10;
            assert!(open(&block).is_err(), "byte {position}");
            block[position] ^= 0x10;
        }
        assert!(open(&block).is_ok());
    }

    #[test]
    fn the_checksum_is_crc32c() {
        let sum = checksum(CrcAlgorithm::Crc32Iscsi, b"123456789");
        assert_eq!(sum, 0xE306_9283);
    }
}
