//! A volume does no more than its limits say, and what waits for them is in nobody's way.

use std::time::Duration;

use lode_block::{Durability, WriteCache};
use lode_engine::{
    ControlReply, ControlRequest, DataOperation, IoError, LimitChange, ShardLimits, Token,
    VolumeHandle,
};
use lode_extent::VolumeLimits;
use lode_units::BlockSize;

use crate::device::geometry;
use crate::rig::{Rig, named, pattern, spec};

const MILLISECOND: Duration = Duration::from_millis(1);

fn rig(limits: ShardLimits) -> Rig {
    Rig::crowded(geometry(BlockSize::B512, WriteCache::None), limits)
}

/// A volume whose first MiB is written, and which is limited from then on.
fn limited(rig: &mut Rig, name: &str, change: LimitChange) -> VolumeHandle {
    let volume = rig.create(name, 1 << 20, BlockSize::B4096);
    rig.write(volume, 0, &pattern(1, 1 << 20));
    rig.until(|rig| !rig.shard.is_busy());
    limit(rig, name, change);
    volume
}

fn limit(rig: &mut Rig, name: &str, change: LimitChange) -> VolumeLimits {
    let reply = rig.control(ControlRequest::LimitVolume {
        volume: named(name),
        change,
    });
    match reply {
        Ok(ControlReply::Volume(status)) => status.info.limits,
        other => panic!("{other:?}"),
    }
}

const fn operations(iops_max: u64) -> LimitChange {
    LimitChange {
        iops_max: Some(iops_max),
        bandwidth_max_bytes: None,
        burst_ms: None,
    }
}

fn submit_reads(rig: &mut Rig, volume: VolumeHandle, count: u64) -> Vec<Token> {
    (0..count)
        .map(|index| {
            let range = (index % 256 * 4096, 4096);
            rig.submit(volume, DataOperation::Read, range, Durability::None, &[])
        })
        .collect()
}

/// Lets so many milliseconds pass; who ended, in order.
fn pass(rig: &mut Rig, milliseconds: u32) -> Vec<Token> {
    let mut ended = Vec::new();
    for _ in 0..milliseconds {
        rig.poll_after(MILLISECOND);
        rig.poll_after(Duration::ZERO);
        for (token, result) in rig.harvest() {
            result.expect("it only had to wait");
            ended.push(token);
        }
    }
    ended
}

#[test]
fn a_limited_volume_does_its_operations_a_second_in_order_and_no_more() {
    let mut rig = rig(ShardLimits::default());
    let volume = limited(&mut rig, "v", operations(100));
    let tokens = submit_reads(&mut rig, volume, 50);
    let first = pass(&mut rig, 100);
    assert!((10..=12).contains(&first.len()), "{}", first.len());
    let rest = pass(&mut rig, 400);
    assert_eq!([first, rest].concat(), tokens);
    let stats = rig.shard.stats();
    let volumes = stats.volumes();
    let waited = volumes[0].throttle_wait.snapshot();
    assert_eq!(waited.count(), 49, "all but the first");
    let sum = Duration::from_nanos(waited.sum_nanoseconds);
    let expected = MILLISECOND * 10 * (1..50).sum::<u32>();
    assert!(
        sum >= expected && sum <= expected + MILLISECOND * 100,
        "{sum:?}"
    );
}

#[test]
fn a_limit_on_bytes_counts_reads_and_writes_together() {
    let mut rig = rig(ShardLimits::default());
    let change = LimitChange {
        bandwidth_max_bytes: Some(40 * 4096),
        ..LimitChange::default()
    };
    let volume = limited(&mut rig, "v", change);
    for index in 0..20_u64 {
        let range = (index * 4096, 4096);
        rig.submit(volume, DataOperation::Read, range, Durability::None, &[]);
        let data = pattern(2, 4096);
        rig.submit(volume, DataOperation::Write, range, Durability::None, &data);
    }
    let half = pass(&mut rig, 500).len();
    assert!((19..=21).contains(&half), "{half}");
    assert_eq!(half + pass(&mut rig, 510).len(), 40);
}

