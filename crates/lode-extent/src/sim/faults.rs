//! Devices that fail: what is lost is said, what is not goes on.

use crate::error::{ExtentError, IoFailure, IoOperation, LookupError};
use crate::io::MetadataOp;
use crate::pool::Pool;
use crate::sim::disk::Disk;
use crate::sim::world::{MIB, World, device, pool_spec, volume_spec};
use crate::types::{LogicalBlock, VolumeId};
use crate::volume::{ExistingPool, PoolState};
use lode_units::{DeviceIndex, SeededRandom};

/// A pool with two volumes of many extents each, closed cleanly.
fn two_volumes() -> (World, [VolumeId; 2]) {
    let mut world = World::ready(&[device(16, false, false)]);
    let volumes = ["a", "b"].map(|name| {
        let spec = volume_spec(name, 2000 * 4096);
        world.pool.create_volume(&spec, None).expect("new").0
    });
    for index in 0..500 {
        for volume in volumes {
            world.write(volume, index * 2, 1, index + 1).expect("space");
        }
    }
    world.pool.export();
    world.settle();
    assert_eq!(*world.pool.state(), PoolState::Exported);
    (world, volumes)
}

/// The same disks, with no pool open.
fn copy_of(world: &World) -> World {
    World {
        disks: world.disks.clone(),
        pool: Pool::import(&[]),
        pending: Vec::new(),
        random: SeededRandom::new(1),
    }
}

fn failure(world: &World) -> ExtentError {
    match world.pool.state() {
        PoolState::Failed(error) => error.clone(),
        state => panic!("the pool is {state:?}"),
    }
}

/// The blocks that a volume's map has on the device, as lookups of all of it read them.
fn map_blocks(world: &mut World, volume: VolumeId) -> Vec<u64> {
    world.import();
    world.start();
    let (mut blocks, mut first) = (Vec::new(), 0);
    while first < 2000 {
        let mut pieces = smallvec::SmallVec::new();
        let found = world
            .pool
            .lookup(volume, LogicalBlock::new(first), 1, &mut pieces);
        match found {
            Ok(()) => first += 1,
            Err(LookupError::NotResident(missing)) => {
                world.pool.load(missing);
                let io = world.pool.next_io().expect("a read");
                if let MetadataOp::Read { block, .. } = io.op {
                    blocks.push(block);
                }
                world.pending.push(io);
                world.complete(0);
            }
            Err(error) => panic!("{error}"),
        }
    }
    blocks
}

#[test]
fn an_unreadable_map_damages_its_volume_and_no_other() {
    let (mut world, [first, second]) = two_volumes();
    let blocks = map_blocks(&mut world, first);
    assert!(blocks.len() > 2, "a root and leaves");
    for block in blocks {
        let mut world = copy_of(&world);
        world.disks[0].unreadable.push(block);
        world.import();
        world.settle();
        let outcomes: Vec<_> = (0..500)
            .map(|index| world.pieces(first, index * 2, 1).map(|_pieces| ()))
            .collect();
        assert!(outcomes.iter().any(|outcome| matches!(
            outcome,
            Err(LookupError::Damaged { volume, .. }) if *volume == first
        )));
        assert!(world.pool.volume(first).expect("it is listed").is_damaged);
        for index in 0..500 {
            assert_eq!(world.stamps(second, index * 2, 1), [index + 1]);
        }
        world.write(second, 1, 1, 77).expect("others are written");
        world.commit();
        assert_eq!(world.pool.counters().nodes_damaged, 1);
    }
}

