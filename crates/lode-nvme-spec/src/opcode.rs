//! Command opcodes.

use crate::open_enum::open_enum;

open_enum! {
    /// An admin command (Base 2.0 §5, figure 139).
    AdminOpcode {
        /// Delete I/O Submission Queue (§5.7).
        DeleteSubmissionQueue = 0x00,
        /// Create I/O Submission Queue (§5.5).
        CreateSubmissionQueue = 0x01,
        /// Get Log Page (§5.16).
        GetLogPage = 0x02,
        /// Delete I/O Completion Queue (§5.6).
        DeleteCompletionQueue = 0x04,
        /// Create I/O Completion Queue (§5.4).
        CreateCompletionQueue = 0x05,
        /// Identify (§5.17).
        Identify = 0x06,
        /// Abort (§5.1).
        Abort = 0x08,
        /// Set Features (§5.27).
        SetFeatures = 0x09,
        /// Get Features (§5.15).
        GetFeatures = 0x0A,
        /// Asynchronous Event Request (§5.2).
        AsyncEventRequest = 0x0C,
        /// Namespace Management (§5.23).
        NamespaceManagement = 0x0D,
        /// Firmware Commit (§5.12).
        FirmwareCommit = 0x10,
        /// Firmware Image Download (§5.13).
        FirmwareDownload = 0x11,
        /// Device Self-test (§5.8).
        DeviceSelfTest = 0x14,
        /// Namespace Attachment (§5.22).
        NamespaceAttachment = 0x15,
        /// Keep Alive (§5.18).
        KeepAlive = 0x18,
        /// Doorbell Buffer Config (§5.9).
        DoorbellBufferConfig = 0x7C,
        /// Format NVM (§5.14).
        FormatNvm = 0x80,
        /// Sanitize (§5.24).
        Sanitize = 0x84,
    }
}

open_enum! {
    /// An I/O command of the NVM command set (NVM Command Set 1.0 §3, figure 16).
    NvmOpcode {
        /// Flush (Base 2.0 §7.1).
        Flush = 0x00,
        /// Write (§3.2.6).
        Write = 0x01,
        /// Read (§3.2.4).
        Read = 0x02,
        /// Write Uncorrectable (§3.2.7).
        WriteUncorrectable = 0x04,
        /// Compare (§3.2.1).
        Compare = 0x05,
        /// Write Zeroes (§3.2.8).
        WriteZeroes = 0x08,
        /// Dataset Management (§3.2.3).
        DatasetManagement = 0x09,
        /// Verify (§3.2.5).
        Verify = 0x0C,
        /// Copy (§3.2.2).
        Copy = 0x19,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_that_move_data_say_the_direction_in_their_low_bits() {
        // Base 2.0 §3.3.3.1: bits 1:0 are 01b towards the controller and 10b towards the host.
        for (opcode, direction) in [
            (NvmOpcode::Flush, 0b00),
            (NvmOpcode::Write, 0b01),
            (NvmOpcode::Read, 0b10),
            (NvmOpcode::Compare, 0b01),
            (NvmOpcode::WriteZeroes, 0b00),
            (NvmOpcode::DatasetManagement, 0b01),
            (NvmOpcode::Verify, 0b00),
            (NvmOpcode::Copy, 0b01),
        ] {
            assert_eq!(opcode.raw() & 0b11, direction, "{opcode:?}");
        }
        for (opcode, direction) in [
            (AdminOpcode::GetLogPage, 0b10),
            (AdminOpcode::Identify, 0b10),
            (AdminOpcode::CreateSubmissionQueue, 0b01),
            (AdminOpcode::DeleteCompletionQueue, 0b00),
        ] {
            assert_eq!(opcode.raw() & 0b11, direction, "{opcode:?}");
        }
    }
}
