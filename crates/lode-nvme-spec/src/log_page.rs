//! Log pages (Base 2.0 §5.16.1).

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::open_enum::open_enum;
use crate::status::Status;

open_enum! {
    /// A log page identifier (figure 202).
    LogPageId {
        /// Error Information (§5.16.1.2).
        ErrorInformation = 0x01,
        /// SMART / Health Information (§5.16.1.3).
        Health = 0x02,
        /// Firmware Slot Information (§5.16.1.4).
        FirmwareSlot = 0x03,
        /// Changed Namespace List (§5.16.1.5).
        ChangedNamespaces = 0x04,
        /// Commands Supported and Effects (§5.16.1.6).
        CommandEffects = 0x05,
    }
}

/// An entry of the Error Information log, newest first (figure 206). An error count of 0 marks
/// an unused entry.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ErrorEntry {
    /// Bytes 7:0: a number that grows with each error.
    pub error_count: U64,
    /// Bytes 9:8: the submission queue, or 0xFFFF.
    pub submission_queue_id: U16,
    /// Bytes 11:10: the command, or 0xFFFF.
    pub command_id: U16,
    /// Bytes 13:12: the status field with the phase tag in bit 0.
    pub status_and_phase: U16,
    /// Bytes 15:14: byte 7:0 and bit 10:8 of the field that was at fault, or 0xFFFF.
    pub parameter_location: U16,
    /// Bytes 23:16: the first logical block at fault.
    pub lba: U64,
    /// Bytes 27:24: the namespace.
    pub namespace_id: U32,
    /// Byte 28: a vendor's log page, or 0.
    pub vendor_log_page: u8,
    /// Byte 29: the transport type.
    pub transport_type: u8,
    /// Bytes 31:30.
    pub reserved_30: [u8; 2],
    /// Bytes 39:32.
    pub command_information: U64,
    /// Bytes 41:40.
    pub transport_information: U16,
    /// Bytes 63:42.
    pub reserved_42: [u8; 22],
}

impl ErrorEntry {
    /// How the command ended.
    #[must_use]
    pub const fn status(&self) -> Status {
        Status::from_raw(self.status_and_phase.get() >> 1)
    }
}

const _: () = assert!(size_of::<ErrorEntry>() == 64);
const _: () = assert!(offset_of!(ErrorEntry, status_and_phase) == 12);
const _: () = assert!(offset_of!(ErrorEntry, lba) == 16);
const _: () = assert!(offset_of!(ErrorEntry, namespace_id) == 24);
const _: () = assert!(offset_of!(ErrorEntry, command_information) == 32);

bitflags::bitflags! {
    /// Critical warnings (figure 207, byte 0).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CriticalWarning: u8 {
        /// Spare capacity is below its threshold.
        const SPARE = 1 << 0;
        /// A temperature is beyond a threshold.
        const TEMPERATURE = 1 << 1;
        /// The subsystem's reliability is degraded.
        const RELIABILITY = 1 << 2;
        /// The media are read-only.
        const READ_ONLY = 1 << 3;
        /// The volatile memory's backup failed.
        const BACKUP_FAILED = 1 << 4;
        /// The persistent memory region is read-only or unreliable.
        const PERSISTENT_MEMORY = 1 << 5;
    }
}

/// SMART / Health Information (figure 207).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HealthLog {
    /// Byte 0: see [`CriticalWarning`].
    pub critical_warning: u8,
    /// Bytes 2:1: composite temperature in kelvins.
    pub temperature_kelvin: U16,
    /// Byte 3: remaining spare capacity, percent.
    pub available_spare_percent: u8,
    /// Byte 4: the threshold below which an event is sent, percent.
    pub spare_threshold_percent: u8,
    /// Byte 5: estimated share of the device's life that is used, percent; may exceed 100.
    pub used_percent: u8,
    /// Byte 6: critical warnings of endurance groups.
    pub endurance_group_warning: u8,
    /// Bytes 31:7.
    pub reserved_7: [u8; 25],
    /// Bytes 47:32: thousands of 512-byte units read.
    pub data_units_read: U128,
    /// Bytes 63:48: thousands of 512-byte units written.
    pub data_units_written: U128,
    /// Bytes 79:64.
    pub host_read_commands: U128,
    /// Bytes 95:80.
    pub host_write_commands: U128,
    /// Bytes 111:96: minutes.
    pub busy_minutes: U128,
    /// Bytes 127:112.
    pub power_cycles: U128,
    /// Bytes 143:128.
    pub power_on_hours: U128,
    /// Bytes 159:144.
    pub unsafe_shutdowns: U128,
    /// Bytes 175:160.
    pub media_errors: U128,
    /// Bytes 191:176.
    pub error_log_entries: U128,
    /// Bytes 195:192: minutes above the warning temperature.
    pub warning_temperature_minutes: U32,
    /// Bytes 199:196: minutes above the critical temperature.
    pub critical_temperature_minutes: U32,
    /// Bytes 215:200: sensors in kelvins; 0 where there is none.
    pub temperature_sensors_kelvin: [U16; 8],
    /// Bytes 231:216: thermal management transition counts and times.
    pub thermal_management: [U32; 4],
    /// Bytes 511:232.
    pub reserved_232: [u8; 280],
}

impl HealthLog {
    /// The critical warnings; unknown bits are kept.
    #[must_use]
    pub const fn warnings(&self) -> CriticalWarning {
        CriticalWarning::from_bits_retain(self.critical_warning)
    }
}

const _: () = assert!(size_of::<HealthLog>() == 512);
const _: () = assert!(offset_of!(HealthLog, temperature_kelvin) == 1);
const _: () = assert!(offset_of!(HealthLog, data_units_read) == 32);
const _: () = assert!(offset_of!(HealthLog, media_errors) == 160);
const _: () = assert!(offset_of!(HealthLog, warning_temperature_minutes) == 192);
const _: () = assert!(offset_of!(HealthLog, temperature_sensors_kelvin) == 200);

/// Firmware Slot Information (figure 209).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FirmwareSlotLog {
    /// Byte 0: bits 2:0 the active slot, bits 6:4 the slot after the next reset.
    pub active: u8,
    /// Bytes 7:1.
    pub reserved_1: [u8; 7],
    /// Bytes 63:8: the revision in each of seven slots, ASCII.
    pub revisions: [[u8; 8]; 7],
    /// Bytes 511:64.
    pub reserved_64: [u8; 448],
}

const _: () = assert!(size_of::<FirmwareSlotLog>() == 512);
const _: () = assert!(offset_of!(FirmwareSlotLog, revisions) == 8);

/// The most entries of the Changed Namespace List; more are told by a first entry of
/// 0xFFFF_FFFF (§5.16.1.5).
pub const CHANGED_NAMESPACES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn a_health_log_reads_as_it_lies_in_memory() {
        let mut bytes = [0; 512];
        bytes[0] = 0b101;
        bytes[1] = 0x2C;
        bytes[2] = 0x01;
        bytes[160] = 9;
        let log = HealthLog::read_from_bytes(&bytes).expect("the length is right");
        assert_eq!(log.temperature_kelvin.get(), 300);
        assert_eq!(log.media_errors.get(), 9);
        assert_eq!(
            log.warnings(),
            CriticalWarning::SPARE | CriticalWarning::RELIABILITY
        );
    }

    #[test]
    fn an_error_entry_carries_its_status_above_the_phase() {
        let mut entry = ErrorEntry::new_zeroed();
        entry.status_and_phase = U16::new(0x281 << 1 | 1);
        assert_eq!(entry.status().raw(), 0x281);
    }
}