#[test]
fn a_damaged_object_table_costs_the_volumes_in_that_part_only() {
    let mut world = World::ready(&[device(16, false, false)]);
    for index in 0..25 {
        let spec = volume_spec(&format!("v{index:02}"), MIB);
        let (volume, _) = world.pool.create_volume(&spec, None).expect("new");
        world.write(volume, 0, 1, index + 1).expect("space");
    }
    world.checkpoint();
    // Changes of volumes of every leaf in the journal's tail.
    let ids: Vec<_> = world
        .pool
        .volumes(None, 100)
        .into_iter()
        .map(|volume| volume.id)
        .collect();
    for &id in &ids {
        world.write(id, 3, 1, 60).expect("space");
    }
    world.commit();
    world.import();
    let mut leaves = Vec::new();
    while leaves.len() < 4 {
        while let Some(io) = world.pool.next_io() {
            if let MetadataOp::Read { block, count: 1 } = io.op {
                leaves.push(block);
            }
            world.pending.push(io);
        }
        world.complete(0);
    }
    // A root, and three leaves of at most ten volumes.
    for &leaf in &leaves[1..] {
        let mut world = copy_of(&world);
        world.disks[0].corrupt(leaf, 99, 8);
        world.import();
        world.settle();
        assert_eq!(*world.pool.state(), PoolState::Ready);
        let volumes = world.pool.volumes(None, 100);
        assert!((15..25).contains(&volumes.len()), "{}", volumes.len());
        for volume in volumes {
            let stamp: u64 = volume.name[1..].parse().expect("a number");
            assert_eq!(world.stamps(volume.id, 0, 4), [stamp + 1, 0, 0, 60]);
        }
        let device = DeviceIndex::new(0);
        let block = leaf;
        assert_eq!(
            world.pool.create_volume(&volume_spec("new", MIB), None),
            Err(ExtentError::MetadataDamaged { device, block })
        );
        let first = world.pool.volumes(None, 1)[0].id;
        world
            .write(first, 7, 1, 50)
            .expect("what is left is written");
        world.checkpoint();
        world.import();
        world.settle();
        assert_eq!(world.stamps(first, 7, 1), [50]);
    }
}

#[test]
fn every_corrupted_metadata_block_is_an_error_or_has_a_copy() {
    let (world, volumes) = two_volumes();
    let blocks = world.disks[0].metadata();
    assert!(blocks.len() > 12, "blocks of every kind");
    for (index, block) in (0_usize..).zip(blocks) {
        let mut world = copy_of(&world);
        world.disks[0].corrupt(block, index * 37 % 4096, 0x40);
        world.import();
        world.settle();
        if *world.pool.state() != PoolState::Ready {
            failure(&world);
            continue;
        }
        for volume in volumes {
            for unit in [0, 400, 998] {
                // A damaged map is an error, data is not ours to judge.
                if let Ok(pieces) = world.pieces(volume, unit, 1) {
                    assert_eq!(pieces.len(), 1);
                }
            }
            // Whatever is still written to must not panic either.
            if world.write(volume, 1501, 3, 1).is_ok() {
                world.commit();
            }
        }
        world.pool.checkpoint();
        world.settle();
        world.pool.check().expect("what is in memory is sound");
    }
}

#[test]
fn one_bad_superblock_copy_is_survived_and_counted() {
    let mut world = World::ready(&[device(16, false, false)]);
    world.disks[0].unwritable.extend([0, 1]);
    let spec = volume_spec("a", MIB);
    world.pool.create_volume(&spec, None).expect("new");
    world.checkpoint();
    assert!(world.pool.counters().superblock_copies_failed > 0);
    world.disks[0].unreadable.extend([0, 1]);
    world.import();
    world.settle();
    let expected = ExtentError::SuperblocksDamaged {
        device: DeviceIndex::new(0),
    };
    assert_ne!(*world.pool.state(), PoolState::Failed(expected));
}

