//! The messages as bytes: layouts, and the checks that turn foreign bytes into values.
//!
//! Offsets are those of the vfio-user Protocol Specification, counted from the end of the header.
//! The protocol has the byte order of the machine; this crate runs on little-endian ones only.

mod payload;
mod region;
mod version;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::VfioUserError;

pub(crate) use payload::{
    DeviceInfo, DmaAccess, DmaMap, DmaUnmap, InterruptInfo, InterruptSet, RegionAccess,
};
pub(crate) use region::{Area, RegionInfo, RegionReply, sparse_capability};
pub(crate) use version::Version;

#[cfg(target_endian = "big")]
compile_error!("vfio-user has the machine's byte order; it is little here");

/// What a message asks for ("Commands").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the specification's")]
#[non_exhaustive]
pub enum Command {
    Version,
    DmaMap,
    DmaUnmap,
    DeviceGetInfo,
    DeviceGetRegionInfo,
    DeviceGetIrqInfo,
    DeviceSetIrqs,
    RegionRead,
    RegionWrite,
    DmaRead,
    DmaWrite,
    DeviceReset,
}

impl Command {
    const ALL: [(u16, Self, &'static str); 12] = [
        (1, Self::Version, "VERSION"),
        (2, Self::DmaMap, "DMA_MAP"),
        (3, Self::DmaUnmap, "DMA_UNMAP"),
        (4, Self::DeviceGetInfo, "DEVICE_GET_INFO"),
        (5, Self::DeviceGetRegionInfo, "DEVICE_GET_REGION_INFO"),
        (7, Self::DeviceGetIrqInfo, "DEVICE_GET_IRQ_INFO"),
        (8, Self::DeviceSetIrqs, "DEVICE_SET_IRQS"),
        (9, Self::RegionRead, "REGION_READ"),
        (10, Self::RegionWrite, "REGION_WRITE"),
        (11, Self::DmaRead, "DMA_READ"),
        (12, Self::DmaWrite, "DMA_WRITE"),
        (13, Self::DeviceReset, "DEVICE_RESET"),
    ];

    pub(crate) fn number(self) -> u16 {
        let row = Self::ALL.iter().find(|(_, command, _)| *command == self);
        row.expect("every command is in the table").0
    }

    pub(crate) fn from_number(number: u16) -> Option<Self> {
        let row = Self::ALL.iter().find(|(known, _, _)| *known == number);
        row.map(|(_, command, _)| *command)
    }

    /// The name as the specification spells it.
    pub(crate) fn name(self) -> &'static str {
        let row = Self::ALL.iter().find(|(_, command, _)| *command == self);
        row.expect("every command is in the table").2
    }
}

impl std::fmt::Display for Command {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A header as it lies in a message ("Header").
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(crate) struct RawHeader {
    message_id: U16,
    command: U16,
    message_size: U32,
    flags: U32,
    error: U32,
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);

/// A message's header whose sizes and kinds are possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) message_id: u16,
    /// The number; unknown ones are answered, not dropped.
    pub(crate) command: u16,
    /// What follows the header.
    pub(crate) payload_bytes: usize,
    pub(crate) kind: Kind,
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It wants an answer, or none at all.
    Command { wants_reply: bool },
    /// The answer to a command.
    Reply,
    /// The refusal of a command, with an errno; 0 where the sender gave none.
    Refusal { errno: u32 },
}

impl Header {
    pub(crate) fn command(command: Command, message_id: u16, payload_bytes: usize) -> Self {
        Self {
            message_id,
            command: command.number(),
            payload_bytes,
            kind: Kind::Command { wants_reply: true },
        }
    }

    /// The header of the answer to this message.
    pub(crate) const fn answer(self, payload_bytes: usize) -> Self {
        Self {
            payload_bytes,
            kind: Kind::Reply,
            ..self
        }
    }

    /// The header of the refusal of this message.
    pub(crate) const fn refusal(self, errno: u32) -> Self {
        Self {
            payload_bytes: 0,
            kind: Kind::Refusal { errno },
            ..self
        }
    }

