//! Identify Controller.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Identify Controller (Base 2.0 §5.17.2.1, figure 275).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IdentifyController {
    /// Bytes 1:0, VID.
    pub pci_vendor_id: U16,
    /// Bytes 3:2, SSVID.
    pub pci_subsystem_vendor_id: U16,
    /// Bytes 23:4, SN: ASCII, padded with spaces.
    pub serial_number: [u8; 20],
    /// Bytes 63:24, MN: ASCII, padded with spaces.
    pub model_number: [u8; 40],
    /// Bytes 71:64, FR: ASCII, padded with spaces.
    pub firmware_revision: [u8; 8],
    /// Byte 72, RAB.
    pub arbitration_burst: u8,
    /// Bytes 75:73, IEEE.
    pub ieee_oui: [u8; 3],
    /// Byte 76, CMIC.
    pub multi_path: u8,
    /// Byte 77, MDTS: the longest transfer is `1 << this` pages of CAP.MPSMIN; 0 is no limit.
    pub transfer_size_max: u8,
    /// Bytes 79:78, CNTLID.
    pub controller_id: U16,
    /// Bytes 83:80, VER.
    pub version: U32,
    /// Bytes 87:84, RTD3R.
    pub resume_latency_us: U32,
    /// Bytes 91:88, RTD3E: the typical time of a normal shutdown in microseconds, 0 if unknown.
    pub shutdown_latency_us: U32,
    /// Bytes 95:92, OAES: optional asynchronous events.
    pub async_events: U32,
    /// Bytes 99:96, CTRATT.
    pub attributes: U32,
    /// Bytes 101:100, RRLS.
    pub read_recovery_levels: U16,
    /// Bytes 110:102.
    pub reserved_102: [u8; 9],
    /// Byte 111, CNTRLTYPE: 1 is an I/O controller.
    pub controller_type: u8,
    /// Bytes 127:112, FGUID.
    pub fru_guid: [u8; 16],
    /// Bytes 133:128, CRDT1 to CRDT3: command retry delays in units of 100 ms.
    pub retry_delays_100ms: [U16; 3],
    /// Bytes 255:134.
    pub reserved_134: [u8; 122],
    /// Bytes 257:256, OACS: see [`AdminFeatures`].
    pub admin_features: U16,
    /// Byte 258, ACL: concurrent aborts, minus one.
    pub abort_limit: u8,
    /// Byte 259, AERL: concurrent asynchronous event requests, minus one.
    pub async_event_limit: u8,
    /// Byte 260, FRMW.
    pub firmware_updates: u8,
    /// Byte 261, LPA.
    pub log_page_attributes: u8,
    /// Byte 262, ELPE: error log entries, minus one.
    pub error_log_entries: u8,
    /// Byte 263, NPSS.
    pub power_states: u8,
    /// Byte 264, AVSCC.
    pub vendor_admin_configuration: u8,
    /// Byte 265, APSTA.
    pub autonomous_power: u8,
    /// Bytes 267:266, WCTEMP.
    pub warning_temperature_kelvin: U16,
    /// Bytes 269:268, CCTEMP.
    pub critical_temperature_kelvin: U16,
    /// Bytes 271:270, MTFA.
    pub firmware_activation_100ms: U16,
    /// Bytes 275:272, HMPRE.
    pub host_memory_preferred: U32,
    /// Bytes 279:276, HMMIN.
    pub host_memory_min: U32,
    /// Bytes 295:280, TNVMCAP: bytes.
    pub capacity_total: U128,
    /// Bytes 311:296, UNVMCAP: bytes.
    pub capacity_unallocated: U128,
    /// Bytes 319:312: replay protected memory and self-test.
    pub reserved_312: [u8; 8],
    /// Bytes 321:320, KAS.
    pub keep_alive_granularity_100ms: U16,
    /// Bytes 511:322: thermal management, sanitize, namespace sets, asymmetric access.
    pub reserved_322: [u8; 190],
    /// Byte 512, SQES: bits 3:0 required, bits 7:4 largest submission entry shift.
    pub submission_entry_sizes: u8,
    /// Byte 513, CQES: bits 3:0 required, bits 7:4 largest completion entry shift.
    pub completion_entry_sizes: u8,
    /// Bytes 515:514, MAXCMD: 0 is no limit told.
    pub outstanding_commands_max: U16,
    /// Bytes 519:516, NN: the largest namespace identifier.
    pub namespace_id_max: U32,
    /// Bytes 521:520, ONCS: see [`ControllerFeatures`].
    pub features: U16,
    /// Bytes 523:522, FUSES: bit 0 compare and write.
    pub fused_operations: U16,
    /// Byte 524, FNA.
    pub format_attributes: u8,
    /// Byte 525, VWC: bit 0 a volatile write cache is present; bits 2:1 flush of all namespaces
    /// (11b supported, 10b not).
    pub volatile_write_cache: u8,
    /// Bytes 527:526, AWUN: blocks, minus one.
    pub atomic_write_normal: U16,
    /// Bytes 529:528, AWUPF: blocks, minus one.
    pub atomic_write_power_fail: U16,
    /// Byte 530, ICSVSCC.
    pub vendor_configuration: u8,
    /// Byte 531, NWPC.
    pub write_protection: u8,
    /// Bytes 533:532, ACWU: blocks, minus one.
    pub atomic_compare_and_write: U16,
    /// Bytes 535:534, CDFS.
    pub copy_formats: U16,
    /// Bytes 539:536, SGLS: bits 1:0 not 0 when SGLs are supported.
    pub sgl_support: U32,
    /// Bytes 543:540, MNAN: the most namespaces; 0 means NN.
    pub namespaces_max: U32,
    /// Bytes 767:544.
    pub reserved_544: [u8; 224],
    /// Bytes 1023:768, SUBNQN: UTF-8, ended by a zero.
    pub subsystem_nqn: [u8; 256],
    /// Bytes 2047:1024: fabrics.
    pub reserved_1024: [u8; 1024],
    /// Bytes 3071:2048: power state descriptors.
    pub power_state_descriptors: [u8; 1024],
    /// Bytes 4095:3072: the vendor's own.
    pub vendor: [u8; 1024],
}

