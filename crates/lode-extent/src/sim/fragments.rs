//! A pool whose free space lies in pieces.

use crate::error::ExtentError;
use crate::sim::world::{World, device, volume_spec};
use crate::types::{LogicalBlock, VolumeId};
use crate::volume::VolumeLimits;

/// A volume in a pool whose free blocks all have neighbours that are taken, and a unit of the
/// volume behind which there are holes.
fn fragmented() -> (World, VolumeId, u64) {
    let mut world = World::ready(&[device(16, false, false)]);
    let (volume, _) = world
        .pool
        .create_volume(&volume_spec("vol", 100_000 * 4096), None)
        .expect("room for a volume");
    let mut end = 0;
    while world.write(volume, end, 16, 4).is_ok() {
        end += 16;
    }
    for index in 0..end / 2 {
        let unit = LogicalBlock::new(index * 2);
        let done = world
            .resident(|pool| pool.unmap(volume, unit, 1))
            .expect("a discard");
        assert_eq!(done.done, 1);
    }
    world.checkpoint();
    (world, volume, end)
}

/// Changes of one record each, without any I/O, until `count` are made or the journal is full.
fn fill_journal(world: &mut World, volume: VolumeId, count: u64) -> u64 {
    for change in 0..count {
        let limits = VolumeLimits {
            iops_max: change + 1,
            ..VolumeLimits::default()
        };
        if let Err(error) = world.pool.limit_volume(volume, limits) {
            assert_eq!(error, ExtentError::JournalFull);
            return change;
        }
    }
    count
}

#[test]
fn a_change_over_fragmented_space_takes_journal_for_each_of_its_extents() {
    let (mut world, volume, _) = fragmented();
    let room = fill_journal(&mut world, volume, u64::MAX);
    let (mut world, volume, first) = fragmented();
    let allocation = world
        .resident(|pool| pool.allocate(volume, LogicalBlock::new(first), 1024))
        .expect("space in single blocks");
    assert!(allocation.runs().len() >= 500, "it is not fragmented");
    assert_eq!(fill_journal(&mut world, volume, room - 2), room - 2);
    let (allocation, error) = world
        .pool
        .record(allocation)
        .expect_err("the journal has room for two records");
    assert_eq!(error, ExtentError::JournalFull);
    world
        .pool
        .check()
        .expect("the journal holds no more than fits");
    world.pool.cancel(allocation);
    world.settle();
    world.write(volume, first, 1024, 9).expect("room again");
    world.commit();
    world.reimport();
    assert_eq!(world.stamps(volume, first, 1024), [9; 1024]);
}
