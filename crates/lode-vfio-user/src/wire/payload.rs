//! The payloads of fixed length.

use std::mem::offset_of;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// DEVICE_GET_INFO, both ways.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(crate) struct DeviceInfo {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) region_count: U32,
    pub(crate) interrupt_count: U32,
}

impl DeviceInfo {
    pub(crate) const FLAG_RESET: u32 = 1;
    pub(crate) const FLAG_PCI: u32 = 1 << 1;
}

/// DEVICE_GET_IRQ_INFO, both ways.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(crate) struct InterruptInfo {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) index: U32,
    pub(crate) count: U32,
}

impl InterruptInfo {
    pub(crate) const FLAG_EVENTFD: u32 = 1;
}

/// DEVICE_SET_IRQS; the eventfds come beside the message.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(crate) struct InterruptSet {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) index: U32,
    pub(crate) start: U32,
    pub(crate) count: U32,
}

impl InterruptSet {
    pub(crate) const DATA_NONE: u32 = 1;
    pub(crate) const DATA_EVENTFD: u32 = 1 << 2;
    pub(crate) const ACTION_TRIGGER: u32 = 1 << 5;
}

/// DMA_MAP; the memory's descriptor comes beside the message.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(crate) struct DmaMap {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    /// Where in the descriptor the memory begins.
    pub(crate) offset: U64,
    /// Where the device sees it.
    pub(crate) address: U64,
    pub(crate) size: U64,
}

impl DmaMap {
    pub(crate) const FLAG_READ: u32 = 1;
    pub(crate) const FLAG_WRITE: u32 = 1 << 1;
}

/// DMA_UNMAP, both ways.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(crate) struct DmaUnmap {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) address: U64,
    pub(crate) size: U64,
}

/// REGION_READ and REGION_WRITE, both ways; data may follow.
#[repr(C)]
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
pub(crate) struct RegionAccess {
    pub(crate) offset: U64,
    pub(crate) region: U32,
    pub(crate) count: U32,
}

/// DMA_READ and DMA_WRITE, both ways; data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(crate) struct DmaAccess {
    pub(crate) address: U64,
    pub(crate) count: U64,
}

const _: () = assert!(size_of::<DeviceInfo>() == 16);
const _: () = assert!(size_of::<InterruptInfo>() == 16);
const _: () = assert!(size_of::<InterruptSet>() == 20);
const _: () = assert!(size_of::<DmaMap>() == 32 && offset_of!(DmaMap, address) == 16);
const _: () = assert!(size_of::<DmaUnmap>() == 24 && offset_of!(DmaUnmap, address) == 8);
const _: () = assert!(size_of::<RegionAccess>() == 16 && offset_of!(RegionAccess, region) == 8);
const _: () = assert!(size_of::<DmaAccess>() == 16);
