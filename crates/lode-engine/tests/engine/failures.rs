//! A failing device, a full pool: a precise error, nothing lost, the rest goes on.

use std::cell::RefCell;
use std::rc::Rc;

use lode_block::{Durability, ErrorKind, Operation, WriteCache};
use lode_engine::{ControlRequest, DataOperation, IoError};
use lode_units::BlockSize;

use crate::device::{Fault, Media, geometry};
use crate::rig::{Rig, named, pattern};

const UNIT: u64 = 4096;

fn fail(rig: &Rig, operation: Operation, kind: ErrorKind, times: usize) {
    rig.media.borrow_mut().faults.push(Fault {
        operation,
        lba: 0..u64::MAX,
        kind,
        times,
    });
}

#[test]
fn a_read_error_names_the_blocks_and_leaves_others_alone() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 4 << 20, BlockSize::B4096);
    rig.write(volume, 0, &pattern(1, 1 << 20));
    fail(&rig, Operation::Read, ErrorKind::Media, 1);
    match rig.try_read(volume, 256 << 10, 256 << 10) {
        Err(IoError::Device {
            offset_bytes,
            length_bytes,
            error,
            ..
        }) => {
            assert_eq!(error.kind, ErrorKind::Media);
            assert_eq!(
                (offset_bytes, length_bytes),
                (256 << 10, 128 << 10),
                "one command's part"
            );
        }
        other => panic!("not the device's error: {other:?}"),
    }
    assert_eq!(
        rig.read(volume, 256 << 10, 256 << 10),
        pattern(1, 1 << 20)[256 << 10..512 << 10]
    );
    assert_eq!(rig.lent(), 0);
}

#[test]
fn a_failed_write_of_new_blocks_leaves_a_hole_and_takes_no_space() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 4 << 20, BlockSize::B4096);
    rig.until(|rig| !rig.shard.is_busy());
    let used = allocated(&mut rig);
    fail(&rig, Operation::Write, ErrorKind::Media, 1);
    let data = pattern(1, 65536);
    let outcome = rig.run(
        volume,
        DataOperation::Write,
        (0, 65536),
        Durability::None,
        &data,
    );
    assert!(
        matches!(outcome, Err(IoError::Device { .. })),
        "{outcome:?}"
    );
    assert_eq!(rig.read(volume, 0, 65536), vec![0; 65536]);
    assert_eq!(allocated(&mut rig), used);
    rig.write(volume, 0, &data);
    assert_eq!(rig.read(volume, 0, 65536), data);
}

#[test]
fn what_a_device_asks_to_be_repeated_is_repeated() {
    let mut rig = Rig::new(WriteCache::Volatile);
    let volume = rig.create("v", 4 << 20, BlockSize::B4096);
    for operation in [
        Operation::Read,
        Operation::Write,
        Operation::Flush,
        Operation::WriteThrough,
    ] {
        fail(&rig, operation, ErrorKind::Retry, 3);
    }
    let data = pattern(1, 300 << 10);
    rig.write(volume, 0, &data);
    assert_eq!(rig.flush(volume), Ok(Durability::Data));
    assert_eq!(rig.read(volume, 0, 300 << 10), data);
    assert!(rig.shard.stats().retries.read() >= 6);
}

#[test]
fn a_device_that_asks_for_ever_is_not_asked_for_ever() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 4 << 20, BlockSize::B4096);
    rig.write(volume, 0, &pattern(1, 4096));
    fail(&rig, Operation::Read, ErrorKind::Retry, usize::MAX);
    let outcome = rig.try_read(volume, 0, 4096);
    assert!(
        matches!(outcome, Err(IoError::Device { .. })),
        "{outcome:?}"
    );
}

#[test]
fn a_full_pool_says_so_and_recovers_when_something_is_deleted() {
    let mut rig = Rig::new(WriteCache::Volatile);
    let volume = rig.create("big", 256 << 20, BlockSize::B4096);
    let other = rig.create("other", 256 << 20, BlockSize::B4096);
    rig.write(other, 0, &pattern(9, 4096));
    let data = pattern(1, 1 << 20);
    let mut written = 0;
    let error = loop {
        let range = (written << 20, 1 << 20);
        match rig.run(volume, DataOperation::Write, range, Durability::None, &data) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 64, "a pool of 64 MiB cannot hold that much");
    };
    assert_eq!(error, IoError::NoSpace);
    assert!(written > 40, "only {written} MiB of 64 could be used");
    rig.write(other, 0, &pattern(8, 4096));
    assert_eq!(
        rig.read(volume, (written - 1) << 20, 1 << 20),
        data,
        "acknowledged data are there"
    );
    assert_eq!(rig.flush(volume), Ok(Durability::Data));
    let whole = (0, written << 20);
    let outcome = rig.run(volume, DataOperation::Discard, whole, Durability::Data, &[]);
    assert!(outcome.is_ok(), "{outcome:?}");
    rig.write(other, 1 << 20, &data);
    assert_eq!(rig.read(other, 0, 4096), pattern(8, 4096));
}

