//! A pool that the first version of the format wrote is read for good.
//!
//! `tests/golden/v1.image` is a 16 MiB device, sparse: for each stretch of bytes that are not
//! zero its offset (8 bytes), its length (4 bytes) and the bytes, numbers little-endian.

use std::collections::BTreeMap;

use lode_extent::{
    DeviceSpec, ExistingPool, ExtentError, LoadCursor, LogicalBlock, LookupError, MetadataOp,
    PieceKind, Pool, PoolBlock, PoolSpec, PoolState, RequestId, SyncAttribute, VolumeId,
    VolumeLimits, VolumeSpec,
};
use lode_units::{BlockSize, SeededRandom};
use smallvec::SmallVec;

const DEVICE: DeviceSpec = DeviceSpec {
    size_bytes: 16 << 20,
    has_volatile_cache: false,
    supports_fua: false,
};

/// A device of 4 KiB blocks.
#[derive(Default)]
struct Device(BTreeMap<u64, Vec<u8>>);

impl Device {
    fn read(&self, block: u64) -> Vec<u8> {
        self.0.get(&block).cloned().unwrap_or(vec![0; 4096])
    }

    fn settle(&mut self, pool: &mut Pool) {
        while let Some(io) = pool.next_io() {
            match io.op {
                MetadataOp::Read { block, count } => {
                    let blocks = block..block + u64::from(count);
                    let data: Vec<u8> = blocks.flat_map(|block| self.read(block)).collect();
                    pool.complete_io(io.id, Ok(Some(&data)));
                }
                MetadataOp::Write { block, data, .. } => {
                    for (block, data) in (block..).zip(data.chunks(4096)) {
                        self.0.insert(block, data.to_vec());
                    }
                    pool.complete_io(io.id, Ok(None));
                }
                MetadataOp::Flush => panic!("the device has no cache"),
            }
        }
    }

    fn write_unit(&mut self, pool: &Pool, block: PoolBlock, stamp: u8) {
        let (_, block) = pool.locate(block);
        let mut data = vec![0; 4096];
        data[..16].fill(stamp);
        self.0.insert(block, data);
    }

    fn map(&mut self, pool: &mut Pool, volume: VolumeId, first: u64, count: u32, stamp: u8) {
        let allocation = pool
            .allocate(volume, LogicalBlock::new(first), count)
            .expect("space");
        for run in allocation.runs() {
            for offset in 0..u64::from(run.count) {
                self.write_unit(pool, PoolBlock::new(run.physical.get() + offset), stamp);
            }
        }
        pool.record(allocation).expect("room in the journal");
    }

    fn stamp(&mut self, pool: &mut Pool, volume: VolumeId, unit: u64) -> Option<u8> {
        loop {
            let mut pieces = SmallVec::new();
            match pool.lookup(volume, LogicalBlock::new(unit), 1, &mut pieces) {
                Ok(()) if pieces[0].kind == PieceKind::Hole => return None,
                Ok(()) => return Some(self.read(pool.locate(pieces[0].physical).1)[0]),
                Err(LookupError::NotResident(missing)) => pool.load(missing),
                Err(error) => panic!("{error}"),
            }
            self.settle(pool);
        }
    }

    fn decode(mut image: &[u8]) -> Self {
        let mut bytes = vec![0; 16 << 20];
        while let Some((head, rest)) = image.split_at_checked(12) {
            let offset = u64::from_le_bytes(head[..8].try_into().expect("8 bytes"));
            let length = u32::from_le_bytes(head[8..].try_into().expect("4 bytes"));
            let (stretch, rest) = rest.split_at(length as usize);
            let offset = usize::try_from(offset).expect("within the device");
            bytes[offset..offset + stretch.len()].copy_from_slice(stretch);
            image = rest;
        }
        let blocks = bytes.chunks(4096).enumerate();
        let used = blocks.filter(|(_, block)| block.iter().any(|&byte| byte != 0));
        Self(
            used.map(|(index, block)| (index as u64, block.to_vec()))
                .collect(),
        )
    }

    fn encode(&self) -> Vec<u8> {
        let mut image = Vec::new();
        for (block, data) in &self.0 {
            // Stretches of 64 bytes with something in them.
            for (index, part) in (0_u64..).zip(data.chunks(64)) {
                if part.iter().any(|&byte| byte != 0) {
                    image.extend_from_slice(&(block * 4096 + index * 64).to_le_bytes());
                    image.extend_from_slice(&64_u32.to_le_bytes());
                    image.extend_from_slice(part);
                }
            }
        }
        image
    }
}

