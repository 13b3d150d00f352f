//! The life of a pool without faults.

use crate::error::ExtentError;
use crate::piece::{PieceFlags, PieceKind};
use crate::sim::world::{MIB, World, device, volume_spec};
use crate::types::{LogicalBlock, RequestId, VolumeId};
use crate::volume::PoolState;

fn small() -> World {
    World::ready(&[device(16, false, false)])
}

fn with_volume(world: &mut World, units: u64) -> VolumeId {
    let (volume, _) = world
        .pool
        .create_volume(&volume_spec("vol", units * 4096), None)
        .expect("room for a volume");
    volume
}

#[test]
fn a_new_pool_is_imported_again() {
    let mut world = small();
    world.check_all();
    let uuid = world.pool.uuid();
    world.reimport();
    assert_eq!(world.pool.uuid(), uuid);
    assert_eq!(world.pool.name(), "tank");
}

#[test]
fn what_is_committed_is_there_after_an_import() {
    let mut world = small();
    let volume = with_volume(&mut world, 1000);
    world.write(volume, 10, 20, 5).expect("space");
    world.write(volume, 25, 10, 6).expect("space");
    world.commit();
    world.write(volume, 500, 1, 7).expect("space");
    world.reimport();
    let mut expected = vec![0; 10];
    expected.extend([5; 15]);
    expected.extend([6; 10]);
    expected.extend([0; 5]);
    assert_eq!(world.stamps(volume, 0, 40), expected);
    assert_eq!(world.stamps(volume, 500, 1), [0], "never committed");
    assert_eq!(
        world.pool.find_volume("vol").expect("it is there").id,
        volume
    );
}

#[test]
fn a_checkpoint_keeps_everything_and_empties_the_journal() {
    let mut world = small();
    let volume = with_volume(&mut world, 4000);
    for index in 0..300 {
        world.write(volume, index * 3, 1, index + 1).expect("space");
    }
    world.checkpoint();
    assert_eq!(world.pool.durable(), world.pool.recorded());
    world.write(volume, 1, 1, 999).expect("space");
    world.commit();
    world.reimport();
    assert_eq!(world.pool.counters().replayed_records, 1);
    for index in 0..300 {
        assert_eq!(world.stamps(volume, index * 3, 1), [index + 1]);
    }
    assert_eq!(world.stamps(volume, 1, 2), [999, 0]);
}

#[test]
fn sequential_writes_become_one_extent() {
    let mut world = World::ready(&[device(64, false, false)]);
    let volume = with_volume(&mut world, 4096);
    for index in 0..16 {
        world.write(volume, index * 256, 256, 1).expect("space");
    }
    let pieces = world.pieces(volume, 0, 4096).expect("a sound map");
    assert_eq!(pieces.len(), 1);
}

#[test]
fn a_piece_is_meta_dirty_until_its_commit() {
    let mut world = small();
    let volume = with_volume(&mut world, 100);
    world.write(volume, 5, 2, 1).expect("space");
    let before = world.pieces(volume, 5, 2).expect("a sound map");
    assert!(before[0].flags.contains(PieceFlags::META_DIRTY));
    world.commit();
    let after = world.pieces(volume, 4, 4).expect("a sound map");
    assert!(after.iter().all(|piece| piece.flags.is_empty()));
    assert_eq!(after[1].kind, PieceKind::Written);
}

#[test]
fn a_deleted_volume_gives_its_space_back() {
    let mut world = small();
    let before = world.pool.usage();
    let volume = with_volume(&mut world, 3000);
    for index in 0..1000 {
        world.write(volume, index * 2, 1, 9).expect("space");
    }
    world.checkpoint();
    let request = RequestId::new("delete-1").expect("a valid id");
    world
        .pool
        .delete_volume(volume, Some(&request))
        .expect("it exists");
    assert_eq!(world.pool.find_volume("vol"), None);
    world.commit();
    world.checkpoint();
    world.reimport();
    let after = world.pool.usage();
    assert_eq!(after.allocated_bytes, 0);
    assert!(before.free_bytes - after.free_bytes < MIB / 4);
    world
        .pool
        .delete_volume(volume, Some(&request))
        .expect("a retry succeeds");
    assert_eq!(
        world.pool.delete_volume(volume, None),
        Err(ExtentError::UnknownVolume { volume })
    );
}

