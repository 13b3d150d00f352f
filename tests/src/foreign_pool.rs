//! A pool whose metadata somebody else changed: any bytes must be refused or served, never panic
//! and never keep the daemon busy for ever.
//!
//! The changes start from a real pool and may be sealed with a correct checksum, so that they get
//! past the first guard.

mod disk;

use std::sync::OnceLock;

use lode_extent::{
    DeviceSpec, ExistingPool, ExtentError, LogicalBlock, LookupError, Pool, PoolSpec, PoolState,
    SyncAttribute, VolumeId, VolumeLimits, VolumeSpec,
};
use lode_units::{BlockSize, SeededRandom};
use smallvec::SmallVec;

use disk::Disk;

const DEVICE: DeviceSpec = DeviceSpec {
    size_bytes: 16 << 20,
    has_volatile_cache: false,
    supports_fua: false,
};
/// More operations than any of these small pools needs.
const OPERATIONS_MAX: u32 = 200_000;
/// More loads than the blocks of the device.
const LOADS_MAX: u32 = 5000;
const VOLUME_BLOCKS: u32 = 256;

/// One changed byte.
#[derive(Clone, Copy, Debug)]
struct Edit {
    block: usize,
    offset: usize,
    value: u8,
    is_sealed: bool,
}

/// Bytes of an [`Edit`] in the input.
const EDIT_BYTES: usize = 5;

impl Edit {
    fn decode(bytes: &[u8; EDIT_BYTES]) -> Self {
        let [block_low, block_high, offset_low, offset_high, value] = *bytes;
        Self {
            block: usize::from(u16::from_le_bytes([block_low, block_high])),
            offset: usize::from(u16::from_le_bytes([offset_low, offset_high & 0x0f])),
            value,
            is_sealed: offset_high & 0x80 != 0,
        }
    }
}

/// What became of a changed pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was refused at the import.
    Refused,
    /// It was served; work on it succeeded or was refused piece by piece.
    Served,
}

/// Imports a pool with the changes that `input` describes and works on it.
///
/// # Panics
/// When the pool does, or does not come to an end: that is what is looked for.
#[must_use]
pub fn import_changed(input: &[u8]) -> Outcome {
    static BASE: OnceLock<Disk> = OnceLock::new();
    let mut disk = BASE.get_or_init(make).clone();
    let (edits, _rest) = input.as_chunks::<EDIT_BYTES>();
    for edit in edits.iter().map(Edit::decode) {
        disk.change(edit.block, edit.offset, edit.value, edit.is_sealed);
    }
    let mut pool = Pool::import(&[DEVICE]);
    settle(&mut pool, &mut disk);
    if *pool.state() != PoolState::Ready {
        return Outcome::Refused;
    }
    work(&mut pool, &mut disk);
    Outcome::Served
}

/// A pool with three volumes, some of it checkpointed and some in the journal.
fn make() -> Disk {
    let mut disk = Disk::default();
    let spec = PoolSpec {
        name: "base".to_owned(),
        existing: ExistingPool::Refuse,
    };
    let mut random = SeededRandom::new(7);
    let mut pool = Pool::create(spec, &[DEVICE], &mut random, 1).expect("a sound pool");
    settle(&mut pool, &mut disk);
    let mut volumes = Vec::new();
    for name in ["one", "two", "three"] {
        volumes.push(create(&mut pool, name).expect("there is space"));
    }
    for volume in &volumes {
        for first in (0..VOLUME_BLOCKS).step_by(7) {
            write(&mut pool, &mut disk, *volume, first, 3).expect("there is space");
        }
    }
    pool.checkpoint();
    settle(&mut pool, &mut disk);
    for volume in &volumes {
        write(&mut pool, &mut disk, *volume, 100, 9).expect("there is space");
    }
    pool.commit();
    settle(&mut pool, &mut disk);
    assert_eq!(*pool.state(), PoolState::Ready);
    disk
}

/// Does what a daemon would do with a pool; each step may be refused.
fn work(pool: &mut Pool, disk: &mut Disk) {
    for info in pool.volumes(None, 100) {
        read(pool, disk, info.id);
        let _refused = write(pool, disk, info.id, 50, 4);
        let _refused = retry(pool, disk, |pool| {
            pool.unmap(info.id, LogicalBlock::new(90), 30)
                .map(|_done| ())
        });
    }
    let _refused = create(pool, "new");
    if let Some(info) = pool.volumes(None, 1).first() {
        let _refused = retry(pool, disk, |pool| {
            pool.delete_volume(info.id, None).map(|_ticket| ())
        });
    }
    pool.commit();
    settle(pool, disk);
    pool.checkpoint();
    settle(pool, disk);
    pool.export();
    settle(pool, disk);
}

fn create(pool: &mut Pool, name: &str) -> Result<VolumeId, ExtentError> {
    let spec = VolumeSpec {
        name: name.to_owned(),
        size_bytes: u64::from(VOLUME_BLOCKS) * 4096,
        block_size: BlockSize::new(4096).expect("a block size"),
        sync: SyncAttribute::None,
        limits: VolumeLimits::default(),
        created_unix_seconds: 1,
    };
    pool.create_volume(&spec, None)
        .map(|(volume, _ticket)| volume)
}

fn write(
    pool: &mut Pool,
    disk: &mut Disk,
    volume: VolumeId,
    first: u32,
    count: u32,
) -> Result<(), ExtentError> {
    let first = LogicalBlock::new(u64::from(first));
    retry(pool, disk, |pool| {
        let allocation = pool.allocate(volume, first, count)?;
        pool.record(allocation)
            .map(|_ticket| ())
            .map_err(|(allocation, error)| {
                pool.cancel(allocation);
                error
            })
    })
}

fn read(pool: &mut Pool, disk: &mut Disk, volume: VolumeId) {
    for _ in 0..LOADS_MAX {
        let mut pieces = SmallVec::new();
        match pool.lookup(volume, LogicalBlock::new(0), VOLUME_BLOCKS, &mut pieces) {
            Err(LookupError::NotResident(missing)) => {
                pool.load(missing);
                settle(pool, disk);
            }
            Ok(()) | Err(_) => return,
        }
    }
    panic!("a lookup asks for metadata for ever");
}

/// Repeats `step` while it asks for metadata or for room in the journal.
fn retry(
    pool: &mut Pool,
    disk: &mut Disk,
    mut step: impl FnMut(&mut Pool) -> Result<(), ExtentError>,
) -> Result<(), ExtentError> {
    for _ in 0..LOADS_MAX {
        match step(pool) {
            Err(ExtentError::NotResident(missing)) => pool.load(missing),
            Err(ExtentError::JournalFull) => pool.commit(),
            outcome => return outcome,
        }
        settle(pool, disk);
    }
    panic!("a change waits for ever");
}

/// Does the pool's I/O until it wants no more.
fn settle(pool: &mut Pool, disk: &mut Disk) {
    for _ in 0..OPERATIONS_MAX {
        let Some(io) = pool.next_io() else {
            return;
        };
        let bytes = disk.run(io.op);
        pool.complete_io(io.id, Ok(bytes.as_deref()));
    }
    panic!("the pool's I/O has no end");
}