#[test]
fn a_device_that_is_gone_ends_every_request_with_an_error() {
    let mut rig = Rig::new(WriteCache::Volatile);
    let volume = rig.create("v", 4 << 20, BlockSize::B4096);
    rig.write(volume, 0, &pattern(1, 65536));
    for operation in [
        Operation::Read,
        Operation::Write,
        Operation::WriteThrough,
        Operation::Flush,
    ] {
        fail(&rig, operation, ErrorKind::Gone, usize::MAX);
    }
    assert!(rig.try_read(volume, 0, 4096).is_err());
    let data = pattern(2, 4096);
    for durability in [Durability::None, Durability::Data, Durability::Full] {
        let at = (1 << 20, 4096);
        assert!(
            rig.run(volume, DataOperation::Write, at, durability, &data)
                .is_err()
        );
    }
    assert!(rig.flush(volume).is_err());
    rig.until(|rig| rig.shard.requests_in_flight() == 0);
    assert_eq!(rig.lent(), 0);
}

fn allocated(rig: &mut Rig) -> u64 {
    match rig.control(ControlRequest::ListPools) {
        Ok(lode_engine::ControlReply::Pools(pools)) => pools[0].usage.allocated_bytes,
        other => panic!("not the pools: {other:?}"),
    }
}

#[test]
fn any_part_of_a_metadata_operation_may_ask_for_a_retry_while_the_queue_is_full() {
    let mut narrow = geometry(BlockSize::B4096, WriteCache::None);
    narrow.queue_depth_max = 2;
    narrow.transfer_max_bytes = 4096;
    let media = Rc::new(RefCell::new(Media::new()));
    let mut rig = Rig::on(media, narrow.clone(), true);
    let volume = rig.create("v", 1 << 20, BlockSize::B4096);
    rig.write(volume, 0, &pattern(1, 4096));
    rig.flush(volume).expect("the device flushes");
    // The journal, which an import reads, lies near the front of the device.
    for read in 0..128 {
        rig.media.borrow_mut().faults = vec![Fault {
            operation: Operation::Read,
            lba: read..read + 1,
            kind: ErrorKind::Retry,
            times: 1,
        }];
        rig = rig.crash(narrow.clone());
        let volume = rig.open("v").expect("the pool recovers");
        assert_eq!(rig.read(volume, 0, UNIT), pattern(1, 4096));
    }
}

#[test]
fn a_volume_whose_record_cannot_be_read_is_not_said_to_be_unknown() {
    let shape = geometry(BlockSize::B512, WriteCache::None);
    let mut rig = Rig::new(WriteCache::None);
    rig.create("v", 4 << 20, BlockSize::B4096);
    rig.shard.export(rig.pool);
    rig.until(|rig| rig.shard.pool_state(rig.pool) == Some(&lode_extent::PoolState::Exported));
    rig.media.borrow_mut().log.clear();
    let rig = rig.crash(shape.clone());
    let media = Rc::clone(&rig.media);
    let reads: Vec<u64> = media
        .borrow()
        .log
        .iter()
        .filter(|(operation, ..)| *operation == Operation::Read)
        .map(|(_, lba, _)| *lba)
        .collect();
    drop(rig);
    let mut hidden = 0;
    for lba in reads {
        let fault = Fault {
            operation: Operation::Read,
            lba: lba..lba + 8,
            kind: ErrorKind::Media,
            times: usize::MAX,
        };
        media.borrow_mut().faults = vec![fault];
        let opened = Rig::try_on(Rc::clone(&media), shape.clone(), false);
        let Ok(mut rig) = opened else { continue };
        match rig.open("v") {
            Ok(_) => {}
            Err(lode_engine::ControlError::Pool(lode_extent::ExtentError::MetadataDamaged {
                ..
            })) => hidden += 1,
            other => panic!("block {lba}: {other:?}"),
        }
    }
    assert!(hidden > 0, "no read hid the volume's record");
}

