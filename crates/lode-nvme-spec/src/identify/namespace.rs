//! Identify Namespace of the NVM command set.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Identify Namespace (NVM Command Set 1.0 §4.1.5.1, figure 97). All zero for an identifier
/// that is not active.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// Bytes 7:0, NSZE: blocks.
    pub size: U64,
    /// Bytes 15:8, NCAP: blocks that can be allocated.
    pub capacity: U64,
    /// Bytes 23:16, NUSE: blocks that are allocated.
    pub utilization: U64,
    /// Byte 24, NSFEAT: bit 0 thin, bit 2 deallocated blocks may be reported as errors.
    pub features: u8,
    /// Byte 25, NLBAF: LBA formats, minus one.
    pub lba_format_count: u8,
    /// Byte 26, FLBAS: bits 6:5 and 3:0 the format in use, bit 4 metadata extend the block.
    pub formatted_lba_size: u8,
    /// Byte 27, MC.
    pub metadata_capabilities: u8,
    /// Byte 28, DPC.
    pub protection_capabilities: u8,
    /// Byte 29, DPS: bits 2:0 not 0 when protection information is in use.
    pub protection_settings: u8,
    /// Byte 30, NMIC.
    pub sharing: u8,
    /// Byte 31, RESCAP.
    pub reservation_capabilities: u8,
    /// Byte 32, FPI.
    pub format_progress: u8,
    /// Byte 33, DLFEAT: bits 2:0 what a deallocated block reads as (001b zeros), bit 3 Write
    /// Zeroes may deallocate.
    pub deallocate_features: u8,
    /// Bytes 35:34, NAWUN.
    pub atomic_write_normal: U16,
    /// Bytes 37:36, NAWUPF.
    pub atomic_write_power_fail: U16,
    /// Bytes 39:38, NACWU.
    pub atomic_compare_and_write: U16,
    /// Bytes 45:40, NABSN, NABO, NABSPF.
    pub atomic_boundaries: [U16; 3],
    /// Bytes 47:46, NOIOB: blocks.
    pub optimal_boundary: U16,
    /// Bytes 63:48, NVMCAP: bytes.
    pub capacity_bytes: U128,
    /// Bytes 65:64, NPWG: blocks, minus one.
    pub write_granularity: U16,
    /// Bytes 67:66, NPWA: blocks, minus one.
    pub write_alignment: U16,
    /// Bytes 69:68, NPDG: blocks, minus one.
    pub deallocate_granularity: U16,
    /// Bytes 71:70, NPDA: blocks, minus one.
    pub deallocate_alignment: U16,
    /// Bytes 73:72, NOWS: blocks, minus one.
    pub write_size_optimal: U16,
    /// Bytes 80:74: limits of Copy (MSSRL, MCL, MSRC).
    pub copy_limits: [u8; 7],
    /// Bytes 91:81.
    pub reserved_81: [u8; 11],
    /// Bytes 95:92, ANAGRPID.
    pub access_group: U32,
    /// Bytes 98:96.
    pub reserved_96: [u8; 3],
    /// Byte 99, NSATTR: bit 0 write protected.
    pub attributes: u8,
    /// Bytes 101:100, NVMSETID.
    pub nvm_set_id: U16,
    /// Bytes 103:102, ENDGID.
    pub endurance_group_id: U16,
    /// Bytes 119:104, NGUID; all zero when there is none.
    pub nguid: [u8; 16],
    /// Bytes 127:120, EUI64; all zero when there is none.
    pub eui64: [u8; 8],
    /// Bytes 383:128: LBA formats.
    pub lba_formats: [LbaFormat; 64],
    /// Bytes 4095:384: the vendor's own.
    pub vendor: [u8; 3712],
}

impl IdentifyNamespace {
    /// In `deallocate_features`: the mask of what a deallocated block reads as.
    pub const DEALLOCATED_READ_MASK: u8 = 0b111;
    /// Under that mask: as zeros.
    pub const DEALLOCATED_READS_ZEROS: u8 = 0b001;
    /// In `deallocate_features`: Write Zeroes may deallocate.
    pub const WRITE_ZEROES_DEALLOCATES: u8 = 1 << 3;

    /// Which LBA format is in use: 0 to 63.
    #[must_use]
    pub const fn lba_format_index(&self) -> usize {
        ((self.formatted_lba_size & 0x60) >> 1 | self.formatted_lba_size & 0x0F) as usize
    }

    /// The LBA format in use, or `None` when the namespace names one that it does not have.
    #[must_use]
    pub fn lba_format(&self) -> Option<LbaFormat> {
        let index = self.lba_format_index();
        (index <= usize::from(self.lba_format_count))
            .then(|| self.lba_formats.get(index).copied())
            .flatten()
    }

    /// Whether the namespace is write protected.
    #[must_use]
    pub const fn is_write_protected(&self) -> bool {
        self.attributes & 1 == 1
    }
}

/// An LBA format (figure 98).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct LbaFormat {
    /// Bytes 1:0, MS: bytes of metadata for each block.
    pub metadata_bytes: U16,
    /// Byte 2, LBADS: a block is `1 << this` bytes; below 9 the format is not supported.
    pub block_shift: u8,
    /// Byte 3, RP: bits 1:0, 0 is the fastest.
    pub relative_performance: u8,
}

const _: () = assert!(size_of::<LbaFormat>() == 4);
const _: () = assert!(size_of::<IdentifyNamespace>() == super::IDENTIFY_BYTES);
const _: () = assert!(offset_of!(IdentifyNamespace, features) == 24);
const _: () = assert!(offset_of!(IdentifyNamespace, protection_settings) == 29);
const _: () = assert!(offset_of!(IdentifyNamespace, deallocate_features) == 33);
const _: () = assert!(offset_of!(IdentifyNamespace, optimal_boundary) == 46);
const _: () = assert!(offset_of!(IdentifyNamespace, capacity_bytes) == 48);
const _: () = assert!(offset_of!(IdentifyNamespace, copy_limits) == 74);
const _: () = assert!(offset_of!(IdentifyNamespace, access_group) == 92);
const _: () = assert!(offset_of!(IdentifyNamespace, attributes) == 99);
const _: () = assert!(offset_of!(IdentifyNamespace, nguid) == 104);
const _: () = assert!(offset_of!(IdentifyNamespace, lba_formats) == 128);
const _: () = assert!(offset_of!(IdentifyNamespace, vendor) == 384);

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn the_format_in_use_may_lie_beyond_the_sixteenth() {
        let mut identify = IdentifyNamespace::new_zeroed();
        identify.lba_format_count = 40;
        identify.formatted_lba_size = 0x20 | 0x10 | 0x03;
        identify.lba_formats[19].block_shift = 12;
        assert_eq!(identify.lba_format_index(), 19);
        assert_eq!(identify.lba_format().expect("a format").block_shift, 12);
    }

    #[test]
    fn a_format_that_does_not_exist_is_none() {
        let mut identify = IdentifyNamespace::new_zeroed();
        identify.formatted_lba_size = 1;
        assert_eq!(identify.lba_format(), None);
    }
}