#[test]
fn a_burst_is_what_was_saved_up_and_no_more() {
    let mut rig = rig(ShardLimits::default());
    let change = LimitChange {
        burst_ms: Some(200),
        ..operations(100)
    };
    let volume = limited(&mut rig, "v", change);
    pass(&mut rig, 5000);
    submit_reads(&mut rig, volume, 60);
    let at_once = pass(&mut rig, 1).len();
    assert_eq!(
        at_once, 21,
        "200 ms at 100 a second, and the one that is always allowed"
    );
    let then = pass(&mut rig, 100).len();
    assert!((9..=11).contains(&then), "{then}");
}

#[test]
fn what_waits_for_a_limit_holds_no_slot_and_delays_nobody_else() {
    let mut rig = rig(ShardLimits {
        requests_max: 8,
        deferrable_max: 4,
        waiting_max: 256,
        ..ShardLimits::default()
    });
    let slow = limited(&mut rig, "slow", operations(1));
    let fast = limited(&mut rig, "fast", LimitChange::default());
    submit_reads(&mut rig, slow, 100);
    for _ in 0..50 {
        let tokens = submit_reads(&mut rig, fast, 4);
        let ended = pass(&mut rig, 1);
        assert!(tokens.iter().all(|token| ended.contains(token)));
    }
    assert!(rig.shard.stats().requests_in_flight.read() == 0);
    assert_eq!(rig.shard.stats().requests_waiting.read(), 99);
}

#[test]
fn a_core_with_nothing_but_limited_requests_sleeps_until_the_next_may_go() {
    let mut rig = rig(ShardLimits::default());
    let volume = limited(&mut rig, "v", operations(20));
    submit_reads(&mut rig, volume, 2);
    rig.poll();
    assert_eq!(rig.harvest().len(), 1);
    assert!(!rig.shard.is_busy(), "it may sleep");
    let due = rig.shard.next_deadline().expect("a moment to wake at");
    let sleep = due.saturating_duration_since(rig.now());
    assert!(
        sleep > MILLISECOND * 40 && sleep <= MILLISECOND * 50,
        "{sleep:?}"
    );
    rig.poll_after(sleep);
    rig.poll();
    assert_eq!(rig.harvest().len(), 1, "awake in time");
    assert_eq!(rig.shard.requests_in_flight(), 0);
}

#[test]
fn too_many_waiting_requests_of_one_volume_are_refused_and_another_is_served() {
    let mut rig = rig(ShardLimits {
        waiting_max: 64,
        ..ShardLimits::default()
    });
    let slow = limited(&mut rig, "slow", operations(1));
    let other = limited(&mut rig, "other", LimitChange::default());
    submit_reads(&mut rig, slow, 1 + 32 + 5);
    rig.poll();
    rig.poll();
    let refused: Vec<_> = rig
        .harvest()
        .into_iter()
        .filter_map(|(_, result)| result.err())
        .collect();
    assert_eq!(refused, vec![IoError::Throttled { waiting_max: 32 }; 5]);
    assert_eq!(rig.shard.stats().throttle_refusals.read(), 5);
    assert_eq!(rig.read(other, 0, 4096), pattern(1, 4096));
}

#[test]
fn what_waits_for_a_limit_keeps_few_buffers_from_others() {
    let mut rig = rig(ShardLimits::default());
    let volume = limited(&mut rig, "v", operations(1));
    submit_reads(&mut rig, volume, 1 + 256 + 7);
    rig.poll();
    rig.poll();
    let refused = rig
        .harvest()
        .into_iter()
        .filter(|(_, result)| result.is_err());
    assert_eq!(
        refused.count(),
        7,
        "as many wait as a stream may have under way"
    );
    rig.shard.stop_admitting();
    rig.poll();
    rig.harvest();
}

