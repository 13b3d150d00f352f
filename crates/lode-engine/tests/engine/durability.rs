//! What is acknowledged as durable survives a power cut, by the commands that the table asks for
//! and no others.

use std::cell::RefCell;
use std::rc::Rc;

use lode_block::{Durability, Operation, WriteCache};
use lode_engine::{ControlReply, ControlRequest, DataOperation, IoError, Routing};
use lode_units::BlockSize;

use crate::device::{Fault, Media, geometry};
use crate::rig::{Rig, pattern};

fn counts(rig: &Rig) -> (usize, usize, usize) {
    let media = rig.media.borrow();
    (
        media.count(Operation::Write),
        media.count(Operation::WriteThrough),
        media.count(Operation::Flush),
    )
}

#[test]
fn plain_overwrites_send_plain_writes_and_complete_inline() {
    let mut rig = Rig::new(WriteCache::Volatile);
    let volume = rig.create("v", 1 << 20, BlockSize::B4096);
    rig.write(volume, 0, &pattern(1, 4096));
    rig.flush(volume).expect("a flush succeeds");
    let inline_before = rig.shard.stats().completions_inline.read();
    let (writes, through, flushes) = counts(&rig);
    for round in 0..100 {
        rig.write(volume, 0, &pattern(round, 4096));
    }
    assert_eq!(counts(&rig), (writes + 100, through, flushes));
    assert_eq!(
        rig.shard.stats().completions_inline.read(),
        inline_before + 100
    );
}

#[test]
fn durable_overwrites_are_forced_to_the_media_without_a_flush() {
    let mut rig = Rig::new(WriteCache::Volatile);
    let volume = rig.create("v", 1 << 20, BlockSize::B4096);
    rig.write(volume, 0, &pattern(1, 4096));
    rig.flush(volume).expect("a flush succeeds");
    let (writes, through, flushes) = counts(&rig);
    let data = pattern(9, 4096);
    let outcome = rig.run(
        volume,
        DataOperation::Write,
        (0, 4096),
        Durability::Data,
        &data,
    );
    assert_eq!(outcome, Ok(Durability::Data));
    assert_eq!(counts(&rig), (writes, through + 1, flushes));
    let mut rig = rig.crash(geometry(BlockSize::B512, WriteCache::Volatile));
    let volume = rig.open("v").expect("the volume is there");
    assert_eq!(rig.read(volume, 0, 4096), data);
}

#[test]
fn durable_overwrites_without_write_through_share_one_flush_behind_their_data() {
    let geometry = lode_block::Geometry {
        supports_write_through: false,
        ..geometry(BlockSize::B512, WriteCache::Volatile)
    };
    let media = Rc::new(RefCell::new(Media::new()));
    let mut rig = Rig::on(media, geometry.clone(), true);
    let volume = rig.create("v", 1 << 20, BlockSize::B4096);
    rig.write(volume, 0, &pattern(1, 65536));
    rig.flush(volume).expect("a flush succeeds");
    rig.until(|rig| !rig.shard.is_busy());
    let (_, through, flushes) = counts(&rig);
    rig.media.borrow_mut().log.clear();
    let tokens: Vec<_> = (0..8_u8)
        .map(|index| {
            let range = (u64::from(index) * 4096, 4096);
            let data = pattern(index, 4096);
            rig.submit(volume, DataOperation::Write, range, Durability::Data, &data)
        })
        .collect();
    for token in tokens {
        assert_eq!(rig.wait(token).result, Ok(Durability::Data));
    }
    assert_eq!(counts(&rig).1, through);
    assert_eq!(counts(&rig).2, flushes + 1, "one flush for the group");
    let last = rig
        .media
        .borrow()
        .log
        .last()
        .map(|(operation, ..)| *operation);
    assert_eq!(
        last,
        Some(Operation::Flush),
        "submitted after the last data completion"
    );
    let mut rig = rig.crash(geometry);
    let volume = rig.open("v").expect("the volume is there");
    for index in 0..8_u8 {
        assert_eq!(
            rig.read(volume, u64::from(index) * 4096, 4096),
            pattern(index, 4096)
        );
    }
}

#[test]
fn a_durable_write_of_new_blocks_survives_a_power_cut() {
    for write_cache in [WriteCache::Volatile, WriteCache::None] {
        let mut rig = Rig::new(write_cache);
        let volume = rig.create("v", 1 << 20, BlockSize::B512);
        let data = pattern(5, 8192 + 512);
        let range = (4096 + 512, 8192 + 512);
        let outcome = rig.run(volume, DataOperation::Write, range, Durability::Data, &data);
        assert_eq!(outcome, Ok(Durability::Data));
        let mut rig = rig.crash(geometry(BlockSize::B512, write_cache));
        let volume = rig.open("v").expect("the volume is there");
        assert_eq!(rig.read(volume, range.0, range.1), data);
        assert_eq!(rig.read(volume, 4096, 512), vec![0; 512]);
    }
}

