//! Several cores share one volume's limits, and none stands still because another does.

use std::time::Duration;

use lode_block::{Durability, WriteCache};
use lode_engine::{ControlRequest, DataOperation, LimitChange, ShardLimits, Token, VolumeHandle};

use crate::fleet::{Fleet, Makeup};
use crate::rig::{named, pattern};

const UNIT: u64 = 4096;
const MILLISECOND: Duration = Duration::from_millis(1);

fn fleet(cores: usize, limits: ShardLimits) -> Fleet {
    Fleet::new(&Makeup {
        limits,
        small_buffers: 2048,
        ..Makeup::of(cores, WriteCache::None)
    })
}

/// A volume whose first units are written, leased to every core.
fn shared(fleet: &mut Fleet, units: u64) -> VolumeHandle {
    let volume = fleet.create(0, "v", 32 << 20);
    for unit in 0..units {
        fleet.write(0, volume, unit * UNIT, &pattern(1, 4096));
    }
    // Until its mapping is durable an overwrite that must be owes a commit.
    let with = (Durability::None, [].as_slice());
    let flushed = fleet.run(0, volume, DataOperation::Flush, (0, 0), with);
    flushed.expect("a flush succeeds");
    for core in 1..fleet.shards.len() {
        fleet.read(core, volume, 0, UNIT);
    }
    fleet.settle();
    volume
}

fn limit(fleet: &mut Fleet, core: usize, iops_max: u64) {
    let change = LimitChange {
        iops_max: Some(iops_max),
        ..LimitChange::default()
    };
    let limited = fleet.control(
        core,
        ControlRequest::LimitVolume {
            volume: named("v"),
            change,
        },
    );
    limited.expect("it is limited");
}

fn read(fleet: &mut Fleet, core: usize, volume: VolumeHandle, unit: u64) -> Token {
    let range = (unit * UNIT, UNIT);
    fleet.submit(
        core,
        volume,
        DataOperation::Read,
        range,
        (Durability::None, &[]),
    )
}

fn write(fleet: &mut Fleet, core: usize, volume: VolumeHandle, unit: u64) -> Token {
    let data = pattern(2, 4096);
    let range = (unit * UNIT, UNIT);
    let with = (Durability::Data, data.as_slice());
    fleet.submit(core, volume, DataOperation::Write, range, with)
}

/// Lets so many milliseconds pass on every core; how many requests ended on each.
fn pass(fleet: &mut Fleet, milliseconds: u32) -> Vec<usize> {
    let mut ended = vec![0; fleet.shards.len()];
    for _ in 0..milliseconds {
        fleet.now += MILLISECOND;
        fleet.poll_all();
        fleet.poll_all();
        for (core, ended) in ended.iter_mut().enumerate() {
            for (_, result) in fleet.harvest(core) {
                result.expect("it only had to wait");
                *ended += 1;
            }
        }
    }
    ended
}

#[test]
fn cores_share_the_limit_of_a_volume_and_each_has_its_part() {
    let mut fleet = fleet(3, ShardLimits::default());
    let volume = shared(&mut fleet, 16);
    limit(&mut fleet, 0, 300);
    for index in 0..200 {
        for core in 0..3 {
            read(&mut fleet, core, volume, index % 16);
        }
    }
    let ended = pass(&mut fleet, 1000);
    let all: usize = ended.iter().sum();
    assert!((295..=305).contains(&all), "{ended:?}");
    assert!(
        ended.iter().all(|ended| (95..=105).contains(ended)),
        "{ended:?}"
    );
}

#[test]
fn a_limit_changed_on_one_core_is_heeded_by_what_waits_on_another() {
    let mut fleet = fleet(2, ShardLimits::default());
    let volume = shared(&mut fleet, 16);
    limit(&mut fleet, 1, 1);
    for index in 0..10 {
        read(&mut fleet, 1, volume, index);
    }
    assert_eq!(pass(&mut fleet, 10), [0, 1]);
    let wake = fleet.shards[1].next_deadline().expect("something waits");
    let sleep = wake.saturating_duration_since(fleet.now);
    assert!(
        sleep <= MILLISECOND * 100,
        "it looks at the limits: {sleep:?}"
    );
    limit(&mut fleet, 0, 0);
    assert_eq!(pass(&mut fleet, 1), [0, 9]);
}

#[test]
fn what_a_core_sends_home_is_charged_once() {
    let mut fleet = fleet(2, ShardLimits::default());
    let volume = shared(&mut fleet, 1);
    limit(&mut fleet, 0, 100);
    // None of these is leased: all go home, where they wait no second time.
    for unit in 0..50 {
        write(&mut fleet, 1, volume, 100 + unit);
    }
    let ended = pass(&mut fleet, 500);
    assert!((49..=50).contains(&ended[1]), "{ended:?}");
}

#[test]
fn overwrites_on_one_core_flow_while_the_home_stands_still_for_a_second() {
    let limits = ShardLimits {
        requests_max: 64,
        deferrable_max: 16,
        waiting_max: 8192,
        ..ShardLimits::default()
    };
    let mut fleet = fleet(2, limits);
    let volume = shared(&mut fleet, 16);
    let deferrable: Vec<_> = (0..500)
        .map(|unit| write(&mut fleet, 1, volume, 1000 + unit))
        .collect();
    let mut flowed = 0;
    for _ in 0..1000 {
        let wanted: Vec<_> = (0..8)
            .flat_map(|unit| {
                let overwrite = write(&mut fleet, 1, volume, unit);
                [overwrite, read(&mut fleet, 1, volume, 8 + unit)]
            })
            .collect();
        fleet.now += MILLISECOND;
        fleet.poll(1);
        fleet.poll(1);
        let ended = fleet.harvest(1);
        assert_eq!(ended.len(), wanted.len(), "within the millisecond");
        for (token, result) in ended {
            result.expect("an overwrite under lease owes nothing");
            assert!(wanted.contains(&token), "exactly the deferrable ones wait");
        }
        flowed += wanted.len();
    }
    assert_eq!(flowed, 16_000);
    let mut ended = Vec::new();
    for _ in 0..100_000 {
        fleet.poll_all();
        ended.extend(fleet.harvest(1).into_iter().map(|(token, _)| token));
        if ended.len() == deferrable.len() {
            break;
        }
    }
    ended.sort_by_key(|token| token.0);
    assert_eq!(ended, deferrable, "the home goes on, and so do they");
}

#[test]
fn errands_of_other_cores_leave_a_home_with_few_slots_to_its_own_overwrites() {
    let limits = ShardLimits {
        requests_max: 16,
        deferrable_max: 4,
        waiting_max: 8192,
        ..ShardLimits::default()
    };
    let mut fleet = fleet(4, limits);
    let volume = shared(&mut fleet, 16);
    // The journal stands still: what comes from the other cores waits at home.
    fleet.media.borrow_mut().held = 0..2 + 256;
    for unit in 0..100 {
        for core in 1..4 {
            write(&mut fleet, core, volume, 1000 + unit * 4 + core as u64);
        }
    }
    pass(&mut fleet, 5);
    for _ in 0..100 {
        for unit in 0..8 {
            write(&mut fleet, 0, volume, unit);
        }
        assert_eq!(pass(&mut fleet, 1), [8, 0, 0, 0]);
    }
    fleet.media.borrow_mut().held = 0..0;
    let mut ended = 0;
    for _ in 0..100_000 {
        ended += pass(&mut fleet, 1).iter().sum::<usize>();
        if ended == 300 {
            break;
        }
    }
    assert_eq!(ended, 300, "and all of them end");
}
