//! Looking up and locating, which every I/O does, take no memory.

#![expect(unsafe_code, reason = "a global allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;

use lode_extent::{
    DeviceSpec, ExistingPool, LogicalBlock, MetadataOp, Piece, Pool, PoolSpec, SyncAttribute,
    VolumeLimits, VolumeSpec,
};
use lode_units::{BlockSize, SeededRandom};
use smallvec::SmallVec;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts what the thread asks for.
struct Counting;

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn settle(blocks: &mut BTreeMap<u64, Vec<u8>>, pool: &mut Pool) {
    while let Some(io) = pool.next_io() {
        match io.op {
            MetadataOp::Read { block, count } => {
                let mut data = Vec::new();
                for block in block..block + u64::from(count) {
                    data.extend(blocks.get(&block).cloned().unwrap_or(vec![0; 4096]));
                }
                pool.complete_io(io.id, Ok(Some(&data)));
            }
            MetadataOp::Write { block, data, .. } => {
                for (block, data) in (block..).zip(data.chunks(4096)) {
                    blocks.insert(block, data.to_vec());
                }
                pool.complete_io(io.id, Ok(None));
            }
            MetadataOp::Flush => pool.complete_io(io.id, Ok(None)),
        }
    }
}

#[test]
fn a_lookup_takes_no_memory() {
    let device = DeviceSpec {
        size_bytes: 64 << 20,
        has_volatile_cache: true,
        supports_fua: true,
    };
    let mut blocks = BTreeMap::new();
    let mut random = SeededRandom::new(1);
    let spec = PoolSpec {
        name: "tank".to_owned(),
        existing: ExistingPool::Refuse,
    };
    let mut pool = Pool::create(spec, &[device], &mut random, 0).expect("a valid pool");
    settle(&mut blocks, &mut pool);
    let spec = VolumeSpec {
        name: "vol".to_owned(),
        size_bytes: 32 << 20,
        block_size: BlockSize::B4096,
        sync: SyncAttribute::None,
        limits: VolumeLimits::default(),
        created_unix_seconds: 0,
    };
    let (volume, _) = pool.create_volume(&spec, None).expect("new");
    for index in 0..2000 {
        let first = LogicalBlock::new(index * 4);
        let allocation = pool.allocate(volume, first, 1).expect("space");
        pool.record(allocation).expect("room in the journal");
        settle(&mut blocks, &mut pool);
    }
    let mut pieces: SmallVec<[Piece; 4]> = SmallVec::new();
    let (before, mut seen) = (ALLOCATIONS.get(), 0);
    for index in 0..2000 {
        pieces.clear();
        let first = LogicalBlock::new(index * 4);
        pool.lookup(volume, first, 8, &mut pieces)
            .expect("a sound map");
        seen += u64::from(pool.locate(pieces[0].physical).0.get() == 0);
        seen += u64::from(pool.written_extent(volume, first).is_some());
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert_eq!(seen, 4000);
    // The counter counts: a longer answer spills.
    pool.lookup(volume, LogicalBlock::new(0), 80, &mut pieces)
        .expect("a sound map");
    assert!(ALLOCATIONS.get() > before);
}