#[test]
fn what_was_written_before_a_flush_survives_a_power_cut() {
    let mut rig = Rig::new(WriteCache::Volatile);
    let volume = rig.create("v", 4 << 20, BlockSize::B4096);
    let data = pattern(6, 1 << 20);
    rig.write(volume, 0, &data);
    rig.write(volume, 3 << 20, &data[..4096]);
    assert_eq!(rig.flush(volume), Ok(Durability::Data));
    let mut rig = rig.crash(geometry(BlockSize::B512, WriteCache::Volatile));
    let volume = rig.open("v").expect("the volume is there");
    assert_eq!(rig.read(volume, 0, 1 << 20), data);
    assert_eq!(rig.read(volume, 3 << 20, 4096), data[..4096]);
}

#[test]
fn a_write_without_durability_may_be_lost_at_a_power_cut_but_never_shows_stale_data() {
    let mut rig = Rig::new(WriteCache::Volatile);
    let volume = rig.create("v", 1 << 20, BlockSize::B4096);
    rig.write(volume, 0, &pattern(6, 65536));
    let mut rig = rig.crash(geometry(BlockSize::B512, WriteCache::Volatile));
    let volume = rig.open("v").expect("the volume is there");
    let found = rig.read(volume, 0, 65536);
    let is_zero = found.iter().all(|byte| *byte == 0);
    assert!(is_zero || found == pattern(6, 65536), "neither old nor new");
}

#[test]
fn new_blocks_become_durable_in_the_background() {
    let mut rig = Rig::new(WriteCache::Volatile);
    let volume = rig.create("v", 1 << 20, BlockSize::B4096);
    rig.write(volume, 0, &pattern(6, 4096));
    assert!(
        rig.shard.next_deadline().is_some(),
        "a sleeping core wakes for it"
    );
    rig.poll_after(std::time::Duration::from_secs(1));
    rig.until(|rig| !rig.shard.is_busy());
    let mut rig = rig.crash(geometry(BlockSize::B512, WriteCache::Volatile));
    let volume = rig.open("v").expect("the volume is there");
    assert_eq!(rig.read(volume, 0, 4096), pattern(6, 4096));
}

#[test]
fn after_a_failed_flush_nothing_more_is_promised() {
    let mut rig = Rig::new(WriteCache::Volatile);
    let volume = rig.create("v", 1 << 20, BlockSize::B4096);
    rig.write(volume, 0, &pattern(1, 4096));
    rig.flush(volume).expect("a flush succeeds");
    rig.write(volume, 0, &pattern(2, 4096));
    rig.media.borrow_mut().faults.push(Fault {
        operation: Operation::Flush,
        lba: 0..u64::MAX,
        kind: lode_block::ErrorKind::Internal,
        times: 1,
    });
    assert_eq!(rig.flush(volume), Err(IoError::FlushFailed));
    assert_eq!(
        rig.flush(volume),
        Err(IoError::FlushFailed),
        "not even when flushes work again"
    );
    let data = pattern(3, 4096);
    let outcome = rig.run(
        volume,
        DataOperation::Write,
        (0, 4096),
        Durability::Data,
        &data,
    );
    assert_eq!(outcome, Err(IoError::FlushFailed));
    rig.write(volume, 0, &data);
    assert_eq!(
        rig.read(volume, 0, 4096),
        data,
        "what promises nothing goes on"
    );
}