#[test]
fn a_failed_journal_write_makes_the_pool_read_only() {
    let mut world = World::ready(&[device(16, false, false)]);
    let spec = volume_spec("a", MIB);
    let (volume, _) = world.pool.create_volume(&spec, None).expect("new");
    world.write(volume, 0, 1, 5).expect("space");
    world.commit();
    let durable = world.pool.durable();
    world.disks[0].unwritable.extend(2..258);
    world.write(volume, 1, 1, 6).expect("space");
    world.pool.commit();
    world.settle();
    let error = failure(&world);
    assert!(matches!(
        error,
        ExtentError::Io {
            operation: IoOperation::Write,
            source: IoFailure::Media,
            ..
        }
    ));
    assert_eq!(world.pool.durable(), durable, "nothing more became durable");
    let refused = world.pool.create_volume(&volume_spec("b", MIB), None);
    assert_eq!(refused, Err(ExtentError::ReadOnly));
    assert_eq!(world.stamps(volume, 0, 1), [5], "reads go on");
    world.disks[0].unwritable.clear();
    world.reimport();
    assert_eq!(world.stamps(volume, 0, 2), [5, 0]);
}

/// A life whose `nth` operation fails; says whether it was ever reached.
fn live_with_failure(nth: u64, failure: IoFailure) -> bool {
    let mut world = World::create(&[device(16, true, false)], 3);
    let (mut count, mut is_reached) = (0, false);
    let mut settle = |world: &mut World| {
        loop {
            while let Some(io) = world.pool.next_io() {
                world.pending.push(io);
            }
            if world.pending.is_empty() {
                return;
            }
            count += 1;
            if count == nth {
                is_reached = true;
                let io = world.pending.remove(0);
                world.pool.complete_io(io.id, Err(failure));
            } else {
                world.complete(0);
            }
        }
    };
    settle(&mut world);
    let spec = volume_spec("a", MIB);
    let mut promised = None;
    if let Ok((volume, _)) = world.pool.create_volume(&spec, None) {
        for index in 0..4 {
            let allocated = world.pool.allocate(volume, LogicalBlock::new(index), 1);
            if let Ok(allocation) = allocated
                && let Err((allocation, _)) = world.pool.record(allocation)
            {
                world.pool.cancel(allocation);
            }
            world.pool.commit();
            settle(&mut world);
        }
        world.pool.checkpoint();
        settle(&mut world);
        world.pool.export();
        settle(&mut world);
        promised = Some(world.pool.durable());
    }
    world.pool.check().expect("the state is sound");
    world.import();
    settle(&mut world);
    // Where the failure hit the import, the next one finds everything again.
    world.import();
    world.settle();
    if let Some(promised) = promised {
        assert_eq!(*world.pool.state(), PoolState::Ready);
        assert!(world.pool.durable() >= promised, "a promise is kept");
    }
    world.check_all();
    is_reached
}

#[test]
fn the_nth_operation_fails_until_none_does() {
    for failure in [IoFailure::Media, IoFailure::Unavailable] {
        let mut nth = 1;
        while live_with_failure(nth, failure) {
            nth += 1;
            assert!(nth < 500, "a life is short");
        }
        assert!(nth > 20, "a life has many operations");
    }
}

#[test]
fn a_device_that_is_gone_never_hangs_the_start() {
    let (mut world, _) = two_volumes();
    world.disks[0].is_gone = true;
    world.import();
    world.settle();
    failure(&world);
}

#[test]
fn what_is_no_pool_is_named() {
    let spec = device(16, false, false);
    let mut world = World::ready(&[spec, spec]);
    let zero = DeviceIndex::new(0);

    let mut empty = World::ready(&[spec]);
    empty.disks[0] = Disk::new(spec);
    empty.import();
    empty.settle();
    assert_eq!(failure(&empty), ExtentError::NotAPool { device: zero });

    let all = world.disks.clone();
    world.disks.truncate(1);
    world.import();
    world.settle();
    assert!(matches!(
        failure(&world),
        ExtentError::DeviceMissing { index: 1, .. }
    ));

    world.disks = vec![all[0].clone(), all[0].clone()];
    world.import();
    world.settle();
    let twice = ExtentError::ForeignDevice {
        device: DeviceIndex::new(1),
    };
    assert_eq!(failure(&world), twice);

    world.disks = vec![all[1].clone(), all[0].clone()];
    world.reimport();

    world.disks = all.clone();
    world.disks[0].spec.size_bytes -= MIB;
    world.import();
    world.settle();
    assert_eq!(
        failure(&world),
        ExtentError::DeviceTruncated {
            device: zero,
            expected_bytes: 16 * MIB,
            found_bytes: 15 * MIB,
        }
    );
}

