//! The submission queue entry.

use std::mem::offset_of;

use lode_units::{CommandId, Iova, NamespaceId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A command as it lies in a submission queue (Base 2.0 §3.3.3.1, figure 87).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SubmissionEntry {
    /// Byte 0: the opcode; its meaning depends on the queue.
    pub opcode: u8,
    /// Byte 1: bits 1:0 fused operation, bits 7:6 PRP (00b) or SGL for data transfer.
    pub flags: u8,
    /// Bytes 3:2: the command identifier.
    pub command_id: U16,
    /// Bytes 7:4: the namespace.
    pub namespace_id: U32,
    /// Bytes 15:8: command dwords 2 and 3.
    pub dwords_2_3: [U32; 2],
    /// Bytes 23:16: metadata pointer.
    pub metadata_pointer: U64,
    /// Bytes 39:24: where the data are.
    pub data_pointer: DataPointer,
    /// Bytes 43:40: command dword 10.
    pub dword_10: U32,
    /// Bytes 47:44: command dword 11.
    pub dword_11: U32,
    /// Bytes 51:48: command dword 12.
    pub dword_12: U32,
    /// Bytes 55:52: command dword 13.
    pub dword_13: U32,
    /// Bytes 59:56: command dword 14.
    pub dword_14: U32,
    /// Bytes 63:60: command dword 15.
    pub dword_15: U32,
}

/// The two physical region page entries of a command (Base 2.0 §4.1.1).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct DataPointer {
    /// The first page; may begin inside it, at a multiple of 4.
    pub prp1: U64,
    /// Nothing, the second page, or a list of the further pages.
    pub prp2: U64,
}

impl DataPointer {
    /// No data.
    pub const NONE: Self = Self {
        prp1: U64::ZERO,
        prp2: U64::ZERO,
    };

    /// Two entries.
    #[must_use]
    pub const fn new(prp1: u64, prp2: u64) -> Self {
        Self {
            prp1: U64::new(prp1),
            prp2: U64::new(prp2),
        }
    }

    /// Data that lie inside one page.
    #[must_use]
    pub const fn one_page(iova: Iova) -> Self {
        Self::new(iova.get(), 0)
    }
}

impl SubmissionEntry {
    /// A command of which only the opcode is set.
    #[must_use]
    pub const fn new(opcode: u8) -> Self {
        Self {
            opcode,
            flags: 0,
            command_id: U16::ZERO,
            namespace_id: U32::ZERO,
            dwords_2_3: [U32::ZERO; 2],
            metadata_pointer: U64::ZERO,
            data_pointer: DataPointer::NONE,
            dword_10: U32::ZERO,
            dword_11: U32::ZERO,
            dword_12: U32::ZERO,
            dword_13: U32::ZERO,
            dword_14: U32::ZERO,
            dword_15: U32::ZERO,
        }
    }

    /// The command identifier.
    #[must_use]
    pub const fn command_id(&self) -> CommandId {
        CommandId::new(self.command_id.get())
    }

    /// The namespace.
    #[must_use]
    pub const fn namespace_id(&self) -> NamespaceId {
        NamespaceId::new(self.namespace_id.get())
    }

    /// The same command under `command_id`.
    #[must_use]
    pub const fn with_command_id(mut self, command_id: CommandId) -> Self {
        self.command_id = U16::new(command_id.get());
        self
    }

    /// The same command for `namespace`.
    #[must_use]
    pub const fn with_namespace(mut self, namespace: NamespaceId) -> Self {
        self.namespace_id = U32::new(namespace.get());
        self
    }

    /// The same command with its data at `data_pointer`.
    #[must_use]
    pub const fn with_data(mut self, data_pointer: DataPointer) -> Self {
        self.data_pointer = data_pointer;
        self
    }

    /// Whether the command asks for scatter-gather lists instead of PRPs.
    #[must_use]
    pub const fn uses_sgl(&self) -> bool {
        self.flags & 0xC0 != 0
    }

    /// Whether the command is one half of a fused operation.
    #[must_use]
    pub const fn is_fused(&self) -> bool {
        self.flags & 0x03 != 0
    }

    /// Command dwords 10 and 11 as one number, low dword first.
    #[must_use]
    pub const fn dwords_10_11(&self) -> u64 {
        self.dword_10.get() as u64 | (self.dword_11.get() as u64) << 32
    }
}

const _: () = assert!(size_of::<SubmissionEntry>() == 64);
const _: () = assert!(offset_of!(SubmissionEntry, command_id) == 2);
const _: () = assert!(offset_of!(SubmissionEntry, namespace_id) == 4);
const _: () = assert!(offset_of!(SubmissionEntry, metadata_pointer) == 16);
const _: () = assert!(offset_of!(SubmissionEntry, data_pointer) == 24);
const _: () = assert!(offset_of!(SubmissionEntry, dword_10) == 40);
const _: () = assert!(offset_of!(SubmissionEntry, dword_15) == 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_its_fields_where_the_specification_puts_them() {
        let mut entry = SubmissionEntry::new(0x02)
            .with_command_id(CommandId::new(0xBEEF))
            .with_namespace(NamespaceId::new(7))
            .with_data(DataPointer::new(0x1000, 0x2000));
        entry.dword_10 = U32::new(0x1122_3344);
        entry.dword_11 = U32::new(0x5566_7788);
        let bytes = entry.as_bytes();
        assert_eq!(&bytes[..8], &[2, 0, 0xEF, 0xBE, 7, 0, 0, 0]);
        assert_eq!(bytes[25], 0x10);
        assert_eq!(bytes[33], 0x20);
        assert_eq!(entry.dwords_10_11(), 0x5566_7788_1122_3344);
    }
}
