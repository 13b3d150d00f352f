//! Requests that exclude others, and requests that must not.

use lode_block::{Durability, Operation, WriteCache};
use lode_engine::{DataOperation, IoError};
use lode_units::BlockSize;

use crate::rig::{Rig, pattern};

const UNIT: u64 = 4096;

fn compare_and_write(
    rig: &mut Rig,
    volume: lode_engine::VolumeHandle,
    offset: u64,
    expected: &[u8],
    new: &[u8],
) -> Result<Durability, IoError> {
    let data: Vec<u8> = expected.iter().chain(new).copied().collect();
    let range = (offset, expected.len() as u64);
    rig.run(
        volume,
        DataOperation::CompareAndWrite,
        range,
        Durability::None,
        &data,
    )
}

#[test]
fn compare_and_write_writes_only_over_what_it_expects() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 1 << 20, BlockSize::B512);
    let zeros = vec![0; 1024];
    let first = pattern(1, 1024);
    assert_eq!(
        compare_and_write(&mut rig, volume, 512, &zeros, &first),
        Ok(Durability::None)
    );
    assert_eq!(rig.read(volume, 512, 1024), first);
    let outcome = compare_and_write(&mut rig, volume, 512, &zeros, &pattern(2, 1024));
    assert_eq!(outcome, Err(IoError::Mismatch { offset_bytes: 512 }));
    let mut half = first.clone();
    half[512..].fill(7);
    let outcome = compare_and_write(&mut rig, volume, 512, &half, &pattern(2, 1024));
    assert_eq!(
        outcome,
        Err(IoError::Mismatch { offset_bytes: 1024 }),
        "the block that differs"
    );
    assert_eq!(rig.read(volume, 512, 1024), first, "nothing was written");
    assert!(compare_and_write(&mut rig, volume, 512, &first, &pattern(3, 1024)).is_ok());
    assert_eq!(rig.read(volume, 512, 1024), pattern(3, 1024));
}

#[test]
fn of_many_compare_and_writes_from_one_state_exactly_one_succeeds() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 1 << 20, BlockSize::B4096);
    let tokens: Vec<_> = (1..=16_u8)
        .map(|index| {
            let mut data = vec![0; 8192];
            data[4096..].fill(index);
            let operation = DataOperation::CompareAndWrite;
            rig.submit(volume, operation, (0, UNIT), Durability::None, &data)
        })
        .collect();
    let outcomes: Vec<_> = tokens
        .into_iter()
        .map(|token| rig.wait(token).result)
        .collect();
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    let mismatch = Err(IoError::Mismatch { offset_bytes: 0 });
    assert_eq!(
        outcomes
            .iter()
            .filter(|outcome| **outcome == mismatch)
            .count(),
        15
    );
}

#[test]
fn a_discard_waits_for_a_read_in_flight_and_a_later_read_waits_for_it() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 1 << 20, BlockSize::B4096);
    rig.write(volume, 0, &pattern(1, 8192));
    rig.media.borrow_mut().is_held = true;
    let before = rig.submit(
        volume,
        DataOperation::Read,
        (0, UNIT),
        Durability::None,
        &[],
    );
    let discard = rig.submit(
        volume,
        DataOperation::Discard,
        (0, UNIT),
        Durability::None,
        &[],
    );
    let after = rig.submit(
        volume,
        DataOperation::Read,
        (0, UNIT),
        Durability::None,
        &[],
    );
    let beside = rig.submit(
        volume,
        DataOperation::Read,
        (UNIT, UNIT),
        Durability::None,
        &[],
    );
    for _ in 0..10 {
        rig.poll();
    }
    assert!(
        rig.outcome(discard).is_none(),
        "the read still uses the blocks"
    );
    rig.media.borrow_mut().is_held = false;
    let before = rig.wait(before).buffer.expect("a buffer");
    assert!(
        before.equals(0, &pattern(1, 4096)),
        "it read what was there"
    );
    assert!(rig.wait(discard).result.is_ok());
    assert!(
        rig.wait(after)
            .buffer
            .expect("a buffer")
            .equals(0, &[0; 4096])
    );
    let beside = rig.wait(beside).buffer.expect("a buffer");
    assert!(
        beside.equals(0, &pattern(1, 8192)[4096..]),
        "its own unit was left alone"
    );
}

