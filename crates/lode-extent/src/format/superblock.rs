//! The superblock: everything that an import starts from.

use std::mem::{offset_of, size_of};

use lode_units::limits::{NAME_LENGTH_MAX_BYTES, POOL_DEVICES_MAX};
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::block::{
    Block, BlockFault, BlockKind, HEADER_BYTES, Header, empty_block, open, seal,
};
use crate::format::geometry::{SPACE_ROOTS, SUPERBLOCK_SLOTS};
use crate::format::object::{RawRoot, Root};
use crate::types::Ticket;

/// A volume has limits, or had some.
pub(crate) const FEATURE_VOLUME_LIMITS: u64 = 1;
/// Incompatible features that this program knows.
pub(crate) const FEATURES_INCOMPAT_KNOWN: u64 = FEATURE_VOLUME_LIMITS;
/// Trees that the superblock has room for.
const ROOTS: usize = 8;
const FLAG_CLEAN: u32 = 1;
/// What the superblock counts stays below this: half of the keys, and no sum overflows.
const COUNTER_END: u64 = 1 << 47;

/// A device as every superblock of its pool lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceRecord {
    pub(crate) uuid: Uuid,
    pub(crate) blocks: u64,
}

/// An entry of the space map's index: where a block of the map is, and what it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpaceEntry {
    /// Low half of the generation that wrote the block.
    pub(crate) generation: u32,
    /// Bitmap: free blocks of the group. Index block: groups below it with a free block, at most
    /// 65535.
    pub(crate) free: u16,
    /// The block was written; before that everything below it is free.
    pub(crate) is_written: bool,
    /// Which of the pair holds the block: 0 or 1.
    pub(crate) slot: u8,
}

