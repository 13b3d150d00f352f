//! Several cores on one pool: what runs on the core where it arrived, what goes home, and what
//! waits for whom.

use lode_block::{Durability, ErrorKind, Operation, WriteCache};
use lode_engine::{ControlError, ControlReply, ControlRequest, DataOperation, IoError, Shrink};

use crate::device::{Fault, MemoryDevice};
use crate::fleet::{Fleet, Makeup};
use crate::rig::{named, pattern};

const UNIT: u64 = 4096;
const NONE: (Durability, &[u8]) = (Durability::None, &[]);

fn two_cores(write_cache: WriteCache) -> Fleet {
    Fleet::new(&Makeup::of(2, write_cache))
}

fn hand_offs(fleet: &Fleet, core: usize) -> u64 {
    let stats = fleet.shards[core].stats();
    stats.hand_offs.iter().map(lode_stats::Counter::read).sum()
}

fn inline(fleet: &Fleet, core: usize) -> u64 {
    fleet.shards[core].stats().completions_inline.read()
}

#[test]
fn a_volume_made_and_written_on_one_core_is_read_and_overwritten_on_the_other() {
    let mut fleet = two_cores(WriteCache::None);
    let volume = fleet.create(1, "v", 1 << 20);
    assert_eq!(
        fleet.open(0, "v"),
        Ok(volume),
        "a handle is good on every core"
    );
    let data = pattern(1, 8192);
    fleet.write(1, volume, 0, &data);
    assert_eq!(fleet.read(0, volume, 0, 8192), data);
    assert_eq!(fleet.read(1, volume, 0, 8192), data);
    let other = pattern(2, 4096);
    fleet.write(0, volume, UNIT, &other);
    assert_eq!(fleet.read(1, volume, UNIT, 4096), other);
    assert_eq!(fleet.read(1, volume, 1 << 19, 4096), vec![0; 4096]);
    fleet.settle();
    assert_eq!(fleet.lent(), 0, "every buffer came back");
}

#[test]
fn under_lease_reads_and_pure_overwrites_never_leave_their_core() {
    let mut fleet = two_cores(WriteCache::None);
    let volume = fleet.create(0, "v", 1 << 20);
    fleet.write(0, volume, 0, &pattern(1, 1 << 16));
    fleet.read(1, volume, 0, 4096);
    let (away, here) = (hand_offs(&fleet, 1), inline(&fleet, 1));
    let at_home = inline(&fleet, 0);
    for round in 0..16_u8 {
        let offset = u64::from(round) * UNIT;
        fleet.write(1, volume, offset, &pattern(round, 4096));
        assert_eq!(fleet.read(1, volume, offset, 4096), pattern(round, 4096));
    }
    assert_eq!(hand_offs(&fleet, 1), away, "none of them went home");
    assert_eq!(inline(&fleet, 1), here + 32, "all of them completed inline");
    assert_eq!(inline(&fleet, 0), at_home, "the home saw none of them");
    for round in 0..16_u8 {
        let offset = u64::from(round) * UNIT;
        assert_eq!(fleet.read(0, volume, offset, 4096), pattern(round, 4096));
    }
}

#[test]
fn a_core_without_queues_of_its_own_serves_through_the_home() {
    let mut fleet = Fleet::new(&Makeup {
        has_queues: false,
        ..Makeup::of(2, WriteCache::Volatile)
    });
    let volume = fleet.create(1, "v", 1 << 20);
    let data = pattern(3, 12_288);
    fleet.write(1, volume, UNIT, &data);
    assert_eq!(fleet.read(1, volume, UNIT, 12_288), data);
    let flushed = fleet.run(1, volume, DataOperation::Flush, (0, 0), NONE);
    assert_eq!(flushed, Ok(Durability::Data));
    let by_cause = &fleet.shards[1].stats().hand_offs;
    assert_eq!(by_cause[0].read(), 3, "for want of queues");
}

