//! Whatever runs out, what does not need it goes on, and what waits for it is woken.

use std::ops::Range;
use std::time::Duration;

use lode_block::{Durability, Geometry, Operation, WriteCache};
use lode_engine::{ControlRequest, DataOperation, ShardLimits, Shrink, Token, VolumeHandle};
use lode_units::BlockSize;

use crate::device::geometry;
use crate::rig::{Rig, named, pattern};

/// The blocks of the device that hold its superblocks' first copies and the journal: 2 + 256 units
/// of 8 blocks (docs/format.md §3).
const JOURNAL: Range<u64> = 0..(2 + 256) * 8;

fn device() -> Geometry {
    geometry(BlockSize::B512, WriteCache::None)
}

fn volume_with(rig: &mut Rig, written_bytes: usize) -> VolumeHandle {
    let volume = rig.create("v", 32 << 20, BlockSize::B4096);
    for offset in (0..written_bytes).step_by(1 << 20) {
        let length = (written_bytes - offset).min(1 << 20);
        rig.write(volume, offset as u64, &pattern(1, length));
    }
    rig.flush(volume).expect("a flush succeeds");
    rig.until(|rig| !rig.shard.is_busy());
    volume
}

fn write(rig: &mut Rig, volume: VolumeHandle, unit: u64, durability: Durability) -> Token {
    let data = pattern(2, 4096);
    rig.submit(
        volume,
        DataOperation::Write,
        (unit * 4096, 4096),
        durability,
        &data,
    )
}

/// Polls until `count` requests have ended, all of them well.
fn finish(rig: &mut Rig, count: usize) -> Vec<Token> {
    let mut ended = Vec::new();
    for _ in 0..200_000 {
        for (token, result) in rig.harvest() {
            result.expect("it only had to wait");
            ended.push(token);
        }
        if ended.len() == count {
            return ended;
        }
        rig.poll();
    }
    panic!("{} of {count} ended", ended.len());
}

#[test]
fn a_thousand_deferrable_requests_pass_a_bound_of_one_on_the_journals_own_queue() {
    let narrow = Geometry {
        queue_depth_max: 2,
        ..device()
    };
    let limits = ShardLimits {
        deferrable_max: 1,
        ..ShardLimits::default()
    };
    let mut rig = Rig::crowded(narrow, limits);
    let volume = volume_with(&mut rig, 0);
    for unit in 0..1000 {
        write(&mut rig, volume, unit, Durability::Data);
    }
    assert_eq!(rig.shard.stats().requests_held.read(), 0, "not shown yet");
    rig.poll();
    assert!(rig.shard.stats().requests_held.read() > 900);
    let mut most = 0;
    let mut ended = 0;
    while ended < 1000 {
        rig.poll();
        most = most.max(rig.shard.stats().requests_deferrable.read());
        ended += rig
            .harvest()
            .into_iter()
            .filter(|(_, result)| result.is_ok())
            .count();
    }
    assert_eq!(most, 1, "the bound holds all the time");
    assert!(rig.shard.stats().holds.read() >= 999);
    assert_eq!(rig.shard.requests_in_flight(), 0);
}

#[test]
fn overwrites_and_reads_flow_while_the_metadata_stage_stands_still_for_a_second() {
    let limits = ShardLimits {
        requests_max: 64,
        deferrable_max: 16,
        waiting_max: 8192,
        ..ShardLimits::default()
    };
    let mut rig = Rig::crowded(device(), limits);
    let volume = volume_with(&mut rig, 1 << 20);
    rig.media.borrow_mut().held = JOURNAL;
    let allocating: Vec<_> = (0..500)
        .map(|unit| write(&mut rig, volume, 1000 + unit, Durability::Data))
        .collect();
    let mut overwrites = 0;
    for _ in 0..1000 {
        let wanted: Vec<_> = (0..8)
            .flat_map(|unit| {
                let range = (unit * 4096, 4096);
                let read = rig.submit(volume, DataOperation::Read, range, Durability::None, &[]);
                [write(&mut rig, volume, 128 + unit, Durability::Data), read]
            })
            .collect();
        overwrites += wanted.len();
        rig.poll_after(Duration::from_millis(1));
        rig.poll_after(Duration::ZERO);
        let ended = rig.harvest();
        assert_eq!(ended.len(), wanted.len(), "within the millisecond");
        for (token, result) in ended {
            result.expect("an overwrite owes nothing");
            assert!(wanted.contains(&token), "exactly the deferrable ones wait");
        }
    }
    assert_eq!(overwrites, 16_000);
    let stats = rig.shard.stats();
    assert_eq!(stats.requests_deferrable.read(), 16);
    assert_eq!(stats.requests_held.read(), 500 - 16);
    rig.media.borrow_mut().held = 0..0;
    let mut ended = finish(&mut rig, 500);
    ended.sort_by_key(|token| token.0);
    assert_eq!(ended, allocating);
}

