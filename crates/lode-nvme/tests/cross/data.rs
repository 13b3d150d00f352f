//! Data through every shape of transfer, read back and compared with the media.

use lode_block::{BlockDevice, ErrorKind, Operation, RejectReason};
use lode_units::BlockSize;

use crate::rig::{FIRST, Rig, RigSpec, bare, pattern, transfer};

/// Writes from `offset` and reads back to another offset; the media hold the same bytes.
fn round_trip(rig: &mut Rig, lba: u64, offset: usize, length: usize) {
    let queue = &mut rig.open();
    let block = queue.geometry().block_size;
    let blocks = u32::try_from(length).expect("short") >> block.shift();
    let length_u32 = u32::try_from(length).expect("short");
    let bytes = pattern(offset + length, length);
    rig.data.copy_from_slice(offset, &bytes);
    let source = rig.span(offset, length_u32);
    let written = rig.run(queue, transfer(Operation::Write, 1, lba, blocks, source));
    assert_eq!(written.result, Ok(()), "write of {length} at {offset}");
    let media = rig.emulator.media(FIRST).expect("a namespace");
    assert!(
        media.snapshot(lba << block.shift(), length) == bytes,
        "media of {length} at {offset}"
    );
    let target_offset = (2 << 20) + (offset ^ 0xA4);
    rig.data.fill_zero(2 << 20, 2 << 20);
    let target = rig.span(target_offset, length_u32);
    let read = rig.run(queue, transfer(Operation::Read, 2, lba, blocks, target));
    assert_eq!(read.result, Ok(()), "read of {length} at {offset}");
    assert!(
        rig.data.equals(target_offset, &bytes),
        "read of {length} at {offset}"
    );
    assert!(rig.data.equals((2 << 20) - 4, &[0; 4]) || offset + length >= (2 << 20) - 4);
    assert!(
        rig.data.equals(target_offset + length, &[0; 64]),
        "nothing beyond the end"
    );
}

#[test]
fn transfers_of_every_size_and_alignment_arrive_whole() {
    let mut rig = Rig::new().ready();
    for length in [
        512,
        1024,
        4096,
        4608,
        8192,
        8704,
        12288,
        65536,
        131_072,
        1 << 20,
    ] {
        for offset in [0, 4, 512, 2048, 4092, 4096, 8188] {
            round_trip(&mut rig, 3, offset, length);
        }
    }
}

#[test]
fn every_block_size_works() {
    for shift in 9..=16 {
        let mut rig = RigSpec {
            block_size: BlockSize::new(1 << shift).expect("a size"),
            ..RigSpec::default()
        }
        .build()
        .ready();
        round_trip(&mut rig, 1, 4, 65536);
        round_trip(&mut rig, 5, 0, 1 << shift);
    }
}

#[test]
fn a_transfer_beyond_the_controllers_limit_is_not_accepted() {
    let mut spec = RigSpec::default();
    spec.emulator.transfer_max_shift = 3;
    let mut rig = spec.build().ready();
    let mut queue = rig.open();
    assert_eq!(queue.geometry().transfer_max_bytes, 32768);
    round_trip(&mut rig, 0, 4092, 32768);
    let data = rig.span(0, 33280);
    let refused = queue
        .submit(transfer(Operation::Read, 1, 0, 65, data))
        .expect_err("too long");
    assert_eq!(refused.reason, RejectReason::Invalid);
}

#[test]
fn requests_that_break_the_rules_are_given_back_untouched() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    let end = queue.geometry().block_count;
    let data = rig.span(0, 512);
    let odd = rig.span(2, 512);
    for (lba, blocks, data, operation) in [
        (end, 1, data, Operation::Read),
        (u64::MAX, 1, data, Operation::Write),
        (0, 0, rig.span(0, 0), Operation::Read),
        (0, 2, data, Operation::Write),
        (0, 1, odd, Operation::Read),
        (0, 1, data, Operation::WriteZeroes),
        (0, 1, data, Operation::Flush),
        (end - 1, 2, rig.span(0, 0), Operation::Deallocate),
        (0, 65537, rig.span(0, 0), Operation::WriteZeroes),
    ] {
        let request = transfer(operation, 77, lba, blocks, data);
        let copy = transfer(operation, 77, lba, blocks, data);
        let refused = queue.submit(request).expect_err("refused");
        assert_eq!(refused.reason, RejectReason::Invalid, "{copy:?}");
        assert_eq!(refused.request, copy);
    }
    assert_eq!(queue.in_flight(), 0);
    assert_eq!(queue.stats().submitted, 0);
}