#[test]
fn a_discard_waits_for_reads_under_lease_on_another_core() {
    let mut fleet = two_cores(WriteCache::None);
    let volume = fleet.create(0, "v", 1 << 20);
    let data = pattern(5, 8192);
    fleet.write(0, volume, 0, &data);
    fleet.read(1, volume, 0, 4096);
    fleet.media.borrow_mut().is_held = true;
    let read = fleet.submit(1, volume, DataOperation::Read, (0, 8192), NONE);
    let discard = fleet.submit(0, volume, DataOperation::Discard, (0, 8192), NONE);
    for _ in 0..50 {
        fleet.poll_all();
    }
    assert!(
        fleet.outcome(0, discard).is_none(),
        "the read still uses the blocks"
    );
    fleet.media.borrow_mut().is_held = false;
    fleet.settle();
    let (result, found) = fleet.outcome(1, read).expect("the read has ended");
    assert_eq!(result, Ok(Durability::None));
    assert_eq!(found[..8192], data, "and saw what was there");
    assert!(fleet.outcome(0, discard).is_some());
    assert_eq!(fleet.read(1, volume, 0, 8192), vec![0; 8192]);
}

#[test]
fn a_discard_on_one_core_is_seen_by_the_other_and_its_blocks_are_used_again() {
    let mut fleet = two_cores(WriteCache::None);
    let size = 16 << 20;
    let first = fleet.create(0, "first", size);
    let second = fleet.create(1, "second", size);
    fleet.write(1, first, 0, &pattern(1, 1 << 20));
    fleet.read(1, first, 0, 4096);
    let discard = (0, 1 << 20);
    let outcome = fleet.run(1, first, DataOperation::Discard, discard, NONE);
    assert!(outcome.is_ok(), "{outcome:?}");
    // Enough to come round to the freed blocks.
    for at in 0..14 {
        fleet.write(0, second, at << 20, &pattern(9, 1 << 20));
    }
    assert_eq!(fleet.read(1, first, 0, 4096), vec![0; 4096]);
    fleet.write(1, first, 0, &pattern(7, 4096));
    for at in 0..14 {
        assert_eq!(
            fleet.read(1, second, at << 20, 1 << 20),
            pattern(9, 1 << 20)
        );
    }
}

#[test]
fn write_zeroes_and_compare_and_write_exclude_the_other_core() {
    let mut fleet = two_cores(WriteCache::None);
    let volume = fleet.create(0, "v", 1 << 20);
    let old = pattern(1, 4096);
    fleet.write(1, volume, 0, &old);
    fleet.read(1, volume, 0, 4096);
    let swap = [old.as_slice(), pattern(2, 4096).as_slice()].concat();
    let with = (Durability::None, swap.as_slice());
    let outcome = fleet.run(0, volume, DataOperation::CompareAndWrite, (0, 4096), with);
    assert!(outcome.is_ok(), "{outcome:?}");
    assert_eq!(fleet.read(1, volume, 0, 4096), pattern(2, 4096));
    let outcome = fleet.run(1, volume, DataOperation::CompareAndWrite, (0, 4096), with);
    assert_eq!(outcome, Err(IoError::Mismatch { offset_bytes: 0 }));
    let zeroed = fleet.run(0, volume, DataOperation::WriteZeroes, (0, 4096), NONE);
    assert!(zeroed.is_ok(), "{zeroed:?}");
    assert_eq!(fleet.read(1, volume, 0, 4096), vec![0; 4096]);
}

