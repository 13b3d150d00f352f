//! The controller's registers (Base 2.0 §3.1.3) and doorbells (PCIe Transport 1.0 §3.1.2).

use lode_units::QueueId;

use crate::bits::{bit, byte_at, field, word_at};

/// Controller Capabilities, 64 bits (§3.1.3.1).
pub const CAP: u32 = 0x00;
/// Version, 32 bits (§3.1.3.2).
pub const VS: u32 = 0x08;
/// Interrupt Mask Set, 32 bits; for pin-based and single-message interrupts (§3.1.3.3).
pub const INTMS: u32 = 0x0C;
/// Interrupt Mask Clear, 32 bits (§3.1.3.4).
pub const INTMC: u32 = 0x10;
/// Controller Configuration, 32 bits (§3.1.3.5).
pub const CC: u32 = 0x14;
/// Controller Status, 32 bits (§3.1.3.6).
pub const CSTS: u32 = 0x1C;
/// NVM Subsystem Reset, 32 bits (§3.1.3.7).
pub const NSSR: u32 = 0x20;
/// Admin Queue Attributes, 32 bits (§3.1.3.8).
pub const AQA: u32 = 0x24;
/// Admin Submission Queue Base Address, 64 bits (§3.1.3.9).
pub const ASQ: u32 = 0x28;
/// Admin Completion Queue Base Address, 64 bits (§3.1.3.10).
pub const ACQ: u32 = 0x30;
/// Controller Ready Timeouts, 32 bits (§3.1.3.24).
pub const CRTO: u32 = 0x68;
/// Where the doorbells begin (PCIe Transport 1.0 §3.1.2).
pub const DOORBELLS: u32 = 0x1000;

/// What `NSSR` must be written with to reset the NVM subsystem: "NVMe".
pub const NSSR_KEY: u32 = 0x4E56_4D65;

/// What every register of a removed device reads as.
pub const ALL_ONES_U32: u32 = u32::MAX;
/// The 64-bit form of [`ALL_ONES_U32`].
pub const ALL_ONES_U64: u64 = u64::MAX;

/// The base-two logarithm of a submission entry's size, as CC.IOSQES wants it.
pub const SUBMISSION_ENTRY_SHIFT: u8 = 6;
/// The base-two logarithm of a completion entry's size, as CC.IOCQES wants it.
pub const COMPLETION_ENTRY_SHIFT: u8 = 4;

/// The most entries of an admin queue (§3.1.3.8).
pub const ADMIN_QUEUE_ENTRIES_MAX: u16 = 4096;

/// The offset of the submission tail doorbell of `queue` where the stride field is `stride`.
/// An offset beyond 32 bits, which no window reaches, is the largest aligned one.
#[must_use]
pub const fn submission_doorbell(queue: QueueId, stride: u8) -> u32 {
    doorbell(2 * queue.get() as u32, stride)
}

/// The offset of the completion head doorbell of `queue` where the stride field is `stride`.
#[must_use]
pub const fn completion_doorbell(queue: QueueId, stride: u8) -> u32 {
    doorbell(2 * queue.get() as u32 + 1, stride)
}

const fn doorbell(index: u32, stride: u8) -> u32 {
    let distance = index.saturating_mul(4 << (stride & 0xF));
    DOORBELLS.saturating_add(distance) & !3
}

/// Controller Capabilities, CAP (§3.1.3.1): the fields that concern a memory-based transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Bits 15:0, MQES: the largest queue's entries minus one; 0 would be invalid.
    pub queue_entries_max_minus_one: u16,
    /// Bit 16, CQR: queues must be physically contiguous.
    pub requires_contiguous_queues: bool,
    /// Bits 31:24, TO: the longest wait for CSTS.RDY, in units of 500 ms.
    pub timeout_500ms: u8,
    /// Bits 35:32, DSTRD: doorbells are `4 << stride` bytes apart.
    pub doorbell_stride: u8,
    /// Bit 36, NSSRS: NVM subsystem reset is supported.
    pub supports_subsystem_reset: bool,
    /// Bits 44:37, CSS: see [`Capabilities::COMMAND_SET_NVM`] and its neighbours.
    pub command_sets: u8,
    /// Bits 51:48, MPSMIN: the smallest page is `1 << (12 + this)` bytes.
    pub page_size_min: u8,
    /// Bits 55:52, MPSMAX: the largest page is `1 << (12 + this)` bytes.
    pub page_size_max: u8,
    /// Bits 60:59, CRMS: bit 0 ready with media (CRTO is there), bit 1 ready independent of it.
    pub ready_modes: u8,
}

impl Capabilities {
    /// In `command_sets`: the NVM command set is there.
    pub const COMMAND_SET_NVM: u8 = 1 << 0;
    /// In `command_sets`: several command sets may be enabled (CC.CSS = 110b).
    pub const COMMAND_SET_MANY: u8 = 1 << 6;
    /// In `command_sets`: only admin commands (CC.CSS = 111b).
    pub const COMMAND_SET_ADMIN_ONLY: u8 = 1 << 7;