/// What a superblock says. One state of the pool has a copy on each device at each end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) pool_uuid: Uuid,
    pub(crate) name: String,
    /// The device of this copy, in pool order.
    pub(crate) device_index: u16,
    pub(crate) devices: Vec<DeviceRecord>,
    pub(crate) features_compat: u64,
    pub(crate) features_incompat: u64,
    pub(crate) created_unix_seconds: u64,
    /// Superblock writes since the pool was made: the highest wins, its parity names the slot.
    pub(crate) sequence: u64,
    /// Starts of the pool since it was made.
    pub(crate) incarnation: u64,
    /// The checkpoint that the roots belong to.
    pub(crate) generation: u64,
    pub(crate) is_clean: bool,
    /// The first journal block that the checkpoint does not hold.
    pub(crate) journal_tail: u64,
    /// The first journal block that this incarnation may have written: from there on no other's
    /// counts. `None` in a pool that was last opened before this was recorded.
    pub(crate) journal_resume: Option<u64>,
    /// The last change that the checkpoint holds.
    pub(crate) ticket: Ticket,
    pub(crate) next_object: u64,
    pub(crate) next_request: u64,
    /// The epoch that new extents are born in.
    pub(crate) epoch: u32,
    /// Free blocks of the pool.
    pub(crate) free_blocks: u64,
    /// Blocks taken by tree nodes.
    pub(crate) node_blocks: u64,
    pub(crate) objects: Root,
    pub(crate) requests: Root,
    pub(crate) space: [SpaceEntry; SPACE_ROOTS],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawDevice {
    uuid: [u8; 16],
    blocks: U64,
    reserved: [u8; 8],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawSpaceEntry {
    generation: U32,
    free: U16,
    flags: U16,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSuperblock {
    pool_uuid: [u8; 16],
    device_index: U16,
    device_count: U16,
    flags: U32,
    features_compat: U64,
    features_incompat: U64,
    created_unix_seconds: U64,
    sequence: U64,
    incarnation: U64,
    journal_tail: U64,
    ticket: U64,
    next_object: U64,
    next_request: U64,
    epoch: U32,
    reserved_word: U32,
    free_blocks: U64,
    node_blocks: U64,
    roots: [RawRoot; ROOTS],
    space: [RawSpaceEntry; SPACE_ROOTS],
    devices: [RawDevice; POOL_DEVICES_MAX],
    name_length: U16,
    name: [u8; NAME_LENGTH_MAX_BYTES],
    reserved: [u8; 7],
    /// The number plus one; 0 for none.
    journal_resume: U64,
}

const _: () = assert!(size_of::<RawDevice>() == 32);
const _: () = assert!(size_of::<RawSpaceEntry>() == 8);
const _: () = assert!(offset_of!(RawSuperblock, features_compat) == 24);
const _: () = assert!(offset_of!(RawSuperblock, roots) == 120);
const _: () = assert!(offset_of!(RawSuperblock, journal_resume) == 1600);
const _: () = assert!(offset_of!(RawSuperblock, space) == 312);
const _: () = assert!(offset_of!(RawSuperblock, devices) == 824);
const _: () = assert!(offset_of!(RawSuperblock, name_length) == 1336);
const _: () = assert!(size_of::<RawSuperblock>() == 1608);

/// The pool's uuid folded to the 64 bits that every block of it carries.
pub(crate) fn fold(uuid: Uuid) -> u64 {
    let (high, low) = uuid.as_u64_pair();
    high ^ low
}

/// The blocks of a device that hold the copies of superblock `sequence`.
pub(crate) fn copies(device_blocks: u64, sequence: u64) -> [u64; 2] {
    let slot = sequence % SUPERBLOCK_SLOTS;
    [slot, device_blocks - SUPERBLOCK_SLOTS + slot]
}

impl RawSpaceEntry {
    pub(crate) fn new(entry: SpaceEntry) -> Self {
        Self {
            generation: U32::new(entry.generation),
            free: U16::new(entry.free),
            flags: U16::new(u16::from(entry.is_written) | (u16::from(entry.slot) << 1)),
        }
    }

    pub(crate) fn entry(&self) -> Result<SpaceEntry, BlockFault> {
        let flags = self.flags.get();
        if flags > 3 {
            return Err(BlockFault::Contents);
        }
        Ok(SpaceEntry {
            generation: self.generation.get(),
            free: self.free.get(),
            is_written: flags & 1 != 0,
            slot: u8::from(flags & 2 != 0),
        })
    }
}

impl Superblock {
    /// The copy for the device's block `address`.
    pub(crate) fn encode(&self, address: u64) -> Box<Block> {
        let mut raw = RawSuperblock::new_zeroed();
        raw.pool_uuid = self.pool_uuid.into_bytes();
        raw.device_index = U16::new(self.device_index);
        raw.device_count = U16::new(u16::try_from(self.devices.len()).expect("at most 16"));
        raw.flags = U32::new(if self.is_clean { FLAG_CLEAN } else { 0 });
        raw.features_compat = U64::new(self.features_compat);
        raw.features_incompat = U64::new(self.features_incompat);
        raw.created_unix_seconds = U64::new(self.created_unix_seconds);
        raw.sequence = U64::new(self.sequence);
        raw.incarnation = U64::new(self.incarnation);
        raw.journal_tail = U64::new(self.journal_tail);
        raw.journal_resume = U64::new(self.journal_resume.map_or(0, |number| number + 1));
        raw.ticket = U64::new(self.ticket.get());
        raw.next_object = U64::new(self.next_object);
        raw.next_request = U64::new(self.next_request);
        raw.epoch = U32::new(self.epoch);
        raw.free_blocks = U64::new(self.free_blocks);
        raw.node_blocks = U64::new(self.node_blocks);
        raw.roots[0] = RawRoot::new(self.objects);
        raw.roots[1] = RawRoot::new(self.requests);
        for (raw, entry) in raw.space.iter_mut().zip(&self.space) {
            *raw = RawSpaceEntry::new(*entry);
        }
        for (raw, device) in raw.devices.iter_mut().zip(&self.devices) {
            raw.uuid = device.uuid.into_bytes();
            raw.blocks = U64::new(device.blocks);
        }
        raw.name_length = U16::new(u16::try_from(self.name.len()).expect("a checked name"));
        raw.name[..self.name.len()].copy_from_slice(self.name.as_bytes());

        let mut block = empty_block();
        let end = HEADER_BYTES + size_of::<RawSuperblock>();
        block[HEADER_BYTES..end].copy_from_slice(raw.as_bytes());
        let header = Header {
            kind: BlockKind::Superblock,
            address,
            generation: self.generation,
            pool: fold(self.pool_uuid),
            owner: 0,
            count: 0,
            level: 0,
        };
        seal(&mut block, &header);
        block
    }

    /// The superblock in `block`, which was read at the device's block `address`.
    pub(crate) fn decode(block: &Block, address: u64) -> Result<Self, BlockFault> {
        let header = open(block)?;
        let (raw, rest) = RawSuperblock::ref_from_prefix(&block[HEADER_BYTES..])
            .expect("a block holds a superblock");
        let pool_uuid = Uuid::from_bytes(raw.pool_uuid);
        if header.kind != BlockKind::Superblock
            || header.address != address
            || header.pool != fold(pool_uuid)
        {
            return Err(BlockFault::Foreign);
        }
        let devices = raw
            .devices
            .get(..usize::from(raw.device_count.get()))
            .ok_or(BlockFault::Contents)?;
        if raw.device_index.get() >= raw.device_count.get() || raw.flags.get() & !FLAG_CLEAN != 0 {
            return Err(BlockFault::Contents);
        }
        let is_plain = raw.roots[2..].iter().all(RawRoot::is_zero)
            && raw.reserved == [0; 7]
            && raw.reserved_word == U32::ZERO
            && rest.iter().all(|&byte| byte == 0);
        if !is_plain {
            return Err(BlockFault::Contents);
        }
        let counters = [
            raw.sequence,
            raw.incarnation,
            raw.journal_tail,
            raw.journal_resume,
            raw.ticket,
            raw.next_object,
            raw.next_request,
        ];
        if counters.iter().any(|counter| counter.get() >= COUNTER_END) {
            return Err(BlockFault::Contents);
        }
        let mut space = [SpaceEntry::default(); SPACE_ROOTS];
        for (entry, raw) in space.iter_mut().zip(&raw.space) {
            *entry = raw.entry()?;
        }
        Ok(Self {
            pool_uuid,
            name: decode_name(raw)?,
            device_index: raw.device_index.get(),
            devices: devices.iter().map(decode_device).collect(),
            features_compat: raw.features_compat.get(),
            features_incompat: raw.features_incompat.get(),
            created_unix_seconds: raw.created_unix_seconds.get(),
            sequence: raw.sequence.get(),
            incarnation: raw.incarnation.get(),
            generation: header.generation,
            is_clean: raw.flags.get() & FLAG_CLEAN != 0,
            journal_tail: raw.journal_tail.get(),
            journal_resume: raw.journal_resume.get().checked_sub(1),
            ticket: Ticket::new(raw.ticket.get()),
            next_object: raw.next_object.get(),
            next_request: raw.next_request.get(),
            epoch: raw.epoch.get(),
            free_blocks: raw.free_blocks.get(),
            node_blocks: raw.node_blocks.get(),
            objects: raw.roots[0].root().ok_or(BlockFault::Contents)?,
            requests: raw.roots[1].root().ok_or(BlockFault::Contents)?,
            space,
        })
    }
}

fn decode_device(raw: &RawDevice) -> DeviceRecord {
    DeviceRecord {
        uuid: Uuid::from_bytes(raw.uuid),
        blocks: raw.blocks.get(),
    }
}

fn decode_name(raw: &RawSuperblock) -> Result<String, BlockFault> {
    raw.name
        .get(..usize::from(raw.name_length.get()))
        .and_then(|name| std::str::from_utf8(name).ok())
        .map(str::to_owned)
        .ok_or(BlockFault::Contents)
}