#[test]
fn without_the_bound_the_same_standstill_stops_overwrites_as_well() {
    let limits = ShardLimits {
        requests_max: 64,
        deferrable_max: 64,
        waiting_max: 8192,
        ..ShardLimits::default()
    };
    let mut rig = Rig::crowded(device(), limits);
    let volume = volume_with(&mut rig, 1 << 20);
    rig.media.borrow_mut().held = JOURNAL;
    for unit in 0..500 {
        write(&mut rig, volume, 1000 + unit, Durability::Data);
    }
    write(&mut rig, volume, 0, Durability::Data);
    for _ in 0..1000 {
        rig.poll_after(Duration::from_millis(1));
    }
    assert!(rig.harvest().is_empty(), "the check above can fail");
    rig.media.borrow_mut().held = 0..0;
    finish(&mut rig, 501);
}

#[test]
fn control_requests_get_a_slot_when_clients_have_taken_theirs() {
    let limits = ShardLimits {
        requests_max: 8,
        deferrable_max: 4,
        waiting_max: 4096,
        ..ShardLimits::default()
    };
    let mut rig = Rig::crowded(device(), limits);
    let volume = volume_with(&mut rig, 1 << 20);
    let small = rig.create("small", 4096 + 512, BlockSize::B512);
    rig.write(small, 0, &pattern(3, 4096 + 512));
    // Some client's requests fill all slots, and for as long as the resize takes.
    rig.media.borrow_mut().held = JOURNAL;
    for unit in 0..100 {
        write(&mut rig, volume, 1000 + unit, Durability::Data);
        write(&mut rig, volume, unit, Durability::None);
    }
    let token = rig.token();
    let shrink = ControlRequest::ResizeVolume {
        volume: named("small"),
        size_bytes: 4096 - 512,
        shrink: Shrink::Allow,
    };
    rig.shard.control(token, shrink);
    for _ in 0..100 {
        rig.poll();
    }
    rig.media.borrow_mut().held = 0..0;
    rig.until(|rig| !rig.shard.is_busy());
    rig.control_outcome(token).expect("it found a slot");
    finish(&mut rig, 200);
}

#[test]
fn every_slot_in_use_makes_requests_wait_and_each_is_woken() {
    let limits = ShardLimits {
        requests_max: 2,
        deferrable_max: 1,
        waiting_max: 8192,
        ..ShardLimits::default()
    };
    let mut rig = Rig::crowded(device(), limits);
    let volume = volume_with(&mut rig, 1 << 20);
    for unit in 0..600 {
        write(&mut rig, volume, unit, Durability::Data);
        let range = (unit % 256 * 4096, 4096);
        rig.submit(volume, DataOperation::Read, range, Durability::None, &[]);
    }
    rig.submit(
        volume,
        DataOperation::Discard,
        (0, 1 << 20),
        Durability::Data,
        &[],
    );
    rig.submit(volume, DataOperation::Flush, (0, 0), Durability::None, &[]);
    finish(&mut rig, 1202);
    assert!(rig.shard.stats().turn_waits.read() > 1000);
}

#[test]
fn more_requests_than_may_wait_are_given_back_and_taken_later() {
    let limits = ShardLimits {
        requests_max: 2,
        deferrable_max: 1,
        waiting_max: 4,
        ..ShardLimits::default()
    };
    let mut rig = Rig::crowded(device(), limits);
    let names = ["a", "b", "c"];
    let volumes = names.map(|name| rig.create(name, 1 << 20, BlockSize::B4096));
    let mut refused = None;
    let mut taken = 0;
    for index in 0..20 {
        let request = lode_engine::DataRequest {
            token: Token(10_000 + index),
            volume: volumes[usize::try_from(index % 3).expect("below 3")],
            operation: DataOperation::Discard,
            durability: Durability::None,
            offset_bytes: 0,
            length_bytes: 4096,
            buffer: None,
        };
        match rig.shard.submit(request) {
            Ok(()) => taken += 1,
            Err(request) => {
                refused = Some(request);
                break;
            }
        }
    }
    let refused = refused.expect("there is a bound");
    let throttled = rig.shard.stats().throttle_refusals.read();
    let throttled = usize::try_from(throttled).expect("few");
    for _ in 0..1000 {
        rig.poll();
    }
    let ended = rig.harvest();
    assert_eq!(ended.len(), taken);
    assert_eq!(
        ended.iter().filter(|(_, result)| result.is_err()).count(),
        throttled
    );
    rig.shard.submit(refused).expect("there is room again");
    finish(&mut rig, 1);
}