#[test]
fn a_durable_overwrite_under_lease_is_forced_to_the_media_and_needs_no_home() {
    let mut fleet = two_cores(WriteCache::Volatile);
    let volume = fleet.create(0, "v", 1 << 20);
    fleet.write(0, volume, 0, &pattern(1, 4096));
    // Until the metadata are durable an overwrite owes more than its data.
    let flushed = fleet.run(0, volume, DataOperation::Flush, (0, 0), NONE);
    assert_eq!(flushed, Ok(Durability::Data));
    fleet.read(1, volume, 0, 4096);
    let away = hand_offs(&fleet, 1);
    let data = pattern(2, 4096);
    let with = (Durability::Data, data.as_slice());
    let outcome = fleet.run(1, volume, DataOperation::Write, (0, 4096), with);
    assert_eq!(outcome, Ok(Durability::Data));
    assert_eq!(hand_offs(&fleet, 1), away);
    let stats = fleet.shards[1].stats();
    assert_eq!(stats.write_through_commands.read(), 1);
    let figures = |core: usize| fleet.shards[core].stats().volumes()[0].clone();
    assert_eq!(figures(1).write_through_commands.read(), 1);
    assert_eq!(
        figures(0).write_through_commands.read(),
        0,
        "not its home's"
    );
    fleet.media.borrow_mut().cut_power();
    assert_eq!(fleet.read(0, volume, 0, 4096), data);
}

#[test]
fn a_durable_overwrite_without_write_through_is_flushed_by_the_home() {
    let mut makeup = Makeup::of(2, WriteCache::Volatile);
    makeup.geometry.supports_write_through = false;
    let mut fleet = Fleet::new(&makeup);
    let volume = fleet.create(0, "v", 1 << 20);
    fleet.write(0, volume, 0, &pattern(1, 4096));
    fleet.read(1, volume, 0, 4096);
    let data = pattern(2, 4096);
    let with = (Durability::Full, data.as_slice());
    let outcome = fleet.run(1, volume, DataOperation::Write, (0, 4096), with);
    assert_eq!(outcome, Ok(Durability::Full));
    let last_write = position(&fleet, Operation::Write);
    let last_flush = position(&fleet, Operation::Flush);
    assert!(last_write < last_flush, "the flush covers the data");
    fleet.media.borrow_mut().cut_power();
    assert_eq!(fleet.read(0, volume, 0, 4096), data);
}

/// Where the last command of a kind stands in the device's log.
fn position(fleet: &Fleet, operation: Operation) -> Option<usize> {
    let media = fleet.media.borrow();
    media
        .log
        .iter()
        .rposition(|(logged, ..)| *logged == operation)
}

#[test]
fn a_shrink_and_a_deletion_take_the_volume_from_the_other_core_first() {
    let mut fleet = two_cores(WriteCache::None);
    let volume = fleet.create(0, "v", 1 << 20);
    fleet.write(0, volume, 0, &pattern(1, 1 << 16));
    fleet.read(1, volume, 1 << 15, 4096);
    fleet.media.borrow_mut().is_held = true;
    let range = (1 << 15, 4096);
    let read = fleet.submit(1, volume, DataOperation::Read, range, NONE);
    let shrink = fleet.start_control(
        0,
        ControlRequest::ResizeVolume {
            volume: named("v"),
            size_bytes: 8192,
            shrink: Shrink::Allow,
        },
    );
    for _ in 0..50 {
        fleet.poll_all();
    }
    assert!(
        fleet.control_outcome(0, shrink).is_none(),
        "the read uses the tail"
    );
    fleet.media.borrow_mut().is_held = false;
    fleet.settle();
    assert!(
        fleet
            .outcome(1, read)
            .is_some_and(|(result, _)| result.is_ok())
    );
    let shrunk = fleet.control_outcome(0, shrink).expect("it has ended");
    assert!(shrunk.is_ok(), "{shrunk:?}");
    let outcome = fleet.run(1, volume, DataOperation::Read, range, NONE);
    assert!(
        matches!(outcome, Err(IoError::OutOfRange { .. })),
        "{outcome:?}"
    );
    assert_eq!(fleet.read(1, volume, 0, 4096), pattern(1, 4096));
    let deleted = fleet.control(
        1,
        ControlRequest::DeleteVolume {
            volume: named("v"),
            request: None,
        },
    );
    assert!(matches!(deleted, Ok(ControlReply::Done)), "{deleted:?}");
    let outcome = fleet.run(1, volume, DataOperation::Read, (0, 4096), NONE);
    assert_eq!(outcome, Err(IoError::UnknownVolume));
    let opened = fleet.open(1, "v");
    assert!(
        matches!(opened, Err(ControlError::UnknownVolume { .. })),
        "{opened:?}"
    );
}