    /// Decodes the register.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self {
            queue_entries_max_minus_one: word_at(bits, 0),
            requires_contiguous_queues: bit(bits, 16),
            timeout_500ms: byte_at(bits, 24),
            doorbell_stride: field(bits, 32, 4),
            supports_subsystem_reset: bit(bits, 36),
            command_sets: byte_at(bits, 37),
            page_size_min: field(bits, 48, 4),
            page_size_max: field(bits, 52, 4),
            ready_modes: field(bits, 59, 2),
        }
    }

    /// Encodes the register; fields that are not named here are 0.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.queue_entries_max_minus_one as u64
            | (self.requires_contiguous_queues as u64) << 16
            | (self.timeout_500ms as u64) << 24
            | (self.doorbell_stride as u64 & 0xF) << 32
            | (self.supports_subsystem_reset as u64) << 36
            | (self.command_sets as u64) << 37
            | (self.page_size_min as u64 & 0xF) << 48
            | (self.page_size_max as u64 & 0xF) << 52
            | (self.ready_modes as u64 & 0x3) << 59
    }

    /// The entries of the largest queue: 1 to 65536.
    #[must_use]
    pub const fn queue_entries_max(self) -> u32 {
        self.queue_entries_max_minus_one as u32 + 1
    }
}

/// Version, VS (§3.1.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Bits 31:16.
    pub major: u16,
    /// Bits 15:8.
    pub minor: u8,
    /// Bits 7:0.
    pub tertiary: u8,
}

impl Version {
    /// Version 2.0.
    pub const V2_0: Self = Self {
        major: 2,
        minor: 0,
        tertiary: 0,
    };

    /// Decodes the register.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self {
            major: word_at(bits as u64, 16),
            minor: byte_at(bits as u64, 8),
            tertiary: byte_at(bits as u64, 0),
        }
    }

    /// Encodes the register.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        (self.major as u32) << 16 | (self.minor as u32) << 8 | self.tertiary as u32
    }
}

/// Shutdown notification, CC.SHN (§3.1.3.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShutdownNotification {
    /// 00b: none.
    #[default]
    None,
    /// 01b: normal.
    Normal,
    /// 10b: abrupt.
    Abrupt,
    /// 11b.
    Reserved,
}

/// Controller Configuration, CC (§3.1.3.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// Bit 0, EN.
    pub enabled: bool,
    /// Bits 6:4, CSS: 000b NVM, 110b all that are supported, 111b admin only.
    pub command_set: u8,
    /// Bits 10:7, MPS: a page is `1 << (12 + this)` bytes.
    pub page_size: u8,
    /// Bits 13:11, AMS: 000b round robin.
    pub arbitration: u8,
    /// Bits 15:14, SHN.
    pub shutdown: ShutdownNotification,
    /// Bits 19:16, IOSQES: base-two logarithm of the submission entry size.
    pub submission_entry_shift: u8,
    /// Bits 23:20, IOCQES: base-two logarithm of the completion entry size.
    pub completion_entry_shift: u8,
}

impl Configuration {
    /// Decodes the register.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        let bits = bits as u64;
        Self {
            enabled: bit(bits, 0),
            command_set: field(bits, 4, 3),
            page_size: field(bits, 7, 4),
            arbitration: field(bits, 11, 3),
            shutdown: match field(bits, 14, 2) {
                0 => ShutdownNotification::None,
                1 => ShutdownNotification::Normal,
                2 => ShutdownNotification::Abrupt,
                _ => ShutdownNotification::Reserved,
            },
            submission_entry_shift: field(bits, 16, 4),
            completion_entry_shift: field(bits, 20, 4),
        }
    }

    /// Encodes the register.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        let shutdown = match self.shutdown {
            ShutdownNotification::None => 0,
            ShutdownNotification::Normal => 1,
            ShutdownNotification::Abrupt => 2,
            ShutdownNotification::Reserved => 3,
        };
        self.enabled as u32
            | (self.command_set as u32 & 0x7) << 4
            | (self.page_size as u32 & 0xF) << 7
            | (self.arbitration as u32 & 0x7) << 11
            | shutdown << 14
            | (self.submission_entry_shift as u32 & 0xF) << 16
            | (self.completion_entry_shift as u32 & 0xF) << 20
    }
}

/// Shutdown status, CSTS.SHST (§3.1.3.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShutdownStatus {
    /// 00b: no shutdown was asked for.
    #[default]
    Normal,
    /// 01b: shutdown is being processed.
    Occurring,
    /// 10b: shutdown is complete.
    Complete,
    /// 11b.
    Reserved,
}

