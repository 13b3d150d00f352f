//! Metadata that cannot be read for a while: nothing is lost by it, and what is not touched by it
//! goes on.

use crate::error::{ExtentError, LookupError};
use crate::io::MetadataOp;
use crate::pool::Pool;
use crate::sim::world::{MIB, World, device, volume_spec};
use crate::types::{LogicalBlock, VolumeId};
use crate::volume::PoolState;
use lode_units::SeededRandom;

/// Units of each volume that the checkpoint maps, and those that only the journal does.
const OLD: u64 = 600;
const NEW: u64 = 40;
/// Volumes: more than a leaf of the object table holds.
const VOLUMES: u64 = 14;

/// A pool whose newest changes of every volume are in the journal alone.
fn with_a_journal() -> (World, Vec<VolumeId>) {
    let mut world = World::ready(&[device(16, false, false), device(16, false, false)]);
    let volumes: Vec<_> = (0..VOLUMES)
        .map(|index| {
            let spec = volume_spec(&format!("v{index:02}"), 8 * MIB);
            world.pool.create_volume(&spec, None).expect("new").0
        })
        .collect();
    for &volume in &volumes[..2] {
        for index in 0..OLD {
            world.write(volume, index * 2, 1, 1 + index).expect("space");
        }
    }
    world.checkpoint();
    for (index, &volume) in (0..).zip(&volumes) {
        // Of the first volumes this replaces old units, of all it maps new ones.
        for unit in 0..NEW {
            let first = unit * 2 * (OLD / NEW);
            world.write(volume, first, 1, 9000 + index).expect("space");
        }
        unmap(&mut world, volume, 2, 1).expect("a sound map");
    }
    world.commit();
    (world, volumes)
}

fn unmap(world: &mut World, volume: VolumeId, first: u64, count: u32) -> Result<(), ExtentError> {
    let first = LogicalBlock::new(first);
    let unmapped = world.resident(|pool| pool.unmap(volume, first, count))?;
    assert_eq!(unmapped.done, u64::from(count));
    Ok(())
}

/// Every unit of a volume as the journal leaves it.
fn expected(index: u64) -> Vec<u64> {
    let stamp = |unit: u64| match unit {
        2 => 0,
        unit if unit.is_multiple_of(2 * (OLD / NEW)) => 9000 + index,
        unit if index < 2 && unit.is_multiple_of(2) => 1 + unit / 2,
        _ => 0,
    };
    (0..2 * OLD).map(stamp).collect()
}

fn copy_of(world: &World) -> World {
    World {
        disks: world.disks.clone(),
        pool: Pool::import(&[]),
        pending: Vec::new(),
        random: SeededRandom::new(1),
    }
}

/// The device, the first block and the number of blocks of each read of an import.
fn reads(world: &World) -> Vec<(usize, u64, u32)> {
    let mut world = copy_of(world);
    world.import();
    let mut blocks = Vec::new();
    loop {
        while let Some(io) = world.pool.next_io() {
            if let MetadataOp::Read { block, count } = io.op {
                blocks.push((io.device.index(), block, count));
            }
            world.pending.push(io);
        }
        if world.pending.is_empty() {
            return blocks;
        }
        world.complete(0);
    }
}