#[test]
fn a_media_error_on_a_guest_names_its_range_and_leaves_other_requests_alone() {
    let mut fleet = two_cores(WriteCache::None);
    let volume = fleet.create(0, "v", 1 << 20);
    fleet.write(0, volume, 0, &pattern(1, 1 << 16));
    fleet.read(1, volume, 0, 4096);
    let read_at = {
        let media = fleet.media.borrow();
        let (_, lba, _) = *media.log.last().expect("the read");
        lba
    };
    fleet.media.borrow_mut().faults.push(Fault {
        operation: Operation::Read,
        lba: read_at + 2..read_at + 3,
        kind: ErrorKind::Media,
        times: 1,
    });
    let range = (2 * UNIT, UNIT);
    let outcome = fleet.run(1, volume, DataOperation::Read, range, NONE);
    let Err(IoError::Device {
        offset_bytes,
        length_bytes,
        ..
    }) = outcome
    else {
        panic!("a media error is told: {outcome:?}");
    };
    assert_eq!((offset_bytes, length_bytes), range);
    assert_eq!(
        fleet.read(1, volume, UNIT, 4096),
        pattern(1, 1 << 16)[4096..8192]
    );
}

#[test]
fn a_full_way_between_cores_delays_and_loses_nothing() {
    let mut fleet = Fleet::new(&Makeup {
        room: 1,
        ..Makeup::of(3, WriteCache::None)
    });
    let volume = fleet.create(2, "v", 16 << 20);
    let mut tokens = Vec::new();
    for index in 0..30_u64 {
        let core = usize::try_from(index % 2 + 1).expect("small");
        let range = (index * UNIT, UNIT);
        let data = pattern(u8::try_from(index).expect("small"), 4096);
        let with = (Durability::Data, data.as_slice());
        let token = fleet.submit(core, volume, DataOperation::Write, range, with);
        tokens.push((core, token));
    }
    fleet.settle();
    for (core, token) in tokens {
        let (result, _) = fleet.outcome(core, token).expect("every write has ended");
        assert_eq!(result, Ok(Durability::Data));
    }
    for index in 0..30_u64 {
        let expected = pattern(u8::try_from(index).expect("small"), 4096);
        assert_eq!(fleet.read(2, volume, index * UNIT, 4096), expected);
    }
    assert_eq!(fleet.lent(), 0);
}

#[test]
fn after_a_failed_flush_no_core_promises_durability() {
    let mut fleet = two_cores(WriteCache::Volatile);
    let volume = fleet.create(0, "v", 1 << 20);
    fleet.write(0, volume, 0, &pattern(1, 4096));
    let flushed = fleet.run(0, volume, DataOperation::Flush, (0, 0), NONE);
    assert_eq!(flushed, Ok(Durability::Data));
    fleet.read(1, volume, 0, 4096);
    fleet.media.borrow_mut().faults.push(Fault {
        operation: Operation::Flush,
        lba: 0..1,
        kind: ErrorKind::Media,
        times: 1,
    });
    let flushed = fleet.run(1, volume, DataOperation::Flush, (0, 0), NONE);
    assert_eq!(flushed, Err(IoError::FlushFailed));
    fleet.poll_all();
    let with = (Durability::Data, pattern(2, 4096));
    let with = (with.0, with.1.as_slice());
    let outcome = fleet.run(1, volume, DataOperation::Write, (0, 4096), with);
    assert_eq!(outcome, Err(IoError::FlushFailed));
}

