//! Requests that fill all memory for their ends, and what they wait for meanwhile.

use std::ops::Range;

use lode_block::{Durability, ErrorKind, Geometry, Operation, WriteCache};
use lode_engine::{ControlRequest, DataOperation, ShardLimits, VolumeHandle};
use lode_units::BlockSize;

use crate::device::{Fault, geometry};
use crate::fleet::{Fleet, Makeup};
use crate::rig::{Rig, handle, pattern, spec};

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

/// A guest, and a volume of blocks of 512 bytes that is written up to 64 KiB and under lease.
fn guest() -> (Fleet, VolumeHandle) {
    let mut fleet = Fleet::new(&Makeup {
        small_buffers: 1024,
        ..Makeup::of(2, WriteCache::None)
    });
    let request = ControlRequest::CreateVolume {
        pool: String::new(),
        spec: spec("v", 1 << 20, BlockSize::B512),
        request: None,
    };
    let volume = handle(fleet.control(1, request).expect("a volume can be made"));
    fleet.write(0, volume, 0, &pattern(1, 1 << 16));
    fleet.read(1, volume, 0, 1 << 16);
    (fleet, volume)
}

#[test]
fn under_lease_parts_of_blocks_are_read_on_their_core() {
    let (mut fleet, volume) = guest();
    let data = pattern(1, 1 << 16);
    let inline = fleet.shards[1].stats().completions_inline.read();
    // A part of one block, a head, a tail, both with and without blocks between them.
    let ranges = [
        (512, 512),
        (512, 3584),
        (0, 1024),
        (3584, 1024),
        (4608, 8192),
        (1536, 60_416),
    ];
    for (offset, length) in ranges {
        let expected = &data[offset..offset + length];
        let found = fleet.read(1, volume, offset as u64, length as u64);
        assert_eq!(found, expected, "{length} bytes from {offset} on");
    }
    let inline = fleet.shards[1].stats().completions_inline.read() - inline;
    assert_eq!(inline, 6, "the home was not asked");
    // A write would undo what another one puts into the same block meanwhile.
    fleet.write(1, volume, 512, &pattern(2, 512));
    assert_eq!(fleet.read(1, volume, 512, 512), pattern(2, 512));
    assert_eq!(fleet.read(1, volume, 1024, 512), data[1024..1536]);
    fleet.settle();
    assert_eq!(fleet.lent(), 0);
}

#[test]
fn more_parts_of_blocks_than_a_core_has_memory_for_wait_and_are_read() {
    let (mut fleet, volume) = guest();
    fleet.media.borrow_mut().is_held = true;
    for read in 0..300 {
        let (range, none) = (block_of(read % 16), (Durability::None, &[][..]));
        fleet.submit(1, volume, DataOperation::Read, range, none);
    }
    for _ in 0..10 {
        fleet.poll_all();
    }
    fleet.media.borrow_mut().is_held = false;
    let mut ended = 0;
    for _ in 0..10_000 {
        fleet.poll_all();
        let results = fleet.harvest(1).into_iter();
        ended += results.filter(|(_, result)| result.is_ok()).count();
    }
    assert_eq!(ended, 300);
}

#[test]
fn a_read_of_a_part_that_fails_or_is_repeated_on_its_core_gives_its_memory_back() {
    let (mut fleet, volume) = guest();
    let expected = &pattern(1, 1 << 16)[512..1024];
    // More often than there is memory.
    for _ in 0..200 {
        for kind in [ErrorKind::Media, ErrorKind::Retry] {
            fleet.media.borrow_mut().faults = vec![Fault {
                operation: Operation::Read,
                lba: 0..u64::MAX,
                kind,
                times: 1,
            }];
            if kind == ErrorKind::Media {
                let none = (Durability::None, &[][..]);
                let range = (512, 512);
                let outcome = fleet.run(1, volume, DataOperation::Read, range, none);
                outcome.expect_err("the block cannot be read");
            } else {
                assert_eq!(fleet.read(1, volume, 512, 512), expected);
            }
        }
    }
    assert_eq!(fleet.shards[1].stats().retries.read(), 200);
}
