//! Requests that fill all memory for their ends, and what they wait for meanwhile.

use std::ops::Range;

use lode_block::{Durability, Geometry, WriteCache};
use lode_engine::{DataOperation, ShardLimits, VolumeHandle};
use lode_units::BlockSize;

use crate::device::geometry;
use crate::rig::{Rig, pattern};

/// More requests than the shard has memory of its own for, whatever its kind.
const MANY: Range<u64> = 0..600;

/// Blocks of 4096 bytes: those of 512 are fetched and merged.
fn wide() -> Geometry {
    geometry(BlockSize::B4096, WriteCache::None)
}

fn rig() -> (Rig, VolumeHandle) {
    let mut rig = Rig::crowded(wide(), ShardLimits::default());
    let volume = rig.create("v", 8 << 20, BlockSize::B512);
    (rig, volume)
}

/// The second block of a unit.
const fn block_of(unit: u64) -> (u64, u64) {
    (unit * 4096 + 512, 512)
}

fn finish(rig: &mut Rig, count: usize) {
    let mut ended = 0;
    for _ in 0..100_000 {
        for (_, result) in rig.harvest() {
            result.expect("it only had to wait");
            ended += 1;
        }
        if ended == count {
            return;
        }
        rig.poll();
    }
    panic!("{ended} of {count} ended");
}

#[test]
fn durable_writes_that_hold_their_ends_leave_the_journal_memory_to_be_written() {
    let (mut rig, volume) = rig();
    for unit in MANY {
        let data = pattern(4, 512);
        let operation = DataOperation::Write;
        rig.submit(volume, operation, block_of(unit), Durability::Data, &data);
    }
    finish(&mut rig, 600);
    assert_eq!(rig.read(volume, 599 * 4096 + 512, 512), pattern(4, 512));
}

#[test]
fn reads_that_hold_their_ends_leave_the_map_memory_to_be_read() {
    let (mut rig, volume) = rig();
    rig.write(volume, 0, &pattern(5, 1 << 20));
    rig.shard.export(rig.pool);
    rig.until(|rig| rig.shard.pool_state(rig.pool) == Some(&lode_extent::PoolState::Exported));
    let mut rig = rig.crowded_again(wide());
    let volume = rig.open("v").expect("it is there");
    for unit in MANY {
        let range = block_of(unit % 256);
        rig.submit(volume, DataOperation::Read, range, Durability::None, &[]);
    }
    finish(&mut rig, 600);
    assert!(rig.shard.stats().metadata_waits.read() > 0);
}

#[test]
fn comparisons_that_hold_their_ends_leave_memory_to_compare_in() {
    let (mut rig, volume) = rig();
    for unit in MANY {
        let halves = [[0; 512].as_slice(), &pattern(6, 512)].concat();
        let operation = DataOperation::CompareAndWrite;
        rig.submit(volume, operation, block_of(unit), Durability::None, &halves);
    }
    finish(&mut rig, 600);
    assert_eq!(rig.read(volume, 599 * 4096 + 512, 512), pattern(6, 512));
}

#[test]
fn memory_that_one_pool_gives_back_goes_to_who_waits_in_another() {
    let (mut rig, volume) = rig();
    rig.write(volume, 0, &pattern(7, 1 << 20));
    let neighbour = rig.neighbour(wide());
    rig.media.borrow_mut().is_held = true;
    for unit in 0..200 {
        let operation = DataOperation::Read;
        rig.submit(volume, operation, block_of(unit), Durability::None, &[]);
    }
    let (range, data) = (block_of(0), pattern(8, 512));
    let operation = DataOperation::Write;
    let last = rig.submit(neighbour, operation, range, Durability::None, &data);
    for _ in 0..100 {
        rig.poll();
    }
    assert!(rig.outcome(last).is_none(), "all memory is in use");
    rig.media.borrow_mut().is_held = false;
    finish(&mut rig, 201);
    assert_eq!(rig.read(neighbour, 512, 512), data);
}