fn spec(name: &str, size_bytes: u64, block_size: BlockSize) -> VolumeSpec {
    VolumeSpec {
        name: name.to_owned(),
        size_bytes,
        block_size,
        sync: SyncAttribute::Data,
        limits: VolumeLimits::default(),
        created_unix_seconds: 1_000_000,
    }
}

fn request() -> RequestId {
    RequestId::new("golden").expect("a valid id")
}

#[test]
#[ignore = "writes the image of the present version anew"]
fn write_the_image() {
    let mut device = Device::default();
    let mut random = SeededRandom::new(1);
    let pool_spec = PoolSpec {
        name: "golden".to_owned(),
        existing: ExistingPool::Refuse,
    };
    let mut pool = Pool::create(pool_spec, &[DEVICE], &mut random, 999).expect("a valid pool");
    device.settle(&mut pool);
    let first = spec("first", 8 << 20, BlockSize::B4096);
    let (first, _) = pool.create_volume(&first, Some(&request())).expect("new");
    let second = spec("zweites", 1_000_448, BlockSize::B512);
    let (second, _) = pool.create_volume(&second, None).expect("new");
    let gone = spec("gone", 1 << 20, BlockSize::B4096);
    let (gone, _) = pool.create_volume(&gone, None).expect("new");
    for index in 0..250 {
        device.map(&mut pool, first, index * 2, 1, 1);
    }
    device.map(&mut pool, second, 0, 10, 2);
    device.map(&mut pool, gone, 0, 100, 3);
    pool.checkpoint();
    device.settle(&mut pool);
    device.map(&mut pool, first, 1, 4, 4);
    let unmapped = pool.unmap(second, LogicalBlock::new(5), 2);
    assert_eq!(unmapped.expect("mapped").done, 2);
    pool.delete_volume(gone, None).expect("it exists");
    pool.commit();
    device.settle(&mut pool);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/v1.image");
    std::fs::write(path, device.encode()).expect("the tests' folder is writable");
}

#[test]
fn the_image_of_version_1_is_imported() {
    let mut device = Device::decode(include_bytes!("golden/v1.image"));
    let mut pool = Pool::import(&[DEVICE]);
    device.settle(&mut pool);
    assert_eq!(*pool.state(), PoolState::Ready);
    assert_eq!((pool.name(), pool.created_unix_seconds()), ("golden", 999));
    let names: Vec<_> = pool
        .volumes(None, 10)
        .into_iter()
        .map(|volume| (volume.name, volume.size_bytes, volume.block_size.bytes()))
        .collect();
    let expected = [
        ("first".to_owned(), 8 << 20, 4096),
        ("zweites".to_owned(), 1_000_448, 512),
    ];
    assert_eq!(names, expected);
    let first = pool.find_volume("first").expect("it is listed").id;
    let second = pool.find_volume("zweites").expect("it is listed").id;
    let stamps = |pool: &mut Pool, device: &mut Device, volume, units: std::ops::Range<u64>| {
        let each = units.map(|unit| device.stamp(pool, volume, unit));
        each.collect::<Vec<_>>()
    };
    let found = stamps(&mut pool, &mut device, first, 0..8);
    let (one, four) = (Some(1), Some(4));
    assert_eq!(found, [one, four, four, four, four, None, one, None]);
    assert_eq!(device.stamp(&mut pool, first, 498), one);
    let found = stamps(&mut pool, &mut device, second, 4..8);
    assert_eq!(found, [Some(2), None, None, Some(2)]);
    let again = spec("first", 8 << 20, BlockSize::B4096);
    let retried = pool.create_volume(&again, Some(&request()));
    assert_eq!(retried.map(|(volume, _)| volume), Ok(first));
    let other = spec("other", 8 << 20, BlockSize::B4096);
    let reused = pool.create_volume(&other, Some(&request()));
    assert_eq!(reused, Err(ExtentError::RequestIdReused));
    let mut cursor = LoadCursor::default();
    while !pool.load_all(&mut cursor) {
        device.settle(&mut pool);
    }
    let report = pool.check().expect("a sound pool");
    assert_eq!((report.unseen, report.damaged), (0, 0));
    assert_eq!(report.data_blocks, 250 + 2 + 8);
}
