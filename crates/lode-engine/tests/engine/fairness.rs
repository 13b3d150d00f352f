//! Volumes that contend for slots or for a device's queue get equal turns.

use lode_block::{Durability, Geometry, WriteCache};
use lode_engine::{DataOperation, ShardLimits, Token, VolumeHandle};
use lode_units::BlockSize;

use crate::device::geometry;
use crate::rig::{Rig, pattern};

/// A device that takes few commands at once.
fn narrow() -> Geometry {
    Geometry {
        queue_depth_max: 8,
        ..geometry(BlockSize::B512, WriteCache::None)
    }
}

fn written(rig: &mut Rig, name: &str) -> VolumeHandle {
    let volume = rig.create(name, 1 << 20, BlockSize::B4096);
    rig.write(volume, 0, &pattern(1, 1 << 20));
    rig.until(|rig| !rig.shard.is_busy());
    volume
}

fn read(rig: &mut Rig, volume: VolumeHandle, index: u64) -> Token {
    let range = (index % 256 * 4096, 4096);
    rig.submit(volume, DataOperation::Read, range, Durability::None, &[])
}

/// How many others ended before `wanted` did, when `rig` is polled until then.
fn ended_before(rig: &mut Rig, wanted: Token) -> usize {
    let mut before = 0;
    for _ in 0..10_000 {
        for (token, result) in rig.harvest() {
            result.expect("a read succeeds");
            if token == wanted {
                return before;
            }
            before += 1;
        }
        rig.poll();
    }
    panic!("it never ended");
}

/// A volume with two thousand requests queued, then one request of another.
fn one_behind_two_thousand(limits: ShardLimits) -> usize {
    let mut rig = Rig::crowded(narrow(), limits);
    let greedy = written(&mut rig, "greedy");
    let modest = written(&mut rig, "modest");
    for index in 0..2000 {
        read(&mut rig, greedy, index);
    }
    let wanted = read(&mut rig, modest, 0);
    let before = ended_before(&mut rig, wanted);
    rig.until(|rig| !rig.shard.is_busy());
    assert_eq!(rig.shard.requests_in_flight(), 0);
    before
}

#[test]
fn one_request_does_not_wait_for_the_two_thousand_of_another_volume_in_a_device_queue() {
    let before = one_behind_two_thousand(ShardLimits::default());
    // Those in the queue already, and a turn of the other volume.
    assert!(before <= 20, "{before} went first");
}

#[test]
fn one_request_does_not_wait_for_the_two_thousand_of_another_volume_before_the_slots() {
    let before = one_behind_two_thousand(ShardLimits {
        requests_max: 16,
        deferrable_max: 8,
        waiting_max: 8192,
        ..ShardLimits::default()
    });
    // Those with a slot already, and a turn of the other volume.
    assert!(before <= 28, "{before} went first");
}

#[test]
fn two_volumes_with_full_queues_proceed_side_by_side() {
    let mut rig = Rig::crowded(
        narrow(),
        ShardLimits {
            requests_max: 32,
            deferrable_max: 16,
            waiting_max: 8192,
            ..ShardLimits::default()
        },
    );
    let volumes = [written(&mut rig, "a"), written(&mut rig, "b")];
    for index in 0..1000 {
        read(&mut rig, volumes[0], index);
    }
    let second: Vec<_> = (0..1000)
        .map(|index| read(&mut rig, volumes[1], index))
        .collect();
    let mut ended = [0_usize; 2];
    let mut apart = 0;
    while ended != [1000; 2] {
        rig.poll();
        for (token, result) in rig.harvest() {
            result.expect("a read succeeds");
            ended[usize::from(second.contains(&token))] += 1;
        }
        if ended[0] < 1000 {
            apart = apart.max(ended[0].saturating_sub(ended[1]));
        }
    }
    // The first volume had all slots when the second came; since then they took turns.
    assert!(apart <= 32 + 8, "{apart} apart");
}