#[test]
fn writes_to_one_new_unit_do_not_lose_each_other() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 1 << 20, BlockSize::B512);
    let tokens: Vec<_> = (0..8_u8)
        .map(|index| {
            let range = (u64::from(index) * 512, 512);
            let data = vec![index + 1; 512];
            rig.submit(volume, DataOperation::Write, range, Durability::None, &data)
        })
        .collect();
    for token in tokens {
        assert!(rig.wait(token).result.is_ok());
    }
    let expected: Vec<u8> = (0..4096_usize)
        .map(|index| u8::try_from(index / 512 + 1).expect("below 9"))
        .collect();
    assert_eq!(rig.read(volume, 0, UNIT), expected);
}

#[test]
fn pure_overwrites_go_on_while_a_discard_elsewhere_waits() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 1 << 20, BlockSize::B4096);
    rig.write(volume, 0, &pattern(1, 16384));
    rig.media.borrow_mut().is_held = true;
    let _reading = rig.submit(
        volume,
        DataOperation::Read,
        (0, UNIT),
        Durability::None,
        &[],
    );
    let discard = rig.submit(
        volume,
        DataOperation::Discard,
        (0, UNIT),
        Durability::None,
        &[],
    );
    let submitted = rig.media.borrow().count(Operation::Write);
    let data = pattern(2, 4096);
    let range = (2 * UNIT, UNIT);
    let write = rig.submit(volume, DataOperation::Write, range, Durability::None, &data);
    rig.media.borrow_mut().is_held = false;
    assert!(rig.wait(write).result.is_ok());
    assert_eq!(rig.media.borrow().count(Operation::Write), submitted + 1);
    assert!(rig.wait(discard).result.is_ok());
}

#[test]
fn discarded_space_can_be_written_again() {
    let mut rig = Rig::new(WriteCache::Volatile);
    let volume = rig.create("v", 256 << 20, BlockSize::B4096);
    // More than the pool holds goes through it when each round is given back.
    for round in 0..40_u8 {
        let data = pattern(round, 1 << 20);
        for at in 0..4 {
            rig.write(volume, at << 20, &data);
        }
        let whole = (0, 4 << 20);
        let outcome = rig.run(volume, DataOperation::Discard, whole, Durability::None, &[]);
        assert!(outcome.is_ok(), "round {round}: {outcome:?}");
    }
    assert_eq!(rig.read(volume, 0, UNIT), vec![0; 4096]);
}

#[test]
fn a_write_that_waits_for_units_does_not_block_the_barrier_that_takes_them() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 1 << 20, BlockSize::B4096);
    rig.media.borrow_mut().is_held = true;
    let first = pattern(1, 3 * 4096);
    let range = (0, 3 * UNIT);
    let write = DataOperation::Write;
    let holder = rig.submit(volume, write, range, Durability::None, &first);
    let second = pattern(2, 3 * 4096);
    let range = (2 * UNIT, 3 * UNIT);
    let waiter = rig.submit(volume, write, range, Durability::None, &second);
    let range = (3 * UNIT, 5 * UNIT);
    let zeroes = DataOperation::WriteZeroes;
    let barrier = rig.submit(volume, zeroes, range, Durability::None, &[]);
    rig.media.borrow_mut().is_held = false;
    for token in [holder, barrier, waiter] {
        assert_eq!(rig.wait(token).result, Ok(Durability::None));
    }
    assert_eq!(rig.read(volume, 0, 2 * UNIT), first[..2 * 4096]);
    let found = rig.read(volume, 2 * UNIT, UNIT);
    assert!(found == first[2 * 4096..] || found == second[..4096]);
    assert_eq!(rig.shard.requests_in_flight(), 0);
}