/// Controller Status, CSTS (§3.1.3.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerStatus {
    /// Bit 0, RDY.
    pub ready: bool,
    /// Bit 1, CFS: a fatal error that only a reset ends.
    pub fatal: bool,
    /// Bits 3:2, SHST.
    pub shutdown: ShutdownStatus,
    /// Bit 4, NSSRO: an NVM subsystem reset happened.
    pub subsystem_reset_occurred: bool,
    /// Bit 5, PP: processing is paused.
    pub processing_paused: bool,
}

impl ControllerStatus {
    /// Decodes the register.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        let bits = bits as u64;
        Self {
            ready: bit(bits, 0),
            fatal: bit(bits, 1),
            shutdown: match field(bits, 2, 2) {
                0 => ShutdownStatus::Normal,
                1 => ShutdownStatus::Occurring,
                2 => ShutdownStatus::Complete,
                _ => ShutdownStatus::Reserved,
            },
            subsystem_reset_occurred: bit(bits, 4),
            processing_paused: bit(bits, 5),
        }
    }

    /// Encodes the register.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        let shutdown = match self.shutdown {
            ShutdownStatus::Normal => 0,
            ShutdownStatus::Occurring => 1,
            ShutdownStatus::Complete => 2,
            ShutdownStatus::Reserved => 3,
        };
        self.ready as u32
            | (self.fatal as u32) << 1
            | shutdown << 2
            | (self.subsystem_reset_occurred as u32) << 4
            | (self.processing_paused as u32) << 5
    }
}

/// Admin Queue Attributes, AQA (§3.1.3.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminQueueAttributes {
    /// Bits 11:0, ASQS, plus one: 2 to 4096 (1 is encodable and invalid).
    pub submission_entries: u16,
    /// Bits 27:16, ACQS, plus one.
    pub completion_entries: u16,
}

impl AdminQueueAttributes {
    /// Decodes the register.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self {
            submission_entries: (word_at(bits as u64, 0) & 0xFFF) + 1,
            completion_entries: (word_at(bits as u64, 16) & 0xFFF) + 1,
        }
    }

    /// Encodes the register.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        (self.submission_entries.wrapping_sub(1) as u32 & 0xFFF)
            | (self.completion_entries.wrapping_sub(1) as u32 & 0xFFF) << 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbells_alternate_and_keep_their_stride() {
        assert_eq!(submission_doorbell(QueueId::new(0), 0), 0x1000);
        assert_eq!(completion_doorbell(QueueId::new(0), 0), 0x1004);
        assert_eq!(submission_doorbell(QueueId::new(3), 0), 0x1018);
        assert_eq!(completion_doorbell(QueueId::new(3), 2), 0x1000 + 7 * 16);
        assert_eq!(
            completion_doorbell(QueueId::new(u16::MAX), 0xF),
            u32::MAX - 3,
            "beyond any window"
        );
    }

    #[test]
    fn capabilities_lie_at_the_bits_of_the_specification() {
        let bits = Capabilities {
            queue_entries_max_minus_one: u16::MAX,
            requires_contiguous_queues: true,
            timeout_500ms: 0x14,
            doorbell_stride: 2,
            supports_subsystem_reset: true,
            command_sets: Capabilities::COMMAND_SET_NVM,
            page_size_min: 1,
            page_size_max: 4,
            ready_modes: 1,
        };
        assert_eq!(bits.to_bits(), 0x0841_0032_1401_FFFF);
        assert_eq!(Capabilities::from_bits(bits.to_bits()), bits);
        assert_eq!(bits.queue_entries_max(), 65536);
    }

    #[test]
    fn every_status_and_configuration_comes_back() {
        for bits in 0..0x40_u32 {
            assert_eq!(ControllerStatus::from_bits(bits).to_bits(), bits);
        }
        let bits = 0x0046_4000 | 1 | 3 << 7;
        let configuration = Configuration::from_bits(bits);
        assert_eq!(configuration.to_bits(), bits);
        assert_eq!(configuration.shutdown, ShutdownNotification::Normal);
        assert_eq!(configuration.submission_entry_shift, SUBMISSION_ENTRY_SHIFT);
        assert_eq!(configuration.completion_entry_shift, COMPLETION_ENTRY_SHIFT);
    }

    #[test]
    fn admin_queue_sizes_are_zero_based() {
        let attributes = AdminQueueAttributes {
            submission_entries: 4096,
            completion_entries: 2,
        };
        assert_eq!(attributes.to_bits(), 0x0001_0FFF);
        assert_eq!(AdminQueueAttributes::from_bits(0x0001_0FFF), attributes);
    }

    #[test]
    fn a_version_is_three_numbers() {
        assert_eq!(Version::from_bits(0x0002_0000), Version::V2_0);
        assert_eq!(Version::from_bits(0x0001_0403).to_bits(), 0x0001_0403);
        assert!(Version::from_bits(0x0001_0403) < Version::V2_0);
    }
}
