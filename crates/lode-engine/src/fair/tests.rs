//! Order within a volume, turns between volumes, and nothing lost.

use proptest::prelude::*;

use super::*;
use crate::request::PoolIndex;

const fn volume(slot: u16) -> VolumeHandle {
    VolumeHandle::from_parts(PoolIndex(0), slot, 0)
}

#[test]
fn the_items_of_one_volume_leave_in_the_order_of_their_arrival() {
    let mut queue = FairQueue::new(8, 8);
    for round in 0..3 {
        for value in 0..8 {
            queue.push(volume(1), 4096, value + round).expect("room");
        }
        assert!(matches!(queue.push(volume(1), 0, 9), Err(Refused::Full(9))));
        let taken: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(taken, (round..8 + round).collect::<Vec<_>>());
        assert!(queue.is_empty());
    }
}

#[test]
fn a_volume_with_one_item_does_not_wait_for_the_two_thousand_of_another() {
    let mut queue = FairQueue::new(4096, 4096);
    for _ in 0..2000 {
        queue.push(volume(1), 4096, 1).expect("room");
    }
    queue.push(volume(2), 4096, 2).expect("room");
    let position = std::iter::from_fn(|| queue.pop()).position(|value| value == 2);
    assert!(
        position.is_some_and(|position| position <= 2),
        "{position:?}"
    );
    assert_eq!(std::iter::from_fn(|| queue.pop()).sum::<i32>(), 1998);
}

#[test]
fn volumes_share_by_bytes_and_not_by_requests() {
    let mut queue = FairQueue::new(4096, 4096);
    for _ in 0..2000 {
        queue.push(volume(1), 4096, 4096_u64).expect("room");
    }
    for _ in 0..40 {
        queue.push(volume(2), 1 << 20, 1 << 20).expect("room");
    }
    let mut bytes = [0_u64; 2];
    for _ in 0..1000 {
        let length = queue.pop().expect("both have items");
        bytes[usize::from(length > 4096)] += length + u64::from(COMMAND_COST_BYTES);
    }
    let apart = bytes[0].abs_diff(bytes[1]);
    let one_turn = u64::from(COST_MAX_BYTES + COMMAND_COST_BYTES + QUANTUM_BYTES);
    assert!(apart <= one_turn, "{bytes:?}");
}

#[test]
fn a_volume_that_may_not_go_is_passed_over_and_saves_nothing_up() {
    let mut queue = FairQueue::new(64, 64);
    for index in 0..30 {
        queue
            .push(volume(1 + index % 2), 4096, 1 + index % 2)
            .expect("room");
    }
    let only_second = |_: &mut Gate, at: VolumeHandle, _: &u16| at == volume(2);
    let taken: Vec<_> = std::iter::from_fn(|| queue.pop_where(only_second)).collect();
    assert_eq!(taken, [2; 15]);
    for _ in 0..15 {
        queue.push(volume(2), 4096, 2).expect("room");
    }
    let next: Vec<_> = (0..8).filter_map(|_| queue.pop()).collect();
    assert_eq!(
        next.iter().filter(|value| **value == 1).count(),
        4,
        "{next:?}"
    );
}

#[test]
fn a_volume_fills_its_own_share_and_no_more() {
    let mut queue = FairQueue::new(8, 3);
    for value in 0..3 {
        queue.push(volume(1), 0, value).expect("room");
    }
    assert!(matches!(
        queue.push(volume(1), 0, 7),
        Err(Refused::FlowFull(7))
    ));
    queue
        .push(volume(2), 0, 8)
        .expect("another volume has room");
    assert_eq!(queue.len(), 4);
    let command = u64::from(COMMAND_COST_BYTES);
    assert_eq!(queue.load(volume(1)), (3, 3 * command));
    queue.pop();
    assert_eq!(queue.load(volume(1)), (2, 2 * command));
    assert_eq!(queue.load(volume(3)), (0, 0));
}

#[test]
fn a_gate_belongs_to_the_first_item_only() {
    let mut queue = FairQueue::new(8, 8);
    queue.push(volume(1), 0, 1).expect("room");
    queue.push(volume(1), 0, 2).expect("room");
    let throttle = crate::throttle::Throttle::default();
    let place = throttle.reserve(
        crate::request::DataOperation::Flush,
        0,
        lode_units::Instant::ZERO,
    );
    let close = |gate: &mut Gate, _: VolumeHandle, _: &i32| {
        gate.reservation = Some(place);
        false
    };
    assert_eq!(queue.pop_where(close), None);
    let is_kept = |gate: &mut Gate, _: VolumeHandle, _: &i32| gate.reservation.is_some();
    assert_eq!(queue.pop_where(is_kept), Some(1));
    assert_eq!(queue.pop_where(is_kept), None, "the second has none");
}

proptest! {
    #[test]
    fn nothing_is_lost_or_made_up_whatever_is_pushed_and_taken(
        steps in proptest::collection::vec((0_u16..6, 0_u64..(1 << 20), any::<bool>()), 1..400),
    ) {
        let mut queue = FairQueue::new(64, 64);
        let mut expected = vec![std::collections::VecDeque::new(); 6];
        for (number, (slot, length, takes)) in steps.into_iter().enumerate() {
            if takes {
                let shut = |_: &mut Gate, at: VolumeHandle, _: &(u16, usize)| at.slot != slot;
                if let Some((from, value)) = queue.pop_where(shut) {
                    prop_assert!(from != slot);
                    prop_assert_eq!(expected[usize::from(from)].pop_front(), Some(value));
                } else {
                    let others = expected.iter().enumerate();
                    let mut others = others.filter(|(other, _)| *other != usize::from(slot));
                    prop_assert!(others.all(|(_, items)| items.is_empty()));
                }
            } else if queue.push(volume(slot), length, (slot, number)).is_ok() {
                expected[usize::from(slot)].push_back(number);
            }
            let length: usize = expected.iter().map(std::collections::VecDeque::len).sum();
            prop_assert_eq!(queue.len(), length);
        }
        while let Some((from, value)) = queue.pop() {
            prop_assert_eq!(expected[usize::from(from)].pop_front(), Some(value));
        }
        prop_assert!(expected.iter().all(std::collections::VecDeque::is_empty));
    }
}
