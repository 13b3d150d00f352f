//! Data come back as they were written, whatever the mapping.

use lode_block::{Durability, Operation, WriteCache};
use lode_engine::{DataOperation, IoError, VolumeHandle};
use lode_units::BlockSize;
use lode_units::{Random, SeededRandom};

use crate::rig::{Rig, pattern};

#[test]
fn a_new_volume_reads_as_zeros_without_touching_the_device() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 8 << 20, BlockSize::B4096);
    let before = rig.media.borrow().count(Operation::Read);
    assert_eq!(rig.read(volume, 4 << 20, 1 << 20), vec![0; 1 << 20]);
    assert_eq!(rig.media.borrow().count(Operation::Read), before);
}

#[test]
fn a_megabyte_comes_back_and_its_neighbours_stay_zero() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 8 << 20, BlockSize::B4096);
    let data = pattern(1, 1 << 20);
    rig.write(volume, 1 << 20, &data);
    assert_eq!(rig.read(volume, 1 << 20, 1 << 20), data);
    assert_eq!(rig.read(volume, (1 << 20) - 4096, 4096), vec![0; 4096]);
    assert_eq!(rig.read(volume, 2 << 20, 4096), vec![0; 4096]);
}

#[test]
fn what_a_small_write_leaves_of_a_new_unit_reads_as_zeros() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 1 << 20, BlockSize::B512);
    rig.write(volume, 4096 + 1024, &pattern(2, 512));
    let mut expected = vec![0; 4096];
    expected[1024..1536].copy_from_slice(&pattern(2, 512));
    assert_eq!(rig.read(volume, 4096, 4096), expected);
}

#[test]
fn a_write_over_holes_and_data_keeps_what_it_does_not_cover() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 1 << 20, BlockSize::B512);
    rig.write(volume, 8192, &pattern(3, 4096));
    // Ends inside the unit that is there, begins inside one that is not.
    rig.write(volume, 5120, &pattern(4, 3072 + 1024));
    let mut expected = vec![0; 8192];
    expected[4096..].copy_from_slice(&pattern(3, 4096));
    expected[1024..5120].copy_from_slice(&pattern(4, 4096));
    assert_eq!(rig.read(volume, 4096, 8192), expected);
}

#[test]
fn random_writes_discards_and_zeroes_match_a_plain_array() {
    random_requests_match_a_plain_array(&mut Rig::new(WriteCache::Volatile));
}

#[test]
fn blocks_smaller_than_the_devices_behave_no_differently() {
    let geometry = crate::device::geometry(BlockSize::B4096, WriteCache::Volatile);
    let media = std::rc::Rc::new(std::cell::RefCell::new(crate::device::Media::new()));
    random_requests_match_a_plain_array(&mut Rig::on(media, geometry, true));
}

#[test]
fn neighbours_in_one_device_block_do_not_undo_each_other() {
    let geometry = crate::device::geometry(BlockSize::B4096, WriteCache::Volatile);
    let media = std::rc::Rc::new(std::cell::RefCell::new(crate::device::Media::new()));
    let mut rig = Rig::on(media, geometry, true);
    let volume = rig.create("v", 1 << 20, BlockSize::B512);
    rig.write(volume, 0, &pattern(1, 65536));
    // Whole units and parts of them, all at once.
    let ranges = [
        (0, 512),
        (512, 512),
        (1024, 4096),
        (4096, 8192),
        (7680, 1024),
        (16384, 4096),
    ];
    let tokens: Vec<_> = ranges
        .iter()
        .map(|(offset, length)| {
            let data = vec![0x77; usize::try_from(*length).expect("short")];
            let range = (*offset, *length);
            rig.submit(volume, DataOperation::Write, range, Durability::None, &data)
        })
        .collect();
    for token in tokens {
        assert!(rig.wait(token).result.is_ok());
    }
    let mut expected = pattern(1, 65536);
    for (offset, length) in [(0, 12288), (16384, 4096)] {
        expected[offset..offset + length].fill(0x77);
    }
    assert_eq!(rig.read(volume, 0, 65536), expected);
}

fn random_requests_match_a_plain_array(rig: &mut Rig) {
    let size = 512 * 1500;
    let volume = rig.create("v", size, BlockSize::B512);
    let mut model = vec![0_u8; usize::try_from(size).expect("small")];
    let mut random = SeededRandom::new(11);
    for round in 0..400_u32 {
        let sectors = 1 + random.below(if round % 7 == 0 { 200 } else { 24 });
        let first = random.below(1500 - sectors + 1);
        let (offset, length) = (first * 512, sectors * 512);
        let range = usize::try_from(offset).expect("small")
            ..usize::try_from(offset + length).expect("small");
        match random.below(6) {
            0 => {
                let outcome = rig.run(
                    volume,
                    DataOperation::WriteZeroes,
                    (offset, length),
                    Durability::None,
                    &[],
                );
                assert!(outcome.is_ok(), "{outcome:?}");
                model[range].fill(0);
            }
            1 => {
                let outcome = rig.run(
                    volume,
                    DataOperation::Discard,
                    (offset, length),
                    Durability::None,
                    &[],
                );
                assert!(outcome.is_ok(), "{outcome:?}");
                discard(&mut model, range);
            }
            2 => assert_eq!(
                rig.read(volume, offset, length),
                model[range],
                "round {round}"
            ),
            _ => {
                let data = pattern(u8::try_from(round % 256).expect("a byte"), range.len());
                rig.write(volume, offset, &data);
                model[range].copy_from_slice(&data);
            }
        }
    }
    assert_eq!(rig.read(volume, 0, size), model);
    compare_and_write_matches(rig, volume, &mut model);
    assert_eq!(rig.lent(), 0, "every buffer came back");
}

