//! Features (Base 2.0 §5.27.1) and the values of those that are used here.

use crate::bits::word_at;
use crate::open_enum::open_enum;

open_enum! {
    /// A feature identifier (figure 317).
    FeatureId {
        /// Arbitration (§5.27.1.1).
        Arbitration = 0x01,
        /// Power Management (§5.27.1.2).
        PowerManagement = 0x02,
        /// Temperature Threshold (§5.27.1.3).
        TemperatureThreshold = 0x04,
        /// Error Recovery (NVM Command Set 1.0 §4.1.3.2).
        ErrorRecovery = 0x05,
        /// Volatile Write Cache (§5.27.1.4): bit 0 of the value is "enabled".
        VolatileWriteCache = 0x06,
        /// Number of Queues (§5.27.1.5): see [`QueueCounts`].
        NumberOfQueues = 0x07,
        /// Interrupt Coalescing (§5.27.1.6).
        InterruptCoalescing = 0x08,
        /// Interrupt Vector Configuration (§5.27.1.7).
        InterruptVectorConfiguration = 0x09,
        /// Write Atomicity Normal (NVM Command Set 1.0 §4.1.3.3).
        WriteAtomicity = 0x0A,
        /// Asynchronous Event Configuration (§5.27.1.8): see [`EventMask`].
        AsyncEventConfiguration = 0x0B,
        /// Autonomous Power State Transition (§5.27.1.9).
        AutonomousPowerState = 0x0C,
        /// Host Memory Buffer (§5.27.1.10).
        HostMemoryBuffer = 0x0D,
        /// Timestamp (§5.27.1.11).
        Timestamp = 0x0E,
        /// Keep Alive Timer (§5.27.1.12).
        KeepAliveTimer = 0x0F,
    }
}

/// The value of Number of Queues (§5.27.1.5): what a host asks for and what it is given, not
/// counting the admin queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounts {
    /// Bits 15:0 plus one: submission queues.
    pub submission: u32,
    /// Bits 31:16 plus one: completion queues.
    pub completion: u32,
}

impl QueueCounts {
    /// The largest count that may be asked for: the field value 65535 is invalid.
    pub const MAX: u32 = 65535;

    /// Decodes the value.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        Self {
            submission: word_at(dword as u64, 0) as u32 + 1,
            completion: word_at(dword as u64, 16) as u32 + 1,
        }
    }

    /// Encodes the value; a count of 0 is encoded as 1, one beyond 65536 as 65536.
    #[must_use]
    pub const fn to_dword(self) -> u32 {
        zero_based(self.submission) | zero_based(self.completion) << 16
    }
}

const fn zero_based(count: u32) -> u32 {
    let index = count.saturating_sub(1);
    if index > 0xFFFF { 0xFFFF } else { index }
}

bitflags::bitflags! {
    /// The value of Asynchronous Event Configuration (§5.27.1.8): which events are reported.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct EventMask: u32 {
        /// Critical warning: spare below its threshold.
        const SPARE = 1 << 0;
        /// Critical warning: temperature.
        const TEMPERATURE = 1 << 1;
        /// Critical warning: reliability degraded.
        const RELIABILITY = 1 << 2;
        /// Critical warning: media are read-only.
        const READ_ONLY = 1 << 3;
        /// Critical warning: the volatile memory's backup failed.
        const BACKUP_FAILED = 1 << 4;
        /// Namespace attribute notices.
        const NAMESPACE_ATTRIBUTES = 1 << 8;
        /// Firmware activation notices.
        const FIRMWARE_ACTIVATION = 1 << 9;
    }
}

/// Bit 0 of the value of Volatile Write Cache: the cache is enabled (§5.27.1.4).
pub const WRITE_CACHE_ENABLED: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_counts_are_zero_based() {
        let counts = QueueCounts {
            submission: 4,
            completion: 65536,
        };
        assert_eq!(counts.to_dword(), 0xFFFF_0003);
        assert_eq!(QueueCounts::from_dword(0xFFFF_0003), counts);
    }
}