#[test]
fn fewer_long_requests_than_short_ones_wait_for_a_limit() {
    let mut rig = rig(ShardLimits::default());
    let volume = limited(&mut rig, "v", operations(1));
    for _ in 0..1 + 32 + 8 {
        let range = (0, 1 << 20);
        rig.submit(volume, DataOperation::Discard, range, Durability::None, &[]);
    }
    rig.poll();
    rig.poll();
    let ended = rig.harvest().into_iter().map(|(_, result)| result);
    let refused: Vec<_> = ended.filter_map(Result::err).collect();
    assert_eq!(refused, vec![IoError::Throttled { waiting_max: 256 }; 8]);
}

#[test]
fn a_raised_limit_lets_those_go_that_wait_under_the_lower_one() {
    let mut rig = rig(ShardLimits::default());
    let volume = limited(&mut rig, "v", operations(1));
    submit_reads(&mut rig, volume, 10);
    assert_eq!(pass(&mut rig, 10).len(), 1);
    let limits = limit(&mut rig, "v", operations(0));
    assert_eq!(limits, VolumeLimits::default());
    assert_eq!(pass(&mut rig, 1).len(), 9);
}

#[test]
fn a_change_leaves_the_other_limits_and_survives_a_crash() {
    let mut rig = rig(ShardLimits::default());
    let mut spec = spec("v", 1 << 20, BlockSize::B4096);
    spec.limits = VolumeLimits {
        iops_max: 5,
        bandwidth_max_bytes: 6 << 20,
        burst_ms: 7,
    };
    let created = rig.control(ControlRequest::CreateVolume {
        pool: String::new(),
        spec,
        request: None,
    });
    created.expect("a volume can be made");
    let change = LimitChange {
        iops_max: Some(9),
        ..LimitChange::default()
    };
    let expected = VolumeLimits {
        iops_max: 9,
        bandwidth_max_bytes: 6 << 20,
        burst_ms: 7,
    };
    assert_eq!(limit(&mut rig, "v", change), expected);
    let mut rig = rig.crash(geometry(BlockSize::B512, WriteCache::None));
    rig.open("v").expect("the volume is there");
    let stats = rig.shard.stats();
    assert_eq!(stats.volumes()[0].throttle().limits(), expected);
}

#[test]
fn a_deleted_volume_ends_the_requests_that_wait_for_its_limit() {
    let mut rig = rig(ShardLimits::default());
    let volume = limited(&mut rig, "v", operations(1));
    submit_reads(&mut rig, volume, 5);
    pass(&mut rig, 1);
    let deleted = rig.control(ControlRequest::DeleteVolume {
        volume: named("v"),
        request: None,
    });
    deleted.expect("it is deleted");
    rig.poll();
    let ended: Vec<_> = rig
        .harvest()
        .into_iter()
        .map(|(_, result)| result)
        .collect();
    assert_eq!(ended, vec![Err(IoError::UnknownVolume); 4]);
    assert_eq!(rig.shard.requests_in_flight(), 0);
}

#[test]
fn an_exported_pool_ends_the_requests_that_wait_for_a_limit() {
    let mut rig = rig(ShardLimits::default());
    let volume = limited(&mut rig, "v", operations(1));
    submit_reads(&mut rig, volume, 5);
    pass(&mut rig, 1);
    let pool = rig.pool;
    rig.shard.export(pool);
    rig.poll();
    let ended: Vec<_> = rig
        .harvest()
        .into_iter()
        .map(|(_, result)| result)
        .collect();
    assert_eq!(ended, vec![Err(IoError::PoolUnavailable); 4]);
}

#[test]
fn a_stopping_shard_refuses_what_waits_for_a_limit() {
    let mut rig = rig(ShardLimits::default());
    let volume = limited(&mut rig, "v", operations(1));
    submit_reads(&mut rig, volume, 5);
    pass(&mut rig, 1);
    rig.shard.stop_admitting();
    assert!(rig.shard.is_busy(), "their answers are still to be fetched");
    rig.poll();
    let ended: Vec<_> = rig
        .harvest()
        .into_iter()
        .map(|(_, result)| result)
        .collect();
    assert_eq!(ended, vec![Err(IoError::Stopping); 4]);
    assert_eq!(rig.shard.requests_in_flight(), 0);
}