#[test]
fn another_version_of_the_format_is_named() {
    let mut world = World::ready(&[device(16, false, false)]);
    for block in [0, 1, 4094, 4095] {
        world.disks[0].corrupt(block, 10, 1 ^ 9);
    }
    world.import();
    world.settle();
    assert_eq!(
        failure(&world),
        ExtentError::UnsupportedVersion {
            device: DeviceIndex::new(0),
            found: 9,
            supported: 1,
        }
    );
}

#[test]
fn a_pool_is_overwritten_only_when_told_so() {
    let world = World::ready(&[device(16, false, false)]);
    let specs = [device(16, false, false)];
    for existing in [ExistingPool::Refuse, ExistingPool::Overwrite] {
        let mut random = SeededRandom::new(8);
        let mut other = World {
            disks: world.disks.clone(),
            pool: Pool::create(pool_spec(existing), &specs, &mut random, 1).expect("valid"),
            pending: Vec::new(),
            random,
        };
        other.settle();
        match existing {
            ExistingPool::Refuse => {
                let device = DeviceIndex::new(0);
                assert_eq!(failure(&other), ExtentError::HoldsPool { device });
            }
            ExistingPool::Overwrite => {
                let uuid = other.pool.uuid();
                assert_ne!(uuid, world.pool.uuid());
                other.reimport();
                assert_eq!(other.pool.uuid(), uuid);
            }
        }
    }
}

#[test]
fn an_acknowledged_change_damaged_in_the_journal_stops_the_import() {
    let mut world = World::ready(&[device(16, false, false)]);
    for name in ["a", "b", "c"] {
        let spec = volume_spec(name, MIB);
        world.pool.create_volume(&spec, None).expect("new");
        world.commit();
    }
    // The ring starts at block 2; the second of three commits is damaged.
    world.disks[0].corrupt(3, 200, 1);
    world.import();
    world.settle();
    assert_eq!(failure(&world), ExtentError::JournalDamaged { sequence: 1 });
}

#[test]
fn a_transaction_that_a_start_did_not_find_stays_lost_when_a_torn_write_completes_it() {
    let mut world = World::ready(&[device(16, false, false)]);
    let make = |world: &mut World, name: &str| {
        let before = world.disks[0].metadata();
        let spec = volume_spec(name, MIB);
        world.pool.create_volume(&spec, None).expect("new");
        world.commit();
        let after = world.disks[0].metadata();
        after.into_iter().find(|block| !before.contains(block))
    };
    let has = |world: &World, name: &str| world.pool.find_volume(name).is_some();
    make(&mut world, "kept").expect("a journal block");
    let block = make(&mut world, "lost").expect("a journal block");
    let whole = world.disks[0].read(block);
    // Of its block one part did not reach the medium, where there is nothing but padding.
    assert_eq!(whole[3000], 0);
    world.disks[0].corrupt(block, 3000, 1);
    world.import();
    world.settle();
    assert!(has(&world, "kept") && !has(&world, "lost"));
    // The next change goes to the same place; of its block that part alone reaches the medium.
    make(&mut world, "next");
    assert_ne!(world.disks[0].read(block), whole);
    world.disks[0]
        .write(block, &whole, true)
        .expect("a sound disk");
    for _ in 0..2 {
        world.import();
        world.settle();
        assert_eq!(*world.pool.state(), PoolState::Ready);
        assert!(has(&world, "kept") && !has(&world, "lost") && !has(&world, "next"));
    }
    make(&mut world, "last");
    world.import();
    world.settle();
    assert!(has(&world, "kept") && has(&world, "last"));
}
