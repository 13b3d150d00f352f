//! I/O commands of the NVM command set.

use std::mem::offset_of;

use lode_units::{Lba, NamespaceId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::bits::{bit, dword_at, word_at};
use crate::opcode::NvmOpcode;
use crate::submission::SubmissionEntry;

bitflags::bitflags! {
    /// Flags in dword 12 of a command that names a range of blocks.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct BlockFlags: u32 {
        /// Write Zeroes: deallocate (DEAC).
        const DEALLOCATE = 1 << 25;
        /// The data are on the media before the command completes (FUA).
        const FORCE_UNIT_ACCESS = 1 << 30;
        /// Limited retry (LR).
        const LIMITED_RETRY = 1 << 31;
    }
}

/// A command that names one range of blocks: Read, Write, Compare, Verify, Write Zeroes,
/// Write Uncorrectable (NVM Command Set 1.0 §3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCommand {
    /// Which of them.
    pub opcode: NvmOpcode,
    /// The namespace.
    pub namespace: NamespaceId,
    /// Dwords 10 and 11, SLBA.
    pub lba: Lba,
    /// Dword 12 bits 15:0, NLB, plus one: 1 to 65536.
    pub block_count: u32,
    /// Dword 12, the flags.
    pub flags: BlockFlags,
}

impl BlockCommand {
    /// The most blocks of one command.
    pub const BLOCK_COUNT_MAX: u32 = 65536;

    /// Encodes the command; the caller adds where the data are.
    #[must_use]
    pub fn encode(self) -> SubmissionEntry {
        let mut entry = SubmissionEntry::new(self.opcode.raw()).with_namespace(self.namespace);
        entry.dword_10 = U32::new(dword_at(self.lba.get(), 0));
        entry.dword_11 = U32::new(dword_at(self.lba.get(), 32));
        entry.dword_12 = U32::new((self.block_count.wrapping_sub(1) & 0xFFFF) | self.flags.bits());
        entry
    }

    /// Decodes the command; flags without a name are dropped.
    #[must_use]
    pub fn decode(entry: &SubmissionEntry) -> Self {
        let dword_12 = entry.dword_12.get();
        Self {
            opcode: NvmOpcode::from_raw(entry.opcode),
            namespace: entry.namespace_id(),
            lba: Lba::new(entry.dwords_10_11()),
            block_count: u32::from(word_at(u64::from(dword_12), 0)) + 1,
            flags: BlockFlags::from_bits_truncate(dword_12),
        }
    }
}

/// Flush of `namespace`, or of all with 0xFFFF_FFFF (Base 2.0 §7.1).
#[must_use]
pub fn flush(namespace: NamespaceId) -> SubmissionEntry {
    SubmissionEntry::new(NvmOpcode::Flush.raw()).with_namespace(namespace)
}

/// Dataset Management (NVM Command Set 1.0 §3.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetManagement {
    /// The namespace.
    pub namespace: NamespaceId,
    /// Dword 10 bits 7:0, NR, plus one: 1 to 256 ranges.
    pub range_count: u16,
    /// Dword 11 bit 2, AD: the ranges' content is no longer needed.
    pub deallocates: bool,
}

impl DatasetManagement {
    /// The most ranges of one command.
    pub const RANGE_COUNT_MAX: u16 = 256;

    /// Encodes the command; the caller adds where the ranges are.
    #[must_use]
    pub fn encode(self) -> SubmissionEntry {
        let mut entry =
            SubmissionEntry::new(NvmOpcode::DatasetManagement.raw()).with_namespace(self.namespace);
        entry.dword_10 = U32::new(u32::from(self.range_count.wrapping_sub(1) & 0xFF));
        entry.dword_11 = U32::new(u32::from(self.deallocates) << 2);
        entry
    }

    /// Decodes the command.
    #[must_use]
    pub fn decode(entry: &SubmissionEntry) -> Self {
        Self {
            namespace: entry.namespace_id(),
            range_count: (word_at(u64::from(entry.dword_10.get()), 0) & 0xFF) + 1,
            deallocates: bit(u64::from(entry.dword_11.get()), 2),
        }
    }
}

/// One range of a Dataset Management command (figure 41).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct DatasetRange {
    /// Bytes 3:0: context attributes, a hint.
    pub context_attributes: U32,
    /// Bytes 7:4: blocks.
    pub block_count: U32,
    /// Bytes 15:8: the first block.
    pub lba: U64,
}

const _: () = assert!(size_of::<DatasetRange>() == 16);
const _: () = assert!(offset_of!(DatasetRange, block_count) == 4);
const _: () = assert!(offset_of!(DatasetRange, lba) == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_command_comes_back_beyond_32_bits() {
        for block_count in [1, 8, 65536] {
            let command = BlockCommand {
                opcode: NvmOpcode::Write,
                namespace: NamespaceId::new(1),
                lba: Lba::new(0x12_3456_789A),
                block_count,
                flags: BlockFlags::FORCE_UNIT_ACCESS,
            };
            let entry = command.encode();
            assert_eq!(BlockCommand::decode(&entry), command);
            assert_eq!(entry.dword_12.get() >> 16, 0x4000);
        }
    }

    #[test]
    fn dataset_management_counts_from_one() {
        for range_count in [1, 2, 256] {
            let command = DatasetManagement {
                namespace: NamespaceId::new(1),
                range_count,
                deallocates: true,
            };
            let entry = command.encode();
            assert_eq!(DatasetManagement::decode(&entry), command);
            assert_eq!(entry.dword_11.get(), 4);
        }
    }

    #[test]
    fn a_flush_carries_only_its_namespace() {
        let entry = flush(NamespaceId::new(u32::MAX));
        assert_eq!(&entry.as_bytes()[..8], &[0, 0, 0, 0, 255, 255, 255, 255]);
        assert!(entry.as_bytes()[8..].iter().all(|byte| *byte == 0));
    }
}