#[test]
fn a_guest_closes_when_its_requests_have_ended_and_gives_its_queues_back() {
    let mut fleet = two_cores(WriteCache::None);
    let volume = fleet.create(0, "v", 1 << 20);
    fleet.write(1, volume, 0, &pattern(1, 4096));
    fleet.read(1, volume, 0, 4096);
    fleet.media.borrow_mut().is_held = true;
    let read = fleet.submit(1, volume, DataOperation::Read, (0, 4096), NONE);
    let pool = fleet.pool;
    fleet.shards[1].close_guest(pool);
    assert!(
        fleet.shards[1].detach_guest(pool).is_none(),
        "a read is under way"
    );
    let late = fleet.submit(1, volume, DataOperation::Read, (0, 4096), NONE);
    fleet.media.borrow_mut().is_held = false;
    fleet.settle();
    assert!(
        fleet
            .outcome(1, read)
            .is_some_and(|(result, _)| result.is_ok())
    );
    let (refused, _) = fleet.outcome(1, late).expect("it was refused");
    assert_eq!(refused, Err(IoError::UnknownVolume));
    let devices: Option<Vec<MemoryDevice>> = fleet.shards[1].detach_guest(pool);
    assert_eq!(devices.map(|devices| devices.len()), Some(1));
    // The home goes on, also with a recall that nobody is there to heed.
    let discard = fleet.run(0, volume, DataOperation::Discard, (0, 4096), NONE);
    assert!(discard.is_ok(), "{discard:?}");
}

#[test]
fn every_core_lists_the_pools_of_all() {
    let mut fleet = two_cores(WriteCache::None);
    for core in 0..2 {
        let listed = fleet.control(core, ControlRequest::ListPools);
        let Ok(ControlReply::Pools(pools)) = listed else {
            panic!("not a list: {listed:?}");
        };
        let names: Vec<_> = pools.iter().map(|pool| pool.name.as_str()).collect();
        assert_eq!(names, ["tank"]);
    }
}

#[test]
fn a_durable_write_that_loses_its_lease_midway_is_no_less_durable() {
    let mut makeup = Makeup::of(2, WriteCache::Volatile);
    makeup.geometry.supports_write_through = false;
    let mut fleet = Fleet::new(&makeup);
    let volume = fleet.create(0, "v", 8 << 20);
    for at in 0..4 {
        fleet.write(0, volume, at << 20, &pattern(1, 1 << 20));
    }
    fleet.read(1, volume, 0, 4096);
    fleet.settle();
    fleet.media.borrow_mut().is_held = true;
    // More commands than the queue has slots: the last write waits with part of it submitted.
    let data = pattern(2, 1 << 20);
    let writes: Vec<_> = (0..4)
        .map(|at| {
            let with = (Durability::Data, data.as_slice());
            let range = (at << 20, 1 << 20);
            fleet.submit(1, volume, DataOperation::Write, range, with)
        })
        .collect();
    let range = (4 << 20) - UNIT;
    let discard = fleet.submit(0, volume, DataOperation::Discard, (range, UNIT), NONE);
    for _ in 0..20 {
        fleet.poll_all();
    }
    fleet.media.borrow_mut().is_held = false;
    fleet.settle();
    for write in writes {
        let (result, _) = fleet.outcome(1, write).expect("it has ended");
        assert_eq!(result, Ok(Durability::Data));
    }
    assert!(
        fleet
            .outcome(0, discard)
            .is_some_and(|(result, _)| result.is_ok())
    );
    assert!(hand_offs(&fleet, 1) > 0);
    fleet.media.borrow_mut().cut_power();
    for at in 0..3 {
        assert_eq!(fleet.read(0, volume, at << 20, 1 << 20), data);
    }
    let last = fleet.read(0, volume, 3 << 20, 1 << 20);
    let border = (1 << 20) - 4096;
    assert_eq!(
        last[..border],
        data[..border],
        "all but what was discarded meanwhile"
    );
}