/// Compare-and-write over ends of every kind.
fn compare_and_write_matches(rig: &mut Rig, volume: VolumeHandle, model: &mut [u8]) {
    for (offset, length) in [(512, 512), (3584, 1024), (4096, 4096), (8704, 12800)] {
        let range = (offset, length);
        let start = usize::try_from(offset).expect("small");
        let span = start..start + usize::try_from(length).expect("small");
        let new = pattern(99, span.len());
        let data = [&model[span.clone()], &new].concat();
        let operation = DataOperation::CompareAndWrite;
        let outcome = rig.run(volume, operation, range, Durability::None, &data);
        assert!(outcome.is_ok(), "{outcome:?}");
        let outcome = rig.run(volume, operation, range, Durability::None, &data);
        let is_mismatch = matches!(outcome, Err(IoError::Mismatch { .. }));
        assert!(is_mismatch || model[span.clone()] == new, "{outcome:?}");
        model[span].copy_from_slice(&new);
    }
    assert_eq!(rig.read(volume, 0, 65536), model[..65536]);
}

/// Whole units read as zeros afterwards; the last one of the volume counts as whole.
fn discard(model: &mut [u8], range: std::ops::Range<usize>) {
    let start = range.start.next_multiple_of(4096);
    let end = if range.end == model.len() {
        range.end
    } else {
        range.end / 4096 * 4096
    };
    if start < end {
        model[start..end].fill(0);
    }
}

#[test]
fn bad_ranges_are_refused_with_their_reason() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 1 << 20, BlockSize::B4096);
    let size_bytes = 1 << 20;
    let cases = [
        ((0, 0), IoError::ZeroLength),
        (
            (512, 4096),
            IoError::Unaligned {
                offset_bytes: 512,
                length_bytes: 4096,
                block_size_bytes: 4096,
            },
        ),
        (
            (0, 100),
            IoError::Unaligned {
                offset_bytes: 0,
                length_bytes: 100,
                block_size_bytes: 4096,
            },
        ),
        (
            (1 << 20, 4096),
            IoError::OutOfRange {
                offset_bytes: 1 << 20,
                length_bytes: 4096,
                size_bytes,
            },
        ),
        (
            (u64::MAX - 4095, 4096),
            IoError::OutOfRange {
                offset_bytes: u64::MAX - 4095,
                length_bytes: 4096,
                size_bytes,
            },
        ),
        (
            (0, (1 << 20) + 4096),
            IoError::TooLong {
                length_bytes: (1 << 20) + 4096,
                length_max_bytes: 1 << 20,
            },
        ),
    ];
    for (range, expected) in cases {
        for operation in [DataOperation::Read, DataOperation::Write] {
            let outcome = rig.run(volume, operation, range, Durability::None, &[]);
            assert_eq!(outcome, Err(expected.clone()), "{operation:?} {range:?}");
        }
    }
    assert_eq!(
        rig.read(volume, 0, 4096),
        vec![0; 4096],
        "nothing was written"
    );
}

#[test]
fn a_queue_of_few_slots_serves_many_requests_in_turn() {
    let geometry = lode_block::Geometry {
        queue_depth_max: 2,
        transfer_max_bytes: 4096,
        ..crate::device::geometry(BlockSize::B512, WriteCache::Volatile)
    };
    let media = std::rc::Rc::new(std::cell::RefCell::new(crate::device::Media::new()));
    let mut rig = Rig::on(media, geometry, true);
    let volume = rig.create("v", 8 << 20, BlockSize::B4096);
    rig.media.borrow_mut().is_held = true;
    let tokens: Vec<_> = (0..4_u8)
        .map(|index| {
            let data = pattern(index, 256 << 10);
            let range = (u64::from(index) << 20, 256 << 10);
            rig.submit(volume, DataOperation::Write, range, Durability::Data, &data)
        })
        .collect();
    for _ in 0..10 {
        rig.poll();
    }
    assert!(tokens.iter().all(|token| rig.outcome(*token).is_none()));
    rig.media.borrow_mut().is_held = false;
    for token in tokens {
        let done = rig.wait(token);
        assert_eq!(done.result, Ok(Durability::Data));
        rig.give_back(done.buffer.expect("the buffer comes back"));
    }
    for index in 0..4_u8 {
        assert_eq!(
            rig.read(volume, u64::from(index) << 20, 256 << 10),
            pattern(index, 256 << 10)
        );
    }
}