impl IdentifyController {
    /// The NVM commands that are supported; unknown bits are kept.
    #[must_use]
    pub const fn features(&self) -> ControllerFeatures {
        ControllerFeatures::from_bits_retain(self.features.get())
    }

    /// The admin commands that are supported; unknown bits are kept.
    #[must_use]
    pub const fn admin_features(&self) -> AdminFeatures {
        AdminFeatures::from_bits_retain(self.admin_features.get())
    }

    /// Whether a volatile write cache is present, enabled or not.
    #[must_use]
    pub const fn has_volatile_write_cache(&self) -> bool {
        self.volatile_write_cache & 1 == 1
    }
}

bitflags::bitflags! {
    /// Optional NVM command support, ONCS.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ControllerFeatures: u16 {
        /// Compare.
        const COMPARE = 1 << 0;
        /// Write Uncorrectable.
        const WRITE_UNCORRECTABLE = 1 << 1;
        /// Dataset Management.
        const DATASET_MANAGEMENT = 1 << 2;
        /// Write Zeroes.
        const WRITE_ZEROES = 1 << 3;
        /// Features can be saved and their default read.
        const SAVE_AND_SELECT = 1 << 4;
        /// Reservations.
        const RESERVATIONS = 1 << 5;
        /// Timestamp.
        const TIMESTAMP = 1 << 6;
        /// Verify.
        const VERIFY = 1 << 7;
        /// Copy.
        const COPY = 1 << 8;
    }
}

