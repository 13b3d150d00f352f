//! Places in time: spacing, burst, debt, and cores that take at once.

use std::sync::Mutex;

use proptest::prelude::*;

use super::*;

const fn limits(iops_max: u64, bandwidth_max_bytes: u64, burst_ms: u32) -> VolumeLimits {
    VolumeLimits {
        iops_max,
        bandwidth_max_bytes,
        burst_ms,
    }
}

fn due(throttle: &Throttle, length_bytes: u64, now: u64) -> u64 {
    let now = Instant::from_nanos(now);
    let reservation = throttle.reserve(DataOperation::Write, length_bytes, now);
    reservation.due.as_nanos().max(now.as_nanos())
}

#[test]
fn operations_beyond_the_burst_are_spaced_by_the_limit() {
    let throttle = Throttle::new(limits(1000, 0, 3));
    let start = 5_000_000_000;
    let dues: Vec<u64> = (0..7)
        .map(|_| due(&throttle, 4096, start) - start)
        .collect();
    let ms = 1_000_000;
    assert_eq!(dues, [0, 0, 0, 0, ms, 2 * ms, 3 * ms]);
}

#[test]
fn a_request_longer_than_the_burst_goes_and_is_paid_for_afterwards() {
    let throttle = Throttle::new(limits(0, 1 << 20, 0));
    let start = 1_000_000_000;
    assert_eq!(due(&throttle, 1 << 20, start), start);
    assert_eq!(due(&throttle, 4096, start), start + NANOSECONDS_PER_SECOND);
}

#[test]
fn the_stricter_of_two_limits_decides() {
    let throttle = Throttle::new(limits(10, 1 << 20, 0));
    assert_eq!(due(&throttle, 4096, 0), 0);
    assert_eq!(due(&throttle, 1 << 20, 0), 100_000_000, "by operations");
    let by_bytes = (4096 + (1 << 20)) * NANOSECONDS_PER_SECOND;
    let by_bytes = by_bytes.div_ceil(1 << 20);
    assert!(due(&throttle, 4096, 0).abs_diff(by_bytes) <= 1, "by bytes");
}

#[test]
fn what_costs_no_bytes_is_limited_by_operations_only_and_a_flush_by_nothing() {
    let throttle = Throttle::new(limits(0, 1, 0));
    let now = Instant::from_nanos(1);
    for _ in 0..100 {
        let discard = throttle.reserve(DataOperation::Discard, 1 << 30, now);
        assert!(discard.due <= now);
    }
    let throttle = Throttle::new(limits(1, 1, 0));
    for _ in 0..100 {
        assert!(throttle.reserve(DataOperation::Flush, 0, now).due <= now);
    }
    throttle.reserve(DataOperation::Discard, 4096, now);
    assert!(throttle.reserve(DataOperation::Discard, 4096, now).due > now);
}

#[test]
fn a_change_of_the_limits_outdates_what_was_reserved_and_forgives_the_debt() {
    let throttle = Throttle::new(limits(1, 0, 0));
    let now = Instant::from_nanos(7);
    throttle.reserve(DataOperation::Read, 4096, now);
    let waiting = throttle.reserve(DataOperation::Read, 4096, now);
    assert!(waiting.due > now && throttle.is_current(&waiting));
    throttle.set(limits(1000, 0, 0));
    assert!(!throttle.is_current(&waiting));
    assert!(throttle.reserve(DataOperation::Read, 4096, now).due <= now);
    throttle.set(VolumeLimits::default());
    assert!(!throttle.is_limited());
}

#[test]
fn cores_that_take_at_once_never_get_the_same_place_in_time() {
    let throttle = Throttle::new(limits(1000, 0, 0));
    let places = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mine: Vec<u64> = (0..1000).map(|_| due(&throttle, 4096, 0)).collect();
                places.lock().expect("no thread panicked").extend(mine);
            });
        }
    });
    let mut places = places.into_inner().expect("no thread panicked");
    places.sort_unstable();
    let expected: Vec<u64> = (0..4000).map(|place| place * 1_000_000).collect();
    assert_eq!(places, expected);
}

proptest! {
    #[test]
    fn no_stretch_of_time_sees_more_than_its_share_and_the_burst(
        iops in 1_u64..100_000,
        burst_ms in 0_u32..2000,
        steps in proptest::collection::vec(0_u64..3_000_000, 1..300),
    ) {
        let throttle = Throttle::new(limits(iops, 0, burst_ms));
        let mut now = 1;
        let mut starts = Vec::new();
        for step in steps {
            now += step;
            // A core lets only the first in line reserve, and waits for it.
            now = due(&throttle, 4096, now);
            starts.push(now);
        }
        for (index, first) in starts.iter().enumerate() {
            for (count, last) in (1_u64..).zip(&starts[index..]) {
                let span = last - first + u64::from(burst_ms) * NANOSECONDS_PER_MILLISECOND;
                let earned = u128::from(span) * u128::from(iops);
                let share = earned / u128::from(NANOSECONDS_PER_SECOND);
                prop_assert!(u128::from(count) <= share + 1);
            }
        }
    }
}