/// What a volume shows, or that it says that it cannot.
fn shown(world: &mut World, volume: VolumeId) -> Option<Vec<u64>> {
    let count = u32::try_from(2 * OLD).expect("a small volume");
    match world.pieces(volume, 0, count) {
        Ok(_pieces) => Some(world.stamps(volume, 0, count)),
        Err(LookupError::Damaged { .. } | LookupError::UnknownVolume(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_block_that_the_device_delivers_when_asked_again_harms_nothing() {
    let (world, volumes) = with_a_journal();
    for (device, block, _) in reads(&world) {
        let mut world = copy_of(&world);
        world.disks[device].unreadable.push(block);
        world.disks[device].bad_reads = Some(2);
        world.reimport();
        assert_eq!(world.disks[device].bad_reads, Some(0), "{device} {block}");
        assert_eq!(world.pool.counters().nodes_damaged, 0);
        for (index, &volume) in (0..).zip(&volumes) {
            assert_eq!(shown(&mut world, volume), Some(expected(index)));
        }
    }
}

#[test]
fn what_cannot_be_read_at_an_import_is_whole_when_a_later_import_reads_it() {
    let (world, volumes) = with_a_journal();
    // Tables, maps and the space map are read block by block, all else in longer pieces.
    let mut blocks = reads(&world);
    blocks.retain(|&(_, _, count)| count == 1);
    assert!(blocks.len() > 6, "a table, maps and the space map");
    let (mut closed, mut stuck) = (0, 0);
    for (device, block, _) in blocks {
        let mut world = copy_of(&world);
        world.disks[device].unreadable.push(block);
        world.import();
        world.settle();
        assert_eq!(*world.pool.state(), PoolState::Ready);
        for (index, &volume) in (0..).zip(&volumes) {
            match shown(&mut world, volume) {
                Some(stamps) => assert_eq!(stamps, expected(index), "nothing old is shown"),
                None => closed += 1,
            }
        }
        world.pool.check().expect("what is in memory is sound");
        // Twice, so that the journal of before is gone for good; then a close and a crash.
        let mut is_stuck = false;
        for _ in 0..2 {
            touch(&mut world, &volumes);
            let before = world.pool.counters().checkpoints;
            world.pool.checkpoint();
            world.settle();
            is_stuck |= world.pool.counters().checkpoints == before;
        }
        stuck += u64::from(is_stuck);
        world.pool.check().expect("what is in memory is sound");
        world.pool.export();
        world.settle();
        match world.pool.state() {
            PoolState::Exported => assert!(!is_stuck),
            state => assert!(is_stuck, "{state:?}"),
        }
        world.import();
        world.settle();
        world.pool.checkpoint();
        world.settle();
        world.crash();

        world.disks[device].unreadable.clear();
        world.reimport();
        for (index, &volume) in (0..).zip(&volumes) {
            let mut stamps = shown(&mut world, volume).expect("all of it can be read");
            stamps[1] = 0;
            assert_eq!(stamps, expected(index), "{device} {block}, volume {index}");
        }
    }
    assert!(closed > 0, "some blocks close a volume");
    // The blocks of the space map above both groups.
    assert!(
        stuck <= 2,
        "{stuck} blocks keep a checkpoint from being made"
    );
}

/// Changes what can be changed.
fn touch(world: &mut World, volumes: &[VolumeId]) {
    for &volume in volumes {
        match world.write(volume, 1, 1, 77) {
            Ok(_) => {}
            Err(
                ExtentError::ObjectDamaged { .. }
                | ExtentError::UnknownVolume { .. }
                | ExtentError::NoSpace { .. },
            ) => {}
            Err(error) => panic!("{error}"),
        }
    }
    world.commit();
}

#[test]
fn space_is_not_given_back_where_its_map_cannot_be_read_and_is_when_it_can() {
    let mut world = World::ready(&[device(16, false, false)]);
    let spec = volume_spec("a", MIB);
    let (volume, _) = world.pool.create_volume(&spec, None).expect("new");
    world.write(volume, 0, 8, 5).expect("space");
    world.checkpoint();
    let bitmap = *blocks_of_groups(&mut world).first().expect("a bitmap");
    world.import();
    world.disks[0].unreadable.push(bitmap);
    world.settle();
    assert!(matches!(
        unmap(&mut world, volume, 0, 4),
        Err(ExtentError::MetadataDamaged { block, .. }) if block == bitmap
    ));
    assert_eq!(world.stamps(volume, 0, 8), [5; 8], "nothing has changed");
    assert!(world.pool.has_damage());
    assert!(world.pool.usage().unreadable_bytes > 0);
    world.pool.recall_damaged();
    assert_eq!(world.pool.usage().unreadable_bytes, 0, "nobody has looked");
    assert!(unmap(&mut world, volume, 0, 4).is_err(), "it is still bad");
    let ticket = world.pool.delete_volume(volume, None);
    ticket.expect("a deletion needs no space map");
    world.commit();
    assert!(world.pool.usage().allocated_bytes > 0, "its space waits");

    world.disks[0].unreadable.clear();
    world.pool.recall_damaged();
    world.settle();
    assert_eq!(world.pool.usage().allocated_bytes, 0);
    world.checkpoint();
    world.reimport();
}

/// Imports the pool and has it ask for the root of a volume's map: which block that is.
fn begin_to_read(world: &mut World, volume: VolumeId) -> (usize, u64) {
    world.import();
    world.start();
    let mut pieces = smallvec::SmallVec::new();
    let found = world
        .pool
        .lookup(volume, LogicalBlock::new(0), 1, &mut pieces);
    let Err(LookupError::NotResident(missing)) = found else {
        panic!("nothing is in memory");
    };
    world.pool.load(missing);
    let io = world.pool.next_io().expect("a read");
    let MetadataOp::Read { block, .. } = io.op else {
        panic!("a read");
    };
    let device = io.device.index();
    world.pending.push(io);
    (device, block)
}

/// The bitmaps that a pool with nothing in memory reads for its allocations.
fn blocks_of_groups(world: &mut World) -> Vec<u64> {
    world.import();
    world.start();
    let before = world.pool.counters().nodes_read;
    let mut cursor = crate::check::LoadCursor::default();
    let mut blocks = Vec::new();
    while !world.pool.load_all(&mut cursor) {
        while let Some(io) = world.pool.next_io() {
            if let MetadataOp::Read { block, .. } = io.op {
                blocks.push(block);
            }
            world.pending.push(io);
        }
        world.complete(0);
    }
    assert!(world.pool.counters().nodes_read > before);
    blocks.split_off(blocks.len() - 1)
}

#[test]
fn a_part_of_a_map_that_becomes_readable_is_read_again_when_asked_to() {
    let (mut world, volumes) = with_a_journal();
    world.checkpoint();
    let map = begin_to_read(&mut world, volumes[0]);
    world.disks[map.0].unreadable.push(map.1);
    world.settle();
    assert_eq!(shown(&mut world, volumes[0]), None);
    assert_eq!(shown(&mut world, volumes[1]), Some(expected(1)));
    assert!(
        world
            .pool
            .volume(volumes[0])
            .expect("it is listed")
            .is_damaged
    );
    world.disks[map.0].unreadable.clear();
    assert_eq!(shown(&mut world, volumes[0]), None, "nobody asked");
    world.pool.recall_damaged();
    assert_eq!(shown(&mut world, volumes[0]), Some(expected(0)));
    assert!(
        !world
            .pool
            .volume(volumes[0])
            .expect("it is listed")
            .is_damaged
    );
    assert!(!world.pool.has_damage());
}

#[test]
fn blocks_of_replaced_nodes_are_given_back_late_where_their_space_map_cannot_be_read() {
    let (mut world, volumes) = with_a_journal();
    world.checkpoint();
    // Nodes lie at the far end: on the second device.
    let bitmap = *blocks_of_groups(&mut world).first().expect("a bitmap");
    world.import();
    world.start();
    world.disks[1].unreadable.push(bitmap);
    touch(&mut world, &volumes);
    world.checkpoint();
    world.pool.check().expect("what is in memory is sound");
    assert!(world.pool.usage().leaked_bytes > 0, "it says so");

    let mut reopened = copy_of(&world);
    reopened.disks[1].unreadable.clear();
    reopened.import();
    reopened.settle();
    let mut cursor = crate::check::LoadCursor::default();
    while !reopened.pool.load_all(&mut cursor) {
        reopened.settle();
    }
    let violation = reopened
        .pool
        .check()
        .expect_err("the blocks are lost to it");
    assert_eq!(violation.what, "a block is taken that nothing refers to");
    for &volume in &volumes {
        assert_eq!(shown(&mut reopened, volume), shown(&mut world, volume));
    }

    world.disks[1].unreadable.clear();
    world.pool.recall_damaged();
    world.checkpoint();
    assert_eq!(world.pool.usage().leaked_bytes, 0);
    world.reimport();
}
