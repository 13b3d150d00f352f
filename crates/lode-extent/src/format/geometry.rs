//! Where the fixed parts of a pool lie: superblocks, journal, allocation groups.

use lode_units::limits::POOL_DEVICES_MAX;
use uuid::Uuid;

use crate::format::block::{BLOCK_BYTES_U64, PAYLOAD_BYTES};
use crate::types::PoolBlock;

/// Blocks of an allocation group: one bit each in the payload of one bitmap block.
pub(crate) const GROUP_BLOCKS: u32 = 32_256;
/// Entries of one index block of the space map.
pub(crate) const INDEX_ENTRIES: u32 = 504;
/// Roots of the space map in the superblock.
pub(crate) const SPACE_ROOTS: usize = 64;
/// Height of the blocks that the superblock's roots point at; bitmaps have height 0.
pub(crate) const SPACE_TOP: u8 = 2;
/// A rest of a device smaller than this many blocks makes no group.
const GROUP_BLOCKS_MIN: u64 = 16;
/// Superblock slots at either end of a device.
pub(crate) const SUPERBLOCK_SLOTS: u64 = 2;
/// The smallest device of a pool.
pub(crate) const DEVICE_BLOCKS_MIN: u64 = (16 << 20) / BLOCK_BYTES_U64;
/// The most groups of a pool.
pub(crate) const GROUPS_MAX: u64 = 64 * 504 * 504;
const JOURNAL_BLOCKS_MIN: u64 = (1 << 20) / BLOCK_BYTES_U64;
const JOURNAL_BLOCKS_MAX: u64 = (64 << 20) / BLOCK_BYTES_U64;

const _: () = assert!(PAYLOAD_BYTES * 8 == 32_256);
const _: () = assert!(PAYLOAD_BYTES / 8 == 504);
const _: () = assert!(JOURNAL_BLOCKS_MIN < DEVICE_BLOCKS_MIN / 8);
const _: () = assert!(POOL_DEVICES_MAX <= 16);

/// One device of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolDevice {
    pub(crate) uuid: Uuid,
    /// Its size in blocks.
    pub(crate) blocks: u64,
    /// Its first block that belongs to an allocation group.
    pub(crate) group_start: u64,
    /// Its groups.
    pub(crate) groups: u32,
    /// The pool's number of its first group.
    pub(crate) first_group: u32,
    /// The pool's number of its first block.
    pub(crate) base: u64,
}

/// The fixed layout of a pool, derived from the sizes of its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) devices: Vec<PoolDevice>,
    /// First block of the journal ring, on the first device.
    pub(crate) journal_start: u64,
    /// Blocks of the journal ring.
    pub(crate) journal_blocks: u64,
}

impl Geometry {
    /// The layout over devices of these identities and sizes in blocks, in pool order; `None`
    /// where a size does not fit the format.
    pub(crate) fn new(sizes: &[(Uuid, u64)]) -> Option<Self> {
        let total: u64 = sizes
            .iter()
            .try_fold(0_u64, |sum, &(_, blocks)| sum.checked_add(blocks))?;
        let first = sizes.first()?.1;
        let journal_blocks = (total / 64)
            .clamp(JOURNAL_BLOCKS_MIN, JOURNAL_BLOCKS_MAX)
            .min(first / 8);
        let mut devices = Vec::with_capacity(sizes.len());
        let (mut base, mut first_group) = (0, 0_u64);
        for (position, &(uuid, blocks)) in sizes.iter().enumerate() {
            if blocks < DEVICE_BLOCKS_MIN {
                return None;
            }
            let journal = if position == 0 { journal_blocks } else { 0 };
            let group_start = SUPERBLOCK_SLOTS + journal;
            let groups = groups_in(blocks - SUPERBLOCK_SLOTS - group_start);
            devices.push(PoolDevice {
                uuid,
                blocks,
                group_start,
                groups: u32::try_from(groups).ok()?,
                first_group: u32::try_from(first_group).ok()?,
                base,
            });
            base += blocks;
            first_group += groups;
        }
        (first_group <= GROUPS_MAX).then_some(Self {
            devices,
            journal_start: SUPERBLOCK_SLOTS,
            journal_blocks,
        })
    }

    /// Groups of the pool.
    pub(crate) fn groups(&self) -> u32 {
        self.devices
            .last()
            .map_or(0, |last| last.first_group + last.groups)
    }

    /// Blocks of the pool, fixed parts included.
    pub(crate) fn blocks(&self) -> u64 {
        self.devices.iter().map(|device| device.blocks).sum()
    }

