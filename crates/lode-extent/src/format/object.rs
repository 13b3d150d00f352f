//! The record of an object in the object table.

use std::mem::{offset_of, size_of};

use lode_units::BlockSize;
use lode_units::limits::VOLUME_SIZE_MAX_BYTES;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::block::BlockFault;
use crate::tree::{HEIGHT_MAX, KEY_END};
use crate::types::PoolBlock;
use crate::volume::{SyncAttribute, VolumeLimits};

/// Bytes of an object's record, without its key.
pub(crate) const OBJECT_BYTES: usize = 394;
/// Object ids below this one name the pool's own tables.
pub(crate) const FIRST_OBJECT_ID: u64 = 16;

const KIND_VOLUME: u8 = 1;
const FLAG_DELETING: u8 = 1;
const NAME_BYTES: usize = 255;

/// Where a tree begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) block: PoolBlock,
    pub(crate) generation: u64,
    /// Levels of the tree; 0 is an empty tree.
    pub(crate) height: u8,
}

/// A volume as the object table holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeRecord {
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    pub(crate) block_size: BlockSize,
    pub(crate) sync: SyncAttribute,
    pub(crate) limits: VolumeLimits,
    pub(crate) created_unix_seconds: u64,
    pub(crate) birth_epoch: u32,
    /// Being deleted: its space is given back in the background.
    pub(crate) is_deleting: bool,
    /// Units from here on were cut off by a shrink and are given back in the background; 0: none.
    pub(crate) is_trimming: bool,
    pub(crate) allocated_blocks: u64,
    pub(crate) map: Root,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawRoot {
    block: U64,
    generation: U64,
    height: u8,
    reserved: [u8; 7],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawObject {
    kind: u8,
    flags: u8,
    block_shift: u8,
    sync: u8,
    name_length: U16,
    birth_epoch: U32,
    size_bytes: U64,
    disk_size_bytes: U64,
    created_unix_seconds: U64,
    allocated_blocks: U64,
    map: RawRoot,
    dead_list: RawRoot,
    origin: U64,
    newest_snapshot_epoch: U32,
    is_trimming: u8,
    reserved_byte: u8,
    burst_ms: U32,
    iops_max: U64,
    bandwidth_max_bytes: U64,
    reserved: [u8; 15],
    name: [u8; NAME_BYTES],
}

const _: () = assert!(size_of::<RawRoot>() == 24);
const _: () = assert!(size_of::<RawObject>() == OBJECT_BYTES);
const _: () = assert!(offset_of!(RawObject, is_trimming) == 102);
const _: () = assert!(offset_of!(RawObject, burst_ms) == 104);
const _: () = assert!(offset_of!(RawObject, bandwidth_max_bytes) == 116);
const _: () = assert!(offset_of!(RawObject, name) == 139);

impl RawRoot {
    pub(crate) fn new(root: Root) -> Self {
        Self {
            block: U64::new(root.block.get()),
            generation: U64::new(root.generation),
            height: root.height,
            reserved: [0; 7],
        }
    }

    /// The root; `None` where a tree would be higher than trees are.
    pub(crate) fn root(&self) -> Option<Root> {
        let is_sane = self.height <= HEIGHT_MAX && self.reserved == [0; 7];
        is_sane.then(|| Root {
            block: PoolBlock::new(self.block.get()),
            generation: self.generation.get(),
            height: self.height,
        })
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.as_bytes().iter().all(|&byte| byte == 0)
    }
}

impl VolumeRecord {
    /// The record's bytes.
    pub(crate) fn encode(&self) -> [u8; OBJECT_BYTES] {
        let mut name = [0; NAME_BYTES];
        name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        let raw = RawObject {
            kind: KIND_VOLUME,
            flags: if self.is_deleting { FLAG_DELETING } else { 0 },
            block_shift: u8::try_from(self.block_size.shift()).expect("a shift below 17"),
            sync: sync_raw(self.sync),
            name_length: U16::new(u16::try_from(self.name.len()).expect("a checked name")),
            birth_epoch: U32::new(self.birth_epoch),
            size_bytes: U64::new(self.size_bytes),
            disk_size_bytes: U64::new(self.size_bytes),
            created_unix_seconds: U64::new(self.created_unix_seconds),
            allocated_blocks: U64::new(self.allocated_blocks),
            map: RawRoot::new(self.map),
            dead_list: RawRoot::new(Root::default()),
            origin: U64::ZERO,
            newest_snapshot_epoch: U32::ZERO,
            is_trimming: u8::from(self.is_trimming),
            reserved_byte: 0,
            burst_ms: U32::new(self.limits.burst_ms),
            iops_max: U64::new(self.limits.iops_max),
            bandwidth_max_bytes: U64::new(self.limits.bandwidth_max_bytes),
            reserved: [0; 15],
            name,
        };
        let mut bytes = [0; OBJECT_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// The record in `bytes`.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BlockFault> {
        let raw = RawObject::ref_from_bytes(bytes).map_err(|_size| BlockFault::Contents)?;
        let name = raw
            .name
            .get(..usize::from(raw.name_length.get()))
            .and_then(|name| std::str::from_utf8(name).ok())
            .ok_or(BlockFault::Contents)?;
        let block_size = BlockSize::new(1_u64.checked_shl(raw.block_shift.into()).unwrap_or(0))
            .map_err(|_size| BlockFault::Contents)?;
        if raw.kind != KIND_VOLUME || raw.flags & !FLAG_DELETING != 0 || raw.is_trimming > 1 {
            return Err(BlockFault::Contents);
        }
        // Fields of features that this version does not have.
        let is_sane = (1..=VOLUME_SIZE_MAX_BYTES).contains(&raw.size_bytes.get())
            && (block_size == BlockSize::B512 || block_size == BlockSize::B4096)
            && raw.allocated_blocks.get() < KEY_END
            && !name.is_empty();
        let is_plain = raw.dead_list.is_zero()
            && raw.origin == U64::ZERO
            && raw.newest_snapshot_epoch == U32::ZERO
            && raw.reserved_byte == 0
            && raw.reserved == [0; 15];
        let limits = VolumeLimits {
            iops_max: raw.iops_max.get(),
            bandwidth_max_bytes: raw.bandwidth_max_bytes.get(),
            burst_ms: raw.burst_ms.get(),
        };
        if !is_plain || !is_sane || !limits.is_valid() {
            return Err(BlockFault::Contents);
        }
        Ok(Self {
            name: name.to_owned(),
            size_bytes: raw.size_bytes.get(),
            block_size,
            sync: sync_from(raw.sync).ok_or(BlockFault::Contents)?,
            limits,
            created_unix_seconds: raw.created_unix_seconds.get(),
            birth_epoch: raw.birth_epoch.get(),
            is_deleting: raw.flags & FLAG_DELETING != 0,
            is_trimming: raw.is_trimming == 1,
            allocated_blocks: raw.allocated_blocks.get(),
            map: raw.map.root().ok_or(BlockFault::Contents)?,
        })
    }
}

/// The number of a sync attribute.
pub(crate) fn sync_raw(sync: SyncAttribute) -> u8 {
    match sync {
        SyncAttribute::None => 0,
        SyncAttribute::Data => 1,
        SyncAttribute::Full => 2,
    }
}

/// The sync attribute of a number.
pub(crate) fn sync_from(raw: u8) -> Option<SyncAttribute> {
    Some(match raw {
        0 => SyncAttribute::None,
        1 => SyncAttribute::Data,
        2 => SyncAttribute::Full,
        _ => return None,
    })
}
