//! A pool on model disks, pumped by hand.

use lode_units::{BlockSize, Random, SeededRandom};
use smallvec::SmallVec;

use crate::check::LoadCursor;
use crate::error::{ExtentError, LookupError};
use crate::io::{DeviceSpec, MetadataIo, MetadataOp};
use crate::piece::Piece;
use crate::pool::Pool;
use crate::sim::disk::{BLOCK, Disk};
use crate::types::{LogicalBlock, PoolBlock, Ticket, VolumeId};
use crate::volume::{ExistingPool, PoolSpec, PoolState, SyncAttribute, VolumeLimits, VolumeSpec};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) struct World {
    pub(crate) disks: Vec<Disk>,
    pub(crate) pool: Pool,
    pub(crate) pending: Vec<MetadataIo>,
    pub(crate) random: SeededRandom,
}

pub(crate) fn device(size_mib: u64, has_volatile_cache: bool, supports_fua: bool) -> DeviceSpec {
    DeviceSpec {
        size_bytes: size_mib * MIB,
        has_volatile_cache,
        supports_fua,
    }
}

pub(crate) fn volume_spec(name: &str, size_bytes: u64) -> VolumeSpec {
    VolumeSpec {
        name: name.to_owned(),
        size_bytes,
        block_size: BlockSize::B4096,
        sync: SyncAttribute::None,
        limits: VolumeLimits::default(),
        created_unix_seconds: 7,
    }
}

pub(crate) fn pool_spec(existing: ExistingPool) -> PoolSpec {
    PoolSpec {
        name: "tank".to_owned(),
        existing,
    }
}

impl World {
    /// A pool being made on new disks.
    pub(crate) fn create(devices: &[DeviceSpec], seed: u64) -> Self {
        let mut random = SeededRandom::new(seed);
        let spec = pool_spec(ExistingPool::Refuse);
        let pool = Pool::create(spec, devices, &mut random, 1000).expect("a valid pool");
        Self {
            disks: devices.iter().copied().map(Disk::new).collect(),
            pool,
            pending: Vec::new(),
            random,
        }
    }

    /// A pool that is ready.
    pub(crate) fn ready(devices: &[DeviceSpec]) -> Self {
        let mut world = Self::create(devices, 1);
        world.settle();
        assert_eq!(*world.pool.state(), PoolState::Ready);
        world
    }

    /// Opens the pool on the same disks again; what was under way is lost.
    pub(crate) fn import(&mut self) {
        let specs: Vec<_> = self.disks.iter().map(|disk| disk.spec).collect();
        self.pending.clear();
        self.pool = Pool::import(&specs);
    }

    /// Opens it and checks all of it.
    pub(crate) fn reimport(&mut self) {
        self.import();
        self.settle();
        assert_eq!(*self.pool.state(), PoolState::Ready);
        self.check_all();
    }

    /// Does all I/O that is asked for, in order.
    pub(crate) fn settle(&mut self) {
        loop {
            while let Some(io) = self.pool.next_io() {
                self.pending.push(io);
            }
            if self.pending.is_empty() {
                return;
            }
            self.complete(0);
        }
    }

    /// Does I/O until the pool has started, or failed to.
    pub(crate) fn start(&mut self) {
        while *self.pool.state() == PoolState::Starting {
            while let Some(io) = self.pool.next_io() {
                self.pending.push(io);
            }
            if *self.pool.state() == PoolState::Starting {
                self.complete(0);
            }
        }
    }

    /// Does one of the pending operations.
    pub(crate) fn complete(&mut self, index: usize) {
        let io = self.pending.remove(index);
        let outcome = self.disks[io.device.index()].run(&io.op);
        match outcome {
            Ok(data) => self.pool.complete_io(io.id, Ok(data.as_deref())),
            Err(failure) => self.pool.complete_io(io.id, Err(failure)),
        }
    }

    /// The power fails.
    pub(crate) fn crash(&mut self) {
        for io in std::mem::take(&mut self.pending) {
            if let MetadataOp::Write { block, data, .. } = io.op {
                let disk = &mut self.disks[io.device.index()];
                for (block, data) in (block..).zip(data.chunks(BLOCK)) {
                    let data = data.try_into().expect("whole blocks");
                    disk.settle(block, data, &mut self.random);
                }
            }
        }
        for disk in &mut self.disks {
            disk.crash(&mut self.random);
        }
    }

