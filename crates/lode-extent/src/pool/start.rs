//! Starting: probing, then formatting, or loading the tables and replaying the journal.
//!
//! ```text
//! Probing ──► (create) ────────────────────────► Publishing ──► Ready
//!        └──► (import) Tables ──► Replaying ──────────┘
//! ```
//! Nothing is written before the superblock that ends a recovery, so that a crash on the way
//! finds the same pool again.

mod replay;
mod tables;

use lode_units::Random;
use uuid::{Builder, Uuid};

use crate::core::Core;
use crate::error::{ExtentError, IoFailure};
use crate::format::block::BLOCK_BYTES_U64;
use crate::format::geometry::{DEVICE_BLOCKS_MIN, Geometry, SPACE_ROOTS};
use crate::format::object::{FIRST_OBJECT_ID, Root};
use crate::format::superblock::{DeviceRecord, SpaceEntry, Superblock};
use crate::io::DeviceSpec;
use crate::io_queue::{InFlight, Purpose};
use crate::layout::PoolLayout;
use crate::pool::probe::{Found, assemble, check_count, places};
use crate::pool::publish::PublishReason;
use crate::pool::start::replay::Replay;
use crate::pool::{Pool, device_index};
use crate::space::Space;
use crate::types::Ticket;
use crate::volume::{ExistingPool, PoolSpec, PoolState};

/// How far a start has come.
#[derive(Debug)]
pub(crate) enum Start {
    /// Superblocks are being read.
    Probing {
        aim: Aim,
        found: Vec<Found>,
        outstanding: usize,
    },
    /// The volumes and the remembered requests are being read, up to these keys.
    Tables { objects: u64, requests: u64 },
    /// The journal is being read and applied.
    Replaying(Replay),
    /// The superblock of this start is being written.
    Publishing,
}

/// What to do with what probing finds.
#[derive(Debug)]
pub(crate) enum Aim {
    /// Make a pool.
    Create(Box<NewPool>),
    /// Open one.
    Import,
}

/// A pool to be made.
#[derive(Debug)]
pub(crate) struct NewPool {
    superblock: Superblock,
    geometry: Geometry,
    existing: ExistingPool,
}

impl Start {
    pub(super) fn create(
        spec: PoolSpec,
        devices: &[DeviceSpec],
        random: &mut dyn Random,
        unix_seconds: u64,
    ) -> Result<Self, ExtentError> {
        check_count(devices)?;
        super::volumes::check_name(&spec.name)?;
        let mut sizes = Vec::with_capacity(devices.len());
        for (position, device) in devices.iter().enumerate() {
            let blocks = device.size_bytes / BLOCK_BYTES_U64;
            if blocks < DEVICE_BLOCKS_MIN {
                return Err(device_size(devices, position));
            }
            sizes.push((new_uuid(random), blocks));
        }
        let geometry = Geometry::new(&sizes).ok_or_else(|| device_size(devices, 0))?;
        let superblock = first_superblock(spec.name, &geometry, new_uuid(random), unix_seconds);
        let aim = Aim::Create(Box::new(NewPool {
            superblock,
            geometry,
            existing: spec.existing,
        }));
        Ok(Self::probing(aim, devices))
    }

    pub(super) fn import(devices: &[DeviceSpec]) -> Result<Self, ExtentError> {
        check_count(devices)?;
        Ok(Self::probing(Aim::Import, devices))
    }

    fn probing(aim: Aim, devices: &[DeviceSpec]) -> Self {
        let mut found = Vec::new();
        found.resize_with(devices.len(), Found::default);
        Self::Probing {
            aim,
            found,
            outstanding: 0,
        }
    }
}

impl Pool {
    /// Asks for the blocks where superblocks may be.
    pub(super) fn probe(&mut self, mut start: Start) {
        if let Start::Probing { outstanding, .. } = &mut start {
            for (position, device) in self.devices.iter().enumerate() {
                for place in places(device) {
                    self.io.read(position, place, 2, Purpose::Probe);
                    *outstanding += 1;
                }
            }
        }
        self.start = Some(start);
    }

