//! Finding the superblocks of the devices, and judging them.

use lode_units::limits::POOL_DEVICES_MAX;
use uuid::Uuid;

use crate::error::{ExtentError, IoFailure};
use crate::format::block::{BLOCK_BYTES, BLOCK_BYTES_U64, BlockFault, FORMAT_VERSION, as_block};
use crate::format::geometry::{Geometry, SUPERBLOCK_SLOTS};
use crate::format::superblock::{FEATURES_INCOMPAT_KNOWN, Superblock};
use crate::io::DeviceSpec;
use crate::pool::device_index;

/// What the places of a device's superblocks hold.
#[derive(Debug, Default)]
pub(crate) struct Found {
    newest: Option<Superblock>,
    /// A version that this program does not know.
    other_version: Option<u16>,
    /// Blocks that are superblocks or nearly so, but damaged.
    damaged: bool,
    /// Something else than zeros where superblocks would be: a file system, a partition table.
    foreign: bool,
    failure: Option<IoFailure>,
    /// Pairs of places that could not be read.
    unread: u64,
}

/// The first blocks of the pairs of places where a device of this size has superblocks.
pub(super) fn places(device: &DeviceSpec) -> impl Iterator<Item = u64> {
    let blocks = device.size_bytes / BLOCK_BYTES_U64;
    let first = (blocks >= SUPERBLOCK_SLOTS).then_some(0);
    let last = (blocks >= 2 * SUPERBLOCK_SLOTS).then(|| blocks - SUPERBLOCK_SLOTS);
    first.into_iter().chain(last)
}

impl Found {
    /// Takes in the outcome of reading a pair of places from block `first` on.
    pub(super) fn take(&mut self, first: u64, outcome: Result<&[u8], IoFailure>) {
        match outcome {
            Err(failure) => {
                self.failure = Some(failure);
                self.unread += 1;
            }
            Ok(bytes) => {
                for (address, bytes) in (first..).zip(bytes.chunks(BLOCK_BYTES)) {
                    self.judge(address, bytes);
                }
            }
        }
    }

    /// Whether there is a pool, sound or not, or anything else that somebody may miss.
    pub(super) fn holds_data(&self) -> bool {
        self.newest.is_some() || self.other_version.is_some() || self.damaged || self.foreign
    }

    pub(super) fn failure(&self) -> Option<IoFailure> {
        self.failure
    }

    /// How many pairs of places could not be read.
    pub(super) const fn unread(&self) -> u64 {
        self.unread
    }

    fn judge(&mut self, address: u64, bytes: &[u8]) {
        match as_block(bytes).and_then(|block| Superblock::decode(block, address)) {
            Ok(superblock) => {
                let is_newer = self
                    .newest
                    .as_ref()
                    .is_none_or(|newest| superblock.sequence > newest.sequence);
                if is_newer {
                    self.newest = Some(superblock);
                }
            }
            Err(BlockFault::Magic) => self.foreign |= bytes.iter().any(|byte| *byte != 0),
            Err(BlockFault::Version { found }) => self.other_version = Some(found),
            Err(_damage) => self.damaged = true,
        }
    }

    /// The device's newest superblock, or what the device is instead.
    fn superblock(&self, position: usize) -> Result<&Superblock, ExtentError> {
        let device = device_index(position);
        if let Some(newest) = &self.newest {
            return Ok(newest);
        }
        if let Some(found) = self.other_version {
            return Err(ExtentError::UnsupportedVersion {
                device,
                found,
                supported: FORMAT_VERSION,
            });
        }
        if self.damaged || self.failure.is_some() {
            return Err(ExtentError::SuperblocksDamaged { device });
        }
        Err(ExtentError::NotAPool { device })
    }
}

/// The pool on the devices: its newest superblock, its layout, and the caller's position of each
/// device in pool order.
pub(super) fn assemble(
    devices: &[DeviceSpec],
    found: &[Found],
) -> Result<(Superblock, Geometry, Vec<usize>), ExtentError> {
    let mut newest: Option<&Superblock> = None;
    for (position, found) in found.iter().enumerate() {
        let superblock = found.superblock(position)?;
        if newest.is_none_or(|newest| superblock.sequence > newest.sequence) {
            newest = Some(superblock);
        }
    }
    let newest = newest.ok_or(ExtentError::DeviceCount { found: 0 })?;
    let unknown = newest.features_incompat & !FEATURES_INCOMPAT_KNOWN;
    if unknown != 0 {
        return Err(ExtentError::UnsupportedFeatures { features: unknown });
    }
    let order = order_devices(newest, devices, found)?;
    let sizes: Vec<(Uuid, u64)> = newest
        .devices
        .iter()
        .map(|device| (device.uuid, device.blocks))
        .collect();
    let damaged = ExtentError::MetadataDamaged {
        device: device_index(order[0]),
        block: newest.sequence % SUPERBLOCK_SLOTS,
    };
    let geometry = Geometry::new(&sizes).ok_or(damaged.clone())?;
    let initially_free = crate::space::Space::initially_free(&geometry);
    if newest.free_blocks > initially_free || newest.node_blocks > initially_free {
        return Err(damaged);
    }
    Ok((newest.clone(), geometry, order))
}

fn order_devices(
    newest: &Superblock,
    devices: &[DeviceSpec],
    found: &[Found],
) -> Result<Vec<usize>, ExtentError> {
    let mut order = vec![None; newest.devices.len()];
    for (position, found) in found.iter().enumerate() {
        let device = device_index(position);
        let superblock = found.superblock(position)?;
        let place = order.get_mut(usize::from(superblock.device_index));
        let free_place = place.filter(|place| place.is_none());
        let Some(place) = free_place.filter(|_| superblock.pool_uuid == newest.pool_uuid) else {
            return Err(ExtentError::ForeignDevice { device });
        };
        *place = Some(position);
        let expected = newest.devices[usize::from(superblock.device_index)].blocks;
        let found_bytes = devices[position].size_bytes;
        if found_bytes / BLOCK_BYTES_U64 < expected {
            return Err(ExtentError::DeviceTruncated {
                device,
                expected_bytes: expected.saturating_mul(BLOCK_BYTES_U64),
                found_bytes,
            });
        }
    }
    (0..)
        .zip(order)
        .map(|(index, position)| {
            position.ok_or_else(|| ExtentError::DeviceMissing {
                index,
                uuid: newest.devices[usize::from(index)].uuid,
            })
        })
        .collect()
}

/// Whether a pool can span this many devices.
pub(super) fn check_count(devices: &[DeviceSpec]) -> Result<(), ExtentError> {
    if (1..=POOL_DEVICES_MAX).contains(&devices.len()) {
        Ok(())
    } else {
        Err(ExtentError::DeviceCount {
            found: devices.len(),
        })
    }
}