#[test]
fn zeroes_and_deallocation_reach_exactly_their_blocks() {
    for operation in [Operation::WriteZeroes, Operation::Deallocate] {
        let mut rig = Rig::new().ready();
        let mut queue = rig.open();
        rig.data.copy_from_slice(0, &[0xEE; 8192]);
        let data = rig.span(0, 8192);
        rig.run(&mut queue, transfer(Operation::Write, 1, 0, 16, data));
        let completion = rig.run(&mut queue, bare(operation, 2, 3, 9));
        assert_eq!(completion.result, Ok(()));
        let media = rig.emulator.media(FIRST).expect("a namespace");
        let bytes = media.snapshot(0, 8192);
        assert!(bytes[..3 * 512].iter().all(|byte| *byte == 0xEE));
        assert!(
            bytes[3 * 512..12 * 512].iter().all(|byte| *byte == 0),
            "{operation:?}"
        );
        assert!(bytes[12 * 512..].iter().all(|byte| *byte == 0xEE));
    }
}

#[test]
fn compare_tells_equal_from_different() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    rig.data.copy_from_slice(0, &pattern(5, 4096));
    let data = rig.span(0, 4096);
    rig.run(&mut queue, transfer(Operation::Write, 1, 8, 8, data));
    let same = rig.run(&mut queue, transfer(Operation::Compare, 2, 8, 8, data));
    assert_eq!(same.result, Ok(()));
    rig.data.copy_from_slice(4095, &[1]);
    rig.data.copy_from_slice(100, &[7, 7, 7]);
    let different = rig.run(&mut queue, transfer(Operation::Compare, 3, 8, 8, data));
    let error = different.result.expect_err("they differ");
    assert_eq!(error.kind, ErrorKind::CompareMismatch);
    assert_eq!(error.status.map(|status| status & 0x7FF), Some(0x285));
}

#[test]
fn memory_that_the_controller_cannot_see_is_an_error_and_no_crash() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    let hidden = lode_bus::DmaSpan {
        iova: lode_units::Iova::new(0x70_0000_0000),
        length_bytes: 512,
    };
    let completion = rig.run(&mut queue, transfer(Operation::Read, 1, 0, 1, hidden));
    assert_eq!(
        completion.result.expect_err("unmapped").kind,
        ErrorKind::Internal
    );
    assert_eq!(rig.emulator.counters().dma_faults, 1);
}

#[test]
fn a_media_error_names_its_kind_and_status_and_spares_its_neighbours() {
    let mut rig = Rig::new().ready();
    rig.fault("opcode=read lba=4..5 -> status=0x281");
    let mut queue = rig.open();
    let data = rig.span(0, 512);
    let good = rig.run(&mut queue, transfer(Operation::Read, 1, 3, 1, data));
    assert_eq!(good.result, Ok(()));
    let bad = rig.run(&mut queue, transfer(Operation::Read, 2, 4, 1, data));
    let error = bad.result.expect_err("a bad block");
    assert_eq!(error.kind, ErrorKind::Media);
    assert_eq!(error.status.map(|status| status & 0x7FF), Some(0x281));
}

#[test]
fn several_queues_and_controllers_do_not_disturb_each_other() {
    let mut first = Rig::new().ready();
    let mut second = Rig::new().ready();
    let mut queues = [first.open(), first.open(), first.open()];
    let mut other = second.open();
    let data = second.span(0, 512);
    second.data.copy_from_slice(0, &[0xBB; 512]);
    other
        .submit(transfer(Operation::Write, 9, 0, 1, data))
        .expect("accepted");
    for (index, queue) in (0_u8..).zip(&mut queues) {
        let at = usize::from(index) * 512;
        first.data.copy_from_slice(at, &[index + 1; 512]);
        let span = first.span(at, 512);
        let lba = u64::from(index);
        queue
            .submit(transfer(Operation::Write, lba, lba, 1, span))
            .expect("accepted");
    }
    for (tag, queue) in (0..).zip(&mut queues) {
        let completions = first.drain(queue);
        assert_eq!(completions.len(), 1);
        assert_eq!(completions[0].tag.0, tag);
    }
    assert_eq!(second.drain(&mut other)[0].tag.0, 9);
    let bytes = first
        .emulator
        .media(FIRST)
        .expect("media")
        .snapshot(0, 1536);
    assert!(
        bytes
            .chunks(512)
            .zip(1..)
            .all(|(block, value)| block == [value; 512])
    );
}