#[test]
fn a_map_that_could_not_be_read_is_asked_for_again_after_a_while_and_not_before() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 4 << 20, BlockSize::B4096);
    rig.write(volume, 0, &pattern(1, 65536));
    rig.shard.export(rig.pool);
    rig.until(|rig| rig.shard.pool_state(rig.pool) == Some(&lode_extent::PoolState::Exported));
    let mut rig = rig.crash(geometry(BlockSize::B512, WriteCache::None));
    let volume = rig.open("v").expect("the pool recovers");
    fail(&rig, Operation::Read, ErrorKind::Media, 4);
    assert_eq!(rig.try_read(volume, 0, 65536), Err(IoError::Damaged));
    let reads = rig.media.borrow().count(Operation::Read);
    assert_eq!(rig.try_read(volume, 0, 65536), Err(IoError::Damaged));
    assert_eq!(rig.media.borrow().count(Operation::Read), reads);
    rig.poll_after(std::time::Duration::from_secs(2));
    rig.poll_after(std::time::Duration::from_secs(2));
    assert_eq!(rig.read(volume, 0, 65536), pattern(1, 65536));
}

#[test]
fn a_new_block_whose_rest_could_not_be_zeroed_stays_a_hole() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 1 << 20, BlockSize::B512);
    // What lies there on the media must never be seen.
    let whole = rig.create("whole", 1 << 20, BlockSize::B4096);
    rig.write(whole, 0, &pattern(9, 65536));
    let range = (0, 65536);
    let none = Durability::Data;
    let gone = rig.run(whole, DataOperation::Discard, range, none, &[]);
    gone.expect("the blocks become free");
    // The data of one sector, then the zeros around it: each command fails in turn.
    for nth in 0..2 {
        let writes = rig.media.borrow().count(Operation::Write);
        rig.media.borrow_mut().fail_nth_write = Some(writes + nth);
        let data = pattern(3, 512);
        let outcome = rig.run(volume, DataOperation::Write, (512, 512), none, &data);
        assert!(
            matches!(outcome, Err(IoError::Device { .. })),
            "{outcome:?}"
        );
        assert_eq!(rig.read(volume, 0, 4096), vec![0; 4096]);
    }
    rig.media.borrow_mut().fail_nth_write = None;
    rig.write(volume, 512, &pattern(3, 512));
    assert_eq!(rig.read(volume, 0, 512), vec![0; 512]);
    assert_eq!(rig.read(volume, 1024, 3072), vec![0; 3072]);
}

#[test]
fn requests_that_end_early_hold_up_neither_a_discard_nor_a_deletion() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 1 << 20, BlockSize::B4096);
    rig.write(volume, 0, &pattern(1, 65536));
    for kind in [ErrorKind::Media, ErrorKind::Internal] {
        fail(&rig, Operation::Read, kind, 1);
        assert!(rig.try_read(volume, 0, 4096).is_err());
        let data = pattern(2, 4096);
        // In place, and to a new block.
        for offset in [0, 1 << 19] {
            fail(&rig, Operation::Write, kind, 1);
            let range = (offset, 4096);
            let outcome = rig.run(volume, DataOperation::Write, range, Durability::None, &data);
            assert!(outcome.is_err(), "{outcome:?}");
        }
    }
    let past_the_end = rig.try_read(volume, 1 << 20, 4096);
    assert!(matches!(past_the_end, Err(IoError::OutOfRange { .. })));
    let none = Durability::None;
    let discard = rig.run(volume, DataOperation::Discard, (0, 1 << 20), none, &[]);
    discard.expect("nothing is in its way");
    let deleted = rig.control(ControlRequest::DeleteVolume {
        volume: named("v"),
        request: None,
    });
    assert!(deleted.is_ok(), "{deleted:?}");
}

#[test]
fn an_error_of_a_request_that_completes_inline_otherwise_is_deferred_and_told() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 1 << 20, BlockSize::B4096);
    rig.write(volume, 0, &pattern(1, 8192));
    let stats = rig.shard.stats();
    let (inline, errors) = (
        stats.completions_inline.read(),
        stats.completions_deferred[0].read(),
    );
    fail(&rig, Operation::Read, ErrorKind::Media, 1);
    assert!(rig.try_read(volume, 0, 4096).is_err());
    fail(&rig, Operation::Write, ErrorKind::Media, 1);
    let data = pattern(2, 4096);
    let write = DataOperation::Write;
    let outcome = rig.run(volume, write, (0, 4096), Durability::None, &data);
    assert!(outcome.is_err());
    assert_eq!(stats.completions_inline.read(), inline);
    assert_eq!(stats.completions_deferred[0].read(), errors + 2);
}