    pub(super) fn probed(&mut self, io: InFlight, outcome: Result<&[u8], IoFailure>) {
        let Some(Start::Probing {
            found, outstanding, ..
        }) = self.start.as_mut()
        else {
            return;
        };
        found[io.device].take(io.block, outcome);
        *outstanding -= 1;
    }

    /// Goes on with the start, as far as it can without an outcome.
    pub(super) fn drive_start(&mut self) {
        match self.start.take() {
            Some(Start::Probing {
                aim,
                found,
                outstanding: 0,
            }) => {
                if let Err(error) = self.judge(aim, &found) {
                    self.fail(error);
                }
            }
            Some(Start::Tables { objects, requests }) => self.load_tables(objects, requests),
            Some(Start::Replaying(replay)) => self.replay(replay),
            other => self.start = other,
        }
    }

    /// Every place has been read.
    fn judge(&mut self, aim: Aim, found: &[Found]) -> Result<(), ExtentError> {
        match aim {
            Aim::Create(new) => self.format(*new, found),
            Aim::Import => {
                let (superblock, geometry, order) = assemble(&self.devices, found)?;
                self.counters.superblock_copies_failed +=
                    found.iter().map(Found::unread).sum::<u64>();
                let incarnation = superblock.incarnation + 1;
                self.know(Core::new(superblock, geometry, incarnation), order);
                self.load_tables(0, 0);
                Ok(())
            }
        }
    }

    fn format(&mut self, new: NewPool, found: &[Found]) -> Result<(), ExtentError> {
        for (position, found) in found.iter().enumerate() {
            let device = device_index(position);
            if let Some(source) = found.failure() {
                return Err(ExtentError::Io {
                    operation: crate::error::IoOperation::Read,
                    device,
                    block: 0,
                    source,
                });
            }
            if found.holds_data() && new.existing == ExistingPool::Refuse {
                return Err(ExtentError::HoldsPool { device });
            }
        }
        let superblock = new.superblock;
        let core = Core::new(superblock.clone(), new.geometry, superblock.incarnation);
        self.know(core, (0..self.devices.len()).collect());
        self.start = Some(Start::Publishing);
        self.begin_publish(superblock, PublishReason::Format);
        Ok(())
    }

    /// The pool is found or made, on devices that the caller has at these positions.
    fn know(&mut self, core: Core, caller_position: Vec<usize>) {
        let devices = core.geometry.devices.iter().zip(&caller_position);
        self.layout = PoolLayout::new(
            devices.map(|(device, position)| (device_index(*position), device.base, device.blocks)),
        );
        self.caller_position = caller_position;
        self.core = Some(Box::new(core));
    }

    /// The superblock of this start is durable.
    pub(super) fn started(&mut self) {
        self.start = None;
        self.state = PoolState::Ready;
    }
}

fn first_superblock(
    name: String,
    geometry: &Geometry,
    pool_uuid: Uuid,
    created_unix_seconds: u64,
) -> Superblock {
    Superblock {
        pool_uuid,
        name,
        device_index: 0,
        devices: geometry
            .devices
            .iter()
            .map(|device| DeviceRecord {
                uuid: device.uuid,
                blocks: device.blocks,
            })
            .collect(),
        features_compat: 0,
        features_incompat: 0,
        created_unix_seconds,
        sequence: 0,
        incarnation: 1,
        generation: 0,
        is_clean: false,
        journal_tail: 0,
        journal_resume: Some(0),
        ticket: Ticket::default(),
        next_object: FIRST_OBJECT_ID,
        next_request: 0,
        epoch: 1,
        free_blocks: Space::initially_free(geometry),
        node_blocks: 0,
        objects: Root::default(),
        requests: Root::default(),
        space: [SpaceEntry::default(); SPACE_ROOTS],
    }
}

fn new_uuid(random: &mut dyn Random) -> Uuid {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&random.next_u64().to_le_bytes());
    bytes[8..].copy_from_slice(&random.next_u64().to_le_bytes());
    Builder::from_random_bytes(bytes).into_uuid()
}

fn device_size(devices: &[DeviceSpec], position: usize) -> ExtentError {
    ExtentError::DeviceSize {
        device: device_index(position),
        size_bytes: devices[position].size_bytes,
    }
}