#[test]
fn comparisons_share_few_buffers_and_all_have_their_turn() {
    let mut rig = Rig::crowded(device(), ShardLimits::default());
    let volume = volume_with(&mut rig, 1 << 20);
    let expected = pattern(1, 1 << 20);
    for unit in 0..200_usize {
        let at = unit * 4096;
        let halves = [&expected[at..at + 4096], &pattern(5, 4096)].concat();
        let operation = DataOperation::CompareAndWrite;
        let range = (at as u64, 4096);
        // Two halves of 4 KiB need a buffer of 8 KiB, of which there are 32.
        rig.submit(volume, operation, range, Durability::None, &halves);
        if unit % 32 == 31 {
            finish(&mut rig, 32);
        }
    }
    finish(&mut rig, 200 % 32);
    assert_eq!(rig.read(volume, 199 * 4096, 4096), pattern(5, 4096));
}

#[test]
fn the_ends_of_small_blocks_share_few_buffers_and_all_have_their_turn() {
    let wide = geometry(BlockSize::B4096, WriteCache::None);
    let mut rig = Rig::crowded(wide, ShardLimits::default());
    let volume = rig.create("v", 4 << 20, BlockSize::B512);
    for unit in 0..1000_u64 {
        let range = (unit * 4096 + 512, 512);
        let data = pattern(4, 512);
        rig.submit(volume, DataOperation::Write, range, Durability::None, &data);
    }
    finish(&mut rig, 1000);
    assert_eq!(rig.read(volume, 999 * 4096 + 512, 512), pattern(4, 512));
}

#[test]
fn the_journal_goes_on_when_data_have_filled_the_devices_queue() {
    let narrow = Geometry {
        queue_depth_max: 8,
        ..device()
    };
    let mut rig = Rig::crowded(narrow, ShardLimits::default());
    let volume = volume_with(&mut rig, 1 << 20);
    // One new block is written and waits for the journal, then data fill the queue and stay.
    let durable = write(&mut rig, volume, 1000, Durability::Data);
    rig.media.borrow_mut().held = JOURNAL;
    for _ in 0..10 {
        rig.poll();
    }
    rig.media.borrow_mut().held = JOURNAL.end..u64::MAX;
    for unit in 0..100 {
        write(&mut rig, volume, unit, Durability::None);
    }
    for _ in 0..100 {
        rig.poll();
    }
    let ended: Vec<_> = rig.harvest().into_iter().map(|(token, _)| token).collect();
    assert_eq!(ended, [durable], "past a hundred writes");
    assert!(rig.shard.stats().queue_full_waits.read() > 0);
    rig.media.borrow_mut().held = 0..0;
    finish(&mut rig, 100);
}

#[test]
fn a_flush_goes_on_when_data_have_filled_the_devices_queue() {
    let narrow = Geometry {
        queue_depth_max: 8,
        ..geometry(BlockSize::B512, WriteCache::Volatile)
    };
    let mut rig = Rig::crowded(narrow, ShardLimits::default());
    let volume = volume_with(&mut rig, 1 << 20);
    let flushes = rig.media.borrow().count(Operation::Flush);
    rig.media.borrow_mut().held = JOURNAL.end..u64::MAX;
    for unit in 0..100 {
        write(&mut rig, volume, unit, Durability::None);
    }
    let flush = rig.submit(volume, DataOperation::Flush, (0, 0), Durability::None, &[]);
    for _ in 0..100 {
        rig.poll();
    }
    let ended: Vec<_> = rig.harvest().into_iter().map(|(token, _)| token).collect();
    assert_eq!(ended, [flush]);
    assert_eq!(rig.media.borrow().count(Operation::Flush), flushes + 1);
    rig.media.borrow_mut().held = 0..0;
    finish(&mut rig, 100);
}