bitflags::bitflags! {
    /// Optional admin command support, OACS.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AdminFeatures: u16 {
        /// Security Send and Receive.
        const SECURITY = 1 << 0;
        /// Format NVM.
        const FORMAT = 1 << 1;
        /// Firmware Commit and Image Download.
        const FIRMWARE = 1 << 2;
        /// Namespace Management.
        const NAMESPACE_MANAGEMENT = 1 << 3;
        /// Device Self-test.
        const SELF_TEST = 1 << 4;
        /// Doorbell Buffer Config.
        const DOORBELL_BUFFER = 1 << 8;
    }
}

const _: () = assert!(size_of::<IdentifyController>() == super::IDENTIFY_BYTES);
const _: () = assert!(offset_of!(IdentifyController, transfer_size_max) == 77);
const _: () = assert!(offset_of!(IdentifyController, version) == 80);
const _: () = assert!(offset_of!(IdentifyController, async_events) == 92);
const _: () = assert!(offset_of!(IdentifyController, controller_type) == 111);
const _: () = assert!(offset_of!(IdentifyController, retry_delays_100ms) == 128);
const _: () = assert!(offset_of!(IdentifyController, admin_features) == 256);
const _: () = assert!(offset_of!(IdentifyController, capacity_total) == 280);
const _: () = assert!(offset_of!(IdentifyController, keep_alive_granularity_100ms) == 320);
const _: () = assert!(offset_of!(IdentifyController, submission_entry_sizes) == 512);
const _: () = assert!(offset_of!(IdentifyController, namespace_id_max) == 516);
const _: () = assert!(offset_of!(IdentifyController, volatile_write_cache) == 525);
const _: () = assert!(offset_of!(IdentifyController, sgl_support) == 536);
const _: () = assert!(offset_of!(IdentifyController, subsystem_nqn) == 768);
const _: () = assert!(offset_of!(IdentifyController, power_state_descriptors) == 2048);

/// Identify Controller of the NVM command set: limits of commands that move no data
/// (NVM Command Set 1.0 §4.1.5.4, figure 100). A limit of 0 is none told.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IdentifyNvmController {
    /// Byte 0, VSL: Verify, `1 << this` pages of CAP.MPSMIN.
    pub verify_size_max: u8,
    /// Byte 1, WZSL: Write Zeroes, likewise.
    pub write_zeroes_size_max: u8,
    /// Byte 2, WUSL: Write Uncorrectable, likewise.
    pub write_uncorrectable_size_max: u8,
    /// Byte 3, DMRL: ranges of one Dataset Management command.
    pub dataset_ranges_max: u8,
    /// Bytes 7:4, DMRSL: blocks of one range.
    pub dataset_range_blocks_max: U32,
    /// Bytes 15:8, DMSL: blocks of one command.
    pub dataset_blocks_max: U64,
    /// Bytes 4095:16.
    pub reserved_16: [u8; 4080],
}

const _: () = assert!(size_of::<IdentifyNvmController>() == super::IDENTIFY_BYTES);
const _: () = assert!(offset_of!(IdentifyNvmController, dataset_range_blocks_max) == 4);
const _: () = assert!(offset_of!(IdentifyNvmController, dataset_blocks_max) == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_read_as_they_lie_in_memory() {
        let mut bytes = [0; 4096];
        bytes[77] = 5;
        bytes[257] = 1;
        bytes[516] = 0x20;
        bytes[520] = 0b1000_1101;
        bytes[525] = 0b111;
        let identify = IdentifyController::read_from_bytes(&bytes).expect("the length is right");
        assert_eq!(identify.transfer_size_max, 5);
        assert_eq!(identify.admin_features(), AdminFeatures::DOORBELL_BUFFER);
        assert_eq!(identify.namespace_id_max.get(), 32);
        assert!(identify.features().contains(ControllerFeatures::VERIFY));
        assert!(!identify.features().contains(ControllerFeatures::COPY));
        assert!(identify.has_volatile_write_cache());
    }
}