#[test]
fn a_shrunk_volume_grows_back_as_zeros() {
    let mut world = small();
    let volume = with_volume(&mut world, 1000);
    world.write(volume, 0, 1000, 3).expect("space");
    world.commit();
    world
        .pool
        .resize_volume(volume, 100 * 4096)
        .expect("a shrink");
    assert_eq!(
        world.pool.resize_volume(volume, 1000 * 4096),
        Err(ExtentError::TrimPending { volume })
    );
    world.commit();
    world
        .pool
        .resize_volume(volume, 1000 * 4096)
        .expect("a growth");
    assert_eq!(world.stamps(volume, 99, 3), [3, 0, 0]);
    world.commit();
    world.reimport();
    assert_eq!(world.stamps(volume, 99, 3), [3, 0, 0]);
    assert_eq!(world.pool.usage().allocated_bytes, 100 * 4096);
}

#[test]
fn a_full_pool_still_deletes_discards_and_imports() {
    let mut world = small();
    let volume = with_volume(&mut world, 100_000);
    let mut first = 0;
    let error = loop {
        match world.write(volume, first, 16, 4) {
            Ok(_) => first += 16,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ExtentError::NoSpace { .. }), "{error}");
    world.checkpoint();
    world.reimport();
    for index in 0..first / 2 {
        let unit = LogicalBlock::new(index * 2);
        let done = world
            .resident(|pool| pool.unmap(volume, unit, 1))
            .expect("a discard");
        assert_eq!(done.done, 1);
    }
    world.commit();
    world.check_all();
    assert_eq!(world.stamps(volume, 0, 4), [0, 4, 0, 4]);
    world.write(volume, 0, 1, 8).expect("space again");
    world.pool.delete_volume(volume, None).expect("it exists");
    world.commit();
    assert_eq!(world.pool.usage().allocated_bytes, 0);
    world.reimport();
}

#[test]
fn a_retried_creation_gives_the_same_volume_also_after_an_import() {
    let mut world = small();
    let request = RequestId::new("create-1").expect("a valid id");
    let spec = volume_spec("vol", MIB);
    let (volume, _) = world
        .pool
        .create_volume(&spec, Some(&request))
        .expect("new");
    world.commit();
    world.reimport();
    let (again, _) = world
        .pool
        .create_volume(&spec, Some(&request))
        .expect("a retry");
    assert_eq!(again, volume);
    let exists = Err(ExtentError::AlreadyExists {
        name: "vol".to_owned(),
    });
    assert_eq!(world.pool.create_volume(&spec, None), exists);
    let other = volume_spec("other", MIB);
    let reused = Err(ExtentError::RequestIdReused);
    assert_eq!(world.pool.create_volume(&other, Some(&request)), reused);
}

#[test]
fn an_exported_pool_is_clean_and_refuses_changes() {
    let mut world = small();
    let volume = with_volume(&mut world, 100);
    world.write(volume, 0, 1, 2).expect("space");
    world.pool.export();
    world.settle();
    assert_eq!(*world.pool.state(), PoolState::Exported);
    let refused = world.pool.create_volume(&volume_spec("x", MIB), None);
    assert_eq!(refused, Err(ExtentError::Exported));
    world.reimport();
    assert_eq!(world.pool.counters().replayed_records, 0);
    assert_eq!(world.stamps(volume, 0, 1), [2]);
}

#[test]
fn the_journal_never_fills_for_good() {
    let mut world = small();
    let volume = with_volume(&mut world, 600);
    for round in 0..200 {
        for index in 0..100 {
            world
                .write(volume, index * 5 + round % 5, 1, round + 1)
                .expect("space");
        }
        if round % 7 == 0 {
            world.commit();
        }
    }
    world.commit();
    assert!(world.pool.counters().checkpoints > 0);
    world.reimport();
    assert_eq!(world.stamps(volume, 199 % 5, 1), [200]);
}