    /// The device (in pool order) and its block that hold a block of the pool.
    pub(crate) fn locate(&self, block: PoolBlock) -> Option<(usize, u64)> {
        self.devices.iter().enumerate().find_map(|(index, device)| {
            let offset = block.get().checked_sub(device.base)?;
            (offset < device.blocks).then_some((index, offset))
        })
    }

    /// The first block of a group.
    pub(crate) fn group_start(&self, group: u32) -> PoolBlock {
        let device = self.device_of_group(group);
        let within = u64::from(group - device.first_group) * u64::from(GROUP_BLOCKS);
        PoolBlock::new(device.base + device.group_start + within)
    }

    /// Blocks of a group.
    pub(crate) fn group_blocks(&self, group: u32) -> u32 {
        let device = self.device_of_group(group);
        let within = u64::from(group - device.first_group) * u64::from(GROUP_BLOCKS);
        let left = device.blocks - SUPERBLOCK_SLOTS - device.group_start - within;
        u32::try_from(left.min(u64::from(GROUP_BLOCKS))).expect("at most a group")
    }

    /// The group of a block and its position there; `None` for a block outside of all groups.
    pub(crate) fn group_of(&self, block: PoolBlock) -> Option<(u32, u32)> {
        let (device, offset) = self.locate(block)?;
        let device = &self.devices[device];
        let within = offset.checked_sub(device.group_start)?;
        let group = u32::try_from(within / u64::from(GROUP_BLOCKS)).ok()?;
        let position = u32::try_from(within % u64::from(GROUP_BLOCKS)).ok()?;
        let group = (group < device.groups).then_some(device.first_group + group)?;
        (position < self.group_blocks(group)).then_some((group, position))
    }

    /// The block of the journal ring that holds the journal block `sequence`.
    pub(crate) fn journal_block(&self, sequence: u64) -> u64 {
        self.journal_start + sequence % self.journal_blocks
    }

    fn device_of_group(&self, group: u32) -> &PoolDevice {
        self.devices
            .iter()
            .rev()
            .find(|device| device.first_group <= group)
            .expect("the first device's first group is 0")
    }
}

/// Blocks at the start of a group that hold the space map itself: a pair for its bitmap, and a
/// pair for each index block whose range starts here.
pub(crate) fn group_fixed_blocks(group: u32) -> u32 {
    let mut fixed = 2;
    if group.is_multiple_of(INDEX_ENTRIES) {
        fixed += 2;
    }
    if group.is_multiple_of(INDEX_ENTRIES * INDEX_ENTRIES) {
        fixed += 2;
    }
    fixed
}

fn groups_in(blocks: u64) -> u64 {
    let whole = blocks / u64::from(GROUP_BLOCKS);
    let rest = blocks % u64::from(GROUP_BLOCKS);
    whole + u64::from(rest >= GROUP_BLOCKS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(sizes: &[u64]) -> Geometry {
        let sizes: Vec<_> = sizes.iter().map(|&blocks| (Uuid::nil(), blocks)).collect();
        Geometry::new(&sizes).expect("a valid layout")
    }

    #[test]
    fn every_block_of_a_group_names_its_group() {
        let geometry = geometry(&[4096, 100_000, 40_000]);
        for group in 0..geometry.groups() {
            let start = geometry.group_start(group);
            let last = geometry.group_blocks(group) - 1;
            assert_eq!(geometry.group_of(start), Some((group, 0)));
            assert_eq!(
                geometry.group_of(start.plus(u64::from(last))),
                Some((group, last))
            );
        }
    }

    #[test]
    fn superblocks_and_journal_lie_in_no_group() {
        let geometry = geometry(&[4096, 5000]);
        let outside = [0, 1, 2, 257, 4094, 4095, 4096, 4097, 9094, 9095];
        for block in outside {
            assert_eq!(geometry.group_of(PoolBlock::new(block)), None, "{block}");
        }
        assert_eq!(geometry.journal_blocks, 256);
        assert_eq!(geometry.group_of(PoolBlock::new(258)), Some((0, 0)));
        assert_eq!(geometry.locate(PoolBlock::new(9096)), None);
    }

    #[test]
    fn a_device_too_small_makes_no_pool() {
        assert_eq!(Geometry::new(&[(Uuid::nil(), DEVICE_BLOCKS_MIN - 1)]), None);
        assert_eq!(Geometry::new(&[]), None);
    }
}