    /// Brings everything into memory and checks it.
    pub(crate) fn check_all(&mut self) {
        let mut cursor = LoadCursor::default();
        while !self.pool.load_all(&mut cursor) {
            self.settle();
        }
        let report = self.pool.check().expect("the pool is sound");
        assert_eq!(report.unseen, 0);
        let usage = self.pool.usage();
        let parts = [
            usage.allocated_bytes,
            usage.metadata_bytes,
            usage.reserved_bytes,
            usage.free_bytes,
            usage.pending_bytes,
        ];
        assert_eq!(parts.iter().sum::<u64>(), usage.capacity_bytes);
        assert_eq!(usage.allocated_bytes, report.data_blocks * 4096);
    }

    pub(crate) fn commit(&mut self) {
        self.pool.commit();
        self.settle();
        assert_eq!(self.pool.durable(), self.pool.recorded());
    }

    pub(crate) fn checkpoint(&mut self) {
        let before = self.pool.counters().checkpoints;
        self.pool.checkpoint();
        self.settle();
        assert_eq!(self.pool.counters().checkpoints, before + 1);
    }

    /// Tries something until all that it needs is in memory.
    pub(crate) fn resident<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Pool) -> Result<T, ExtentError>,
    ) -> Result<T, ExtentError> {
        for _ in 0..1000 {
            match attempt(&mut self.pool) {
                Err(ExtentError::NotResident(missing)) => self.pool.load(missing),
                Err(ExtentError::JournalFull) => {}
                other => return other,
            }
            self.settle();
        }
        panic!("it is never resident");
    }

    /// Maps new blocks, each filled with `stamp`.
    pub(crate) fn write(
        &mut self,
        volume: VolumeId,
        first: u64,
        count: u32,
        stamp: u64,
    ) -> Result<Ticket, ExtentError> {
        let allocation =
            self.resident(|pool| pool.allocate(volume, LogicalBlock::new(first), count))?;
        for run in allocation.runs() {
            for offset in 0..u64::from(run.count) {
                self.write_data(PoolBlock::new(run.physical.get() + offset), stamp);
            }
        }
        match self.pool.record(allocation) {
            Ok(ticket) => Ok(ticket),
            Err((allocation, error)) => {
                self.pool.cancel(allocation);
                Err(error)
            }
        }
    }

    pub(crate) fn write_data(&mut self, block: PoolBlock, stamp: u64) {
        let (device, offset) = self.pool.locate(block);
        self.disks[device.index()]
            .write(offset, &stamped(stamp), false)
            .expect("a sound disk");
    }

    pub(crate) fn pieces(
        &mut self,
        volume: VolumeId,
        first: u64,
        count: u32,
    ) -> Result<SmallVec<[Piece; 4]>, LookupError> {
        for _ in 0..1000 {
            let mut pieces = SmallVec::new();
            match self
                .pool
                .lookup(volume, LogicalBlock::new(first), count, &mut pieces)
            {
                Err(LookupError::NotResident(missing)) => self.pool.load(missing),
                Err(error) => return Err(error),
                Ok(()) => return Ok(pieces),
            }
            self.settle();
        }
        panic!("it is never resident");
    }

    /// The stamp of each unit; 0 for a hole.
    pub(crate) fn stamps(&mut self, volume: VolumeId, first: u64, count: u32) -> Vec<u64> {
        let pieces = self.pieces(volume, first, count).expect("a sound map");
        let mut stamps = Vec::new();
        for piece in pieces {
            for offset in 0..u64::from(piece.count) {
                stamps.push(match piece.kind {
                    crate::piece::PieceKind::Written => {
                        self.stamp_of(PoolBlock::new(piece.physical.get() + offset))
                    }
                    _ => 0,
                });
            }
        }
        stamps
    }

    fn stamp_of(&self, block: PoolBlock) -> u64 {
        let (device, offset) = self.pool.locate(block);
        let data = self.disks[device.index()].read(offset);
        let stamp = u64::from_le_bytes(data[..8].try_into().expect("8 bytes"));
        if data == stamped(stamp) {
            stamp
        } else {
            u64::MAX
        }
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }
}

/// A block full of a number.
pub(crate) fn stamped(stamp: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block[..8].copy_from_slice(&stamp.to_le_bytes());
    let mut filled = 8;
    while filled < BLOCK {
        block.copy_within(..filled, filled);
        filled *= 2;
    }
    block
}