#[test]
fn volumes_are_paged_in_the_order_of_their_names() {
    let mut world = small();
    for name in ["b", "d", "a", "c"] {
        world
            .pool
            .create_volume(&volume_spec(name, MIB), None)
            .expect("new");
    }
    let names = |after, limit| -> Vec<String> {
        let page = world.pool.volumes(after, limit);
        page.into_iter().map(|volume| volume.name).collect()
    };
    assert_eq!(names(None, 3), ["a", "b", "c"]);
    assert_eq!(names(Some("c"), 3), ["d"]);
    assert_eq!(names(Some("bb"), 1), ["c"]);
}

#[test]
fn a_large_pool_over_several_devices_keeps_its_volumes() {
    // The second device's groups lie under the second lower index block of the space map.
    let mut world = World::ready(&[
        device(70 * 1024, true, false),
        device(16, false, false),
        device(40, true, true),
    ]);
    let spec = volume_spec("vol", 60 << 40);
    let (volume, _) = world.pool.create_volume(&spec, None).expect("new");
    for index in 0..300 {
        let first = index * 50_000_000;
        world.write(volume, first, 3, index + 1).expect("space");
    }
    world.checkpoint();
    world.write(volume, 1, 1, 999).expect("space");
    world.commit();
    world.disks.rotate_left(1);
    world.reimport();
    for index in 0..300 {
        let expected = if index == 0 { 999 } else { index + 1 };
        assert_eq!(world.stamps(volume, index * 50_000_000 + 1, 1), [expected]);
    }
}

#[test]
fn a_size_that_ends_within_a_unit_covers_the_unit() {
    let mut world = small();
    let mut spec = volume_spec("vol", 5 * 4096 + 512);
    spec.block_size = lode_units::BlockSize::B512;
    let (volume, _) = world.pool.create_volume(&spec, None).expect("new");
    world.write(volume, 5, 1, 3).expect("the last unit counts");
    world
        .pool
        .resize_volume(volume, 6 * 4096)
        .expect("a growth");
    let beyond = world
        .pool
        .allocate(volume, LogicalBlock::new(6), 1)
        .map(|allocation| {
            allocation.abandon();
        });
    let (first, count) = (LogicalBlock::new(6), 1);
    assert_eq!(beyond, Err(ExtentError::OutOfRange { first, count }));
}

#[test]
fn an_allocation_dropped_unfinished_fails_loudly() {
    let mut world = small();
    let volume = with_volume(&mut world, 10);
    let allocation = world
        .pool
        .allocate(volume, LogicalBlock::new(0), 1)
        .expect("space");
    let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(allocation)));
    assert!(dropped.is_err());
}

#[test]
fn names_and_sizes_that_the_format_cannot_hold_are_refused() {
    let mut world = small();
    let mut refuse = |spec, error: ExtentError| {
        assert_eq!(world.pool.create_volume(&spec, None), Err(error));
    };
    let long = "x".repeat(256);
    for name in ["", "a\nb", long.as_str()] {
        let length_bytes = name.len();
        refuse(
            volume_spec(name, MIB),
            ExtentError::InvalidName { length_bytes },
        );
    }
    for size_bytes in [0, 4095, (1 << 46) + 4096] {
        refuse(
            volume_spec("a", size_bytes),
            ExtentError::InvalidSize { size_bytes },
        );
    }
    let mut spec = volume_spec("a", MIB);
    spec.block_size = lode_units::BlockSize::new(8192).expect("a power of two");
    refuse(spec, ExtentError::InvalidBlockSize { bytes: 8192 });
    assert!(RequestId::new("").is_err());
    assert!(RequestId::new(&"x".repeat(65)).is_err());
    let (volume, _) = world
        .pool
        .create_volume(&volume_spec(&"x".repeat(255), 1 << 46), None)
        .expect("the longest name and the largest size");
    world.commit();
    world.reimport();
    assert_eq!(
        world.pool.volume(volume).expect("it is there").name.len(),
        255
    );
}