    pub(crate) fn parse(raw: RawHeader) -> Result<Self, VfioUserError> {
        let foreign = |reason| VfioUserError::Foreign { reason };
        let payload_bytes = usize::try_from(raw.message_size.get())
            .ok()
            .and_then(|size| size.checked_sub(HEADER_BYTES))
            .ok_or_else(|| foreign("a message is shorter than its header"))?;
        if payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(foreign("a message is longer than any can be"));
        }
        let flags = raw.flags.get();
        let kind = match flags & FLAG_TYPE {
            TYPE_COMMAND => Kind::Command {
                wants_reply: flags & FLAG_NO_REPLY == 0,
            },
            TYPE_REPLY if flags & FLAG_ERROR != 0 => Kind::Refusal {
                errno: raw.error.get(),
            },
            TYPE_REPLY => Kind::Reply,
            _ => return Err(foreign("a message is neither command nor reply")),
        };
        Ok(Self {
            message_id: raw.message_id.get(),
            command: raw.command.get(),
            payload_bytes,
            kind,
        })
    }

    pub(crate) fn to_raw(self) -> RawHeader {
        let (flags, error) = match self.kind {
            Kind::Command { wants_reply: true } => (TYPE_COMMAND, 0),
            Kind::Command { wants_reply: false } => (TYPE_COMMAND | FLAG_NO_REPLY, 0),
            Kind::Reply => (TYPE_REPLY, 0),
            Kind::Refusal { errno } => (TYPE_REPLY | FLAG_ERROR, errno),
        };
        let size = self.payload_bytes.saturating_add(HEADER_BYTES);
        RawHeader {
            message_id: self.message_id.into(),
            command: self.command.into(),
            message_size: u32::try_from(size).unwrap_or(u32::MAX).into(),
            flags: flags.into(),
            error: error.into(),
        }
    }
}

/// A value at the beginning of a payload, and the bytes after it.
pub(crate) fn split<T: FromBytes>(payload: &[u8]) -> Result<(T, &[u8]), VfioUserError> {
    T::read_from_prefix(payload).map_err(|_short| VfioUserError::Foreign {
        reason: "a message is shorter than what it must hold",
    })
}

/// Every message begins with this many bytes.
pub(crate) const HEADER_BYTES: usize = 16;
/// The data of one read or write of a region or of memory: the specification's default, told to
/// the other side all the same.
pub(crate) const DATA_BYTES_MAX: usize = 1 << 20;
/// The fixed part before the data, with room to spare.
pub(crate) const PAYLOAD_BYTES_MAX: usize = DATA_BYTES_MAX + 64;
/// Descriptors of one message.
pub(crate) const DESCRIPTORS_MAX: usize = 8;

const FLAG_TYPE: u32 = 0xF;
const TYPE_COMMAND: u32 = 0;
const TYPE_REPLY: u32 = 1;
const FLAG_NO_REPLY: u32 = 1 << 4;
const FLAG_ERROR: u32 = 1 << 5;

/// Region numbers of a PCI device (`VFIO_PCI_*_REGION_INDEX`).
pub(crate) const REGION_BAR_0: u32 = 0;
pub(crate) const REGION_BAR_4: u32 = 4;
pub(crate) const REGION_CONFIGURATION: u32 = 7;
/// How many there are (with ROM and VGA).
pub(crate) const REGION_COUNT: u32 = 9;
/// The interrupt type MSI-X (`VFIO_PCI_MSIX_IRQ_INDEX`) and how many types there are.
pub(crate) const INTERRUPT_MSIX: u32 = 2;
pub(crate) const INTERRUPT_TYPE_COUNT: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back_as_written() {
        for kind in [
            Kind::Command { wants_reply: true },
            Kind::Command { wants_reply: false },
            Kind::Reply,
            Kind::Refusal { errno: 17 },
        ] {
            let header = Header {
                message_id: 0xABCD,
                command: Command::RegionWrite.number(),
                payload_bytes: 24,
                kind,
            };
            assert_eq!(Header::parse(header.to_raw()).expect("valid"), header);
        }
    }

    #[test]
    fn a_header_is_sixteen_bytes_in_the_order_of_the_specification() {
        let header = Header::command(Command::DmaMap, 0x0201, 32).refusal(5);
        let raw = header.to_raw();
        assert_eq!(
            raw.as_bytes(),
            [1, 2, 2, 0, 16, 0, 0, 0, 0x21, 0, 0, 0, 5, 0, 0, 0]
        );
    }

    #[test]
    fn impossible_sizes_and_kinds_are_refused() {
        let valid = Header::command(Command::Version, 1, 4).to_raw();
        for size in [0, 15, 17 + PAYLOAD_BYTES_MAX, usize::MAX >> 32] {
            let mut raw = valid;
            raw.message_size = u32::try_from(size).expect("32 bits").into();
            assert!(Header::parse(raw).is_err(), "{size}");
        }
        let mut raw = valid;
        raw.flags = 2.into();
        assert!(Header::parse(raw).is_err());
    }

    #[test]
    fn every_command_has_its_own_number() {
        for (number, command, _name) in Command::ALL {
            assert_eq!(Command::from_number(number), Some(command));
            assert_eq!(command.number(), number);
        }
        assert_eq!(Command::from_number(0), None);
        assert_eq!(Command::from_number(14), None);
    }
}