#[test]
fn an_imported_pool_is_known_by_its_name_as_soon_as_it_is_ready() {
    let rig = Rig::new(WriteCache::None);
    let mut rig = rig.crash(geometry(BlockSize::B512, WriteCache::None));
    match rig.control(ControlRequest::ListPools) {
        Ok(ControlReply::Pools(pools)) => assert_eq!(pools[0].name, "tank"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn by_order_every_completion_is_deferred_and_none_is_different() {
    let mut rig = Rig::new(WriteCache::Volatile);
    let volume = rig.create("v", 1 << 20, BlockSize::B4096);
    rig.write(volume, 0, &pattern(1, 8192));
    rig.flush(volume).expect("a flush succeeds");
    rig.shard.set_routing(Routing::AllDeferred);
    let stats = rig.shard.stats();
    let inline = stats.completions_inline.read();
    let flushes = rig.media.borrow().count(Operation::Flush);
    let data = pattern(2, 4096);
    let range = (4096, 4096);
    let written = rig.run(volume, DataOperation::Write, range, Durability::Data, &data);
    assert_eq!(written, Ok(Durability::Data));
    assert_eq!(rig.read(volume, 4096, 4096), data);
    assert_eq!(stats.completions_inline.read(), inline);
    let ordered = lode_engine::REASON_NAMES
        .iter()
        .position(|(_, name)| *name == "ordered")
        .expect("it has a name");
    assert_eq!(stats.completions_deferred[ordered].read(), 2);
    assert_eq!(
        rig.media.borrow().count(Operation::Flush),
        flushes,
        "it owes no more than before"
    );
}

#[test]
fn a_durable_write_over_data_and_holes_is_durable_as_a_whole() {
    for supports_write_through in [true, false] {
        let mut geometry = geometry(BlockSize::B512, WriteCache::Volatile);
        geometry.supports_write_through = supports_write_through;
        let media = Rc::new(RefCell::new(Media::new()));
        let mut rig = Rig::on(media, geometry.clone(), true);
        let volume = rig.create("v", 1 << 20, BlockSize::B4096);
        rig.write(volume, 8192, &pattern(1, 8192));
        rig.flush(volume).expect("a flush succeeds");
        let data = pattern(2, 24_576);
        let range = (0, 24_576);
        let written = rig.run(volume, DataOperation::Write, range, Durability::Data, &data);
        assert_eq!(written, Ok(Durability::Data));
        let mut rig = rig.crash(geometry);
        let volume = rig.open("v").expect("it is there");
        assert_eq!(rig.read(volume, 0, 24_576), data);
    }
}

#[test]
fn durable_barriers_over_one_range_do_not_wait_for_each_others_flush() {
    let mut rig = Rig::new(WriteCache::Volatile);
    let volume = rig.create("v", 1 << 20, BlockSize::B512);
    rig.write(volume, 0, &pattern(1, 65536));
    let zeroes = DataOperation::WriteZeroes;
    let tokens: Vec<_> = (0..8)
        .map(|at| rig.submit(volume, zeroes, (at * 512, 8192), Durability::Full, &[]))
        .collect();
    for token in tokens {
        assert_eq!(rig.wait(token).result, Ok(Durability::Full));
    }
    assert_eq!(rig.read(volume, 0, 7 * 512 + 8192), vec![0; 7 * 512 + 8192]);
}

#[test]
fn forced_writes_and_flushes_are_counted_for_the_volume_that_caused_them() {
    let mut rig = Rig::new(WriteCache::Volatile);
    let forced = rig.create("forced", 1 << 20, BlockSize::B4096);
    let flushed = rig.create("flushed", 1 << 20, BlockSize::B4096);
    for volume in [forced, flushed] {
        rig.write(volume, 0, &pattern(1, 4096));
        rig.flush(volume).expect("a flush succeeds");
    }
    let figures = rig.shard.stats().volumes();
    let counts = |name: &str| {
        let found = figures.iter().find(|figures| figures.volume == name);
        let figures = found.expect("an open volume has figures");
        [
            figures.write_through_commands.read(),
            figures.flushes.read(),
            figures.flush_waiters.read(),
        ]
    };
    let (forced_before, flushed_before) = (counts("forced"), counts("flushed"));
    for _ in 0..3 {
        let range = (0, 4096);
        let data = pattern(2, 4096);
        let outcome = rig.run(forced, DataOperation::Write, range, Durability::Data, &data);
        assert_eq!(outcome, Ok(Durability::Data));
    }
    let since = |before: [u64; 3], now: [u64; 3]| [0, 1, 2].map(|at: usize| now[at] - before[at]);
    assert_eq!(since(forced_before, counts("forced")), [3, 0, 0]);
    assert_eq!(since(flushed_before, counts("flushed")), [0, 0, 0]);
    // One group for both: the volume that asked first has its flush, and both waited.
    let order = [flushed, forced, flushed];
    let tokens = order.map(|volume| {
        let range = (0, 0);
        rig.submit(volume, DataOperation::Flush, range, Durability::None, &[])
    });
    for token in tokens {
        rig.wait(token).result.expect("a flush succeeds");
    }
    assert_eq!(since(flushed_before, counts("flushed")), [0, 1, 2]);
    assert_eq!(since(forced_before, counts("forced")), [3, 0, 1]);
    let stats = rig.shard.stats();
    for (of_all, at) in [
        (stats.write_through_commands.read(), 0),
        (stats.flushes.read(), 1),
        (stats.flush_waiters.read(), 2),
    ] {
        assert_eq!(counts("forced")[at] + counts("flushed")[at], of_all);
    }
}
