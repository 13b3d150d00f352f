//! The volatile cache: what is lost at a power cut, and what is not.

use lode_nvme_emu::{
    Cache, ControllerOptions, EmulatedController, Fate, Media, NamespaceOptions, UnflushedBlock,
};
use lode_nvme_spec::command::{BlockFlags, DatasetManagement, DatasetRange, SetFeatures, flush};
use lode_nvme_spec::feature::FeatureId;
use lode_nvme_spec::registers::{Configuration, ShutdownNotification, ShutdownStatus};
use lode_nvme_spec::{GenericStatus, NvmOpcode, Status};
use lode_units::{BlockSize, Lba, NamespaceId, Random, SeededRandom};
use zerocopy::IntoBytes;

use crate::host::{Host, NSID, Pair, block, pattern};

fn cached() -> (Host, Pair) {
    let options = ControllerOptions::default();
    let mut host = Host::with_cache(options, BlockSize::B512, 4096, Cache::MODELLED);
    let pair = host.create_pair(1, 64);
    (host, pair)
}

fn lose_all(_block: UnflushedBlock) -> Fate {
    Fate::Lose
}

fn cut(host: &mut Host, mut choose: impl FnMut(UnflushedBlock) -> Fate) -> Pair {
    host.controller
        .power_cut(&mut choose)
        .expect("memory does not fail");
    host.enable();
    host.create_pair(1, 64)
}

fn on_media(host: &Host, lba: u64, length: usize) -> Vec<u8> {
    let media = host.controller.media(NSID).expect("a namespace");
    media.snapshot(lba * 512, length)
}

#[test]
fn an_unflushed_write_is_read_back_and_really_lost() {
    let (mut host, mut pair) = cached();
    let data = pattern(1, 4096);
    host.write(&mut pair, 8, &data, BlockFlags::empty());
    assert_eq!(host.read(&mut pair, 8, 4096), data);
    assert_eq!(on_media(&host, 8, 4096), vec![0; 4096]);
    assert_eq!(host.controller.unflushed_count(NSID), Some(8));
    let mut pair = cut(&mut host, lose_all);
    assert_eq!(host.read(&mut pair, 8, 4096), vec![0; 4096]);
}

#[test]
fn a_flush_makes_what_completed_before_it_survive() {
    for id in [NSID, NamespaceId::new(u32::MAX)] {
        let (mut host, mut pair) = cached();
        let data = pattern(2, 4096);
        host.write(&mut pair, 0, &data, BlockFlags::empty());
        host.run_ok(&mut pair, flush(id));
        host.write(&mut pair, 100, &data, BlockFlags::empty());
        let mut pair = cut(&mut host, lose_all);
        assert_eq!(host.read(&mut pair, 0, 4096), data);
        assert_eq!(host.read(&mut pair, 100, 4096), vec![0; 4096]);
    }
}

#[test]
fn force_unit_access_makes_its_own_blocks_survive_and_no_others() {
    let (mut host, mut pair) = cached();
    let (old, new) = (pattern(3, 512), pattern(4, 512));
    host.write(&mut pair, 5, &old, BlockFlags::empty());
    host.write(&mut pair, 6, &old, BlockFlags::empty());
    host.write(&mut pair, 5, &new, BlockFlags::FORCE_UNIT_ACCESS);
    assert_eq!(host.controller.counters().operations.writes_fua, 1);
    // Even when every cached version is kept, none may undo what is on the media.
    let mut pair = cut(&mut host, |block| {
        assert_eq!(block.lba, Lba::new(6));
        Fate::Lose
    });
    assert_eq!(host.read(&mut pair, 5, 512), new);
    assert_eq!(host.read(&mut pair, 6, 512), vec![0; 512]);
}

#[test]
fn a_write_tears_between_its_blocks() {
    let (mut host, mut pair) = cached();
    let data = pattern(5, 4096);
    host.write(&mut pair, 0, &data, BlockFlags::empty());
    let mut pair = cut(&mut host, |block| {
        if block.lba.get() % 2 == 0 {
            Fate::Keep
        } else {
            Fate::Lose
        }
    });
    let after = host.read(&mut pair, 0, 4096);
    for (index, block) in after.chunks(512).enumerate() {
        let expected = if index % 2 == 0 {
            &data[index * 512..][..512]
        } else {
            &[0; 512]
        };
        assert_eq!(block, expected, "block {index}");
    }
}

#[test]
fn after_any_power_cut_each_block_holds_one_of_its_versions() {
    for seed in 0..40 {
        let mut random = SeededRandom::new(seed);
        let (mut host, mut pair) = cached();
        let mut versions = vec![vec![vec![0; 512]]; 16];
        for round in 0..30 {
            let lba = random.below(15);
            let data = pattern(seed * 1000 + round, 1024);
            host.write(&mut pair, lba, &data, BlockFlags::empty());
            for (block, bytes) in (lba..).zip(data.chunks(512)) {
                let list = &mut versions[usize::try_from(block).expect("few")];
                list.push(bytes.to_vec());
            }
            if random.below(10) == 0 {
                host.run_ok(&mut pair, flush(NSID));
                for list in &mut versions {
                    list.drain(..list.len() - 1);
                }
            }
        }
        let mut pair = cut(&mut host, |_block| {
            if random.below(2) == 0 {
                Fate::Keep
            } else {
                Fate::Lose
            }
        });
        for (lba, list) in (0..).zip(&versions) {
            let found = host.read(&mut pair, lba, 512);
            assert!(list.contains(&found), "seed {seed}, block {lba}");
        }
    }
}

#[test]
fn a_lying_flush_loses_what_it_promised() {
    let (mut host, mut pair) = cached();
    assert!(host.controller.set_lies_about_flush(NSID, true));
    let data = pattern(6, 512);
    host.write(&mut pair, 0, &data, BlockFlags::FORCE_UNIT_ACCESS);
    host.write(&mut pair, 1, &data, BlockFlags::empty());
    host.run_ok(&mut pair, flush(NSID));
    let mut pair = cut(&mut host, lose_all);
    assert_eq!(host.read(&mut pair, 0, 1024), vec![0; 1024]);
}

#[test]
fn a_cache_that_is_switched_off_loses_nothing() {
    let (mut host, mut pair) = cached();
    let data = pattern(7, 512);
    host.write(&mut pair, 0, &data, BlockFlags::empty());
    let off = SetFeatures {
        feature: FeatureId::VolatileWriteCache,
        is_saved: false,
        value: 0,
    };
    host.admin_ok(off.encode());
    host.write(&mut pair, 1, &data, BlockFlags::empty());
    let mut pair = cut(&mut host, lose_all);
    assert_eq!(
        host.read(&mut pair, 0, 512),
        data,
        "switching off writes back"
    );
    assert_eq!(host.read(&mut pair, 1, 512), data);
}

#[test]
fn a_small_cache_writes_its_oldest_blocks_back() {
    let cache = Cache::Modelled {
        capacity_bytes: 8 * 512,
    };
    let options = ControllerOptions::default();
    let mut host = Host::with_cache(options, BlockSize::B512, 4096, cache);
    let mut pair = host.create_pair(1, 8);
    let data = pattern(8, 12 * 512);
    host.write(&mut pair, 0, &data, BlockFlags::empty());
    assert_eq!(host.controller.unflushed_count(NSID), Some(8));
    let mut pair = cut(&mut host, lose_all);
    let after = host.read(&mut pair, 0, 12 * 512);
    assert_eq!(after[..4 * 512], data[..4 * 512]);
    assert!(after[4 * 512..].iter().all(|byte| *byte == 0));
}

#[test]
fn zeroing_and_deallocating_are_lost_like_any_write() {
    let (mut host, mut pair) = cached();
    let data = pattern(9, 4096);
    host.write(&mut pair, 0, &data, BlockFlags::FORCE_UNIT_ACCESS);
    host.run_ok(
        &mut pair,
        block(NvmOpcode::WriteZeroes, 0, 2, BlockFlags::empty()),
    );
    let list = host.allocate(4096);
    let range = DatasetRange {
        block_count: 2.into(),
        lba: 4.into(),
        ..DatasetRange::default()
    };
    list.copy_from_slice(0, range.as_bytes());
    let deallocate = DatasetManagement {
        namespace: NSID,
        range_count: 1,
        deallocates: true,
    };
    host.run_ok(
        &mut pair,
        deallocate.encode().with_data(host.pages(&list, 0, 16)),
    );
    let mut zeroed = data.clone();
    zeroed[..1024].fill(0);
    zeroed[2048..3072].fill(0);
    assert_eq!(host.read(&mut pair, 0, 4096), zeroed);
    let mut pair = cut(&mut host, lose_all);
    assert_eq!(host.read(&mut pair, 0, 4096), data);
    let through = block(NvmOpcode::WriteZeroes, 0, 8, BlockFlags::FORCE_UNIT_ACCESS);
    host.run_ok(&mut pair, through);
    let mut pair = cut(&mut host, lose_all);
    assert_eq!(host.read(&mut pair, 0, 4096), vec![0; 4096]);
}

#[test]
fn compare_and_verify_see_what_sits_in_the_cache() {
    let (host, mut pair) = cached();
    let data = pattern(10, 2048);
    host.write(&mut pair, 0, &data, BlockFlags::empty());
    host.run_ok(
        &mut pair,
        block(NvmOpcode::WriteZeroes, 2, 1, BlockFlags::empty()),
    );
    let mut expected = data;
    expected[1024..1536].fill(0);
    let buffer = host.allocate(4096);
    buffer.copy_from_slice(6, &expected);
    buffer.copy_from_slice(8, &expected);
    let compare = block(NvmOpcode::Compare, 0, 4, BlockFlags::empty());
    let compare = compare.with_data(host.pages(&buffer, 8, 2048));
    host.run_ok(&mut pair, compare);
    buffer.copy_from_slice(8 + 1100, &[1]);
    let status = host.run(&mut pair, compare).status();
    assert_eq!(status.raw(), 0x285);
    host.run_ok(
        &mut pair,
        block(NvmOpcode::Verify, 0, 4096, BlockFlags::empty()),
    );
}

#[test]
fn a_normal_shutdown_writes_the_cache_back_and_an_abrupt_one_need_not() {
    for (shutdown, survives) in [
        (ShutdownNotification::Normal, true),
        (ShutdownNotification::Abrupt, false),
    ] {
        let (mut host, mut pair) = cached();
        let data = pattern(11, 512);
        host.write(&mut pair, 0, &data, BlockFlags::empty());
        host.configure(Configuration {
            shutdown,
            ..Host::enabled()
        });
        host.advance();
        assert_eq!(host.status().shutdown, ShutdownStatus::Complete);
        let mut pair = cut(&mut host, lose_all);
        let expected = if survives { data } else { vec![0; 512] };
        assert_eq!(host.read(&mut pair, 0, 512), expected);
    }
}

#[test]
fn what_was_not_flushed_is_gone_when_the_controller_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    let open = |media: Media| {
        let namespace = NamespaceOptions {
            cache: Cache::MODELLED,
            ..NamespaceOptions::new(BlockSize::B512, media)
        };
        let options = ControllerOptions::default();
        let mut host =
            Host::over(EmulatedController::new(options, vec![namespace]).expect("options"));
        host.enable();
        let pair = host.create_pair(1, 8);
        (host, pair)
    };
    let (host, mut pair) = open(Media::create_file(&path, 1 << 20, 512).expect("a file"));
    let data = pattern(12, 512);
    host.write(&mut pair, 0, &data, BlockFlags::empty());
    host.run_ok(&mut pair, flush(NSID));
    host.write(&mut pair, 1, &data, BlockFlags::empty());
    drop(host);
    let (host, mut pair) = open(Media::open_file(&path, None, 512).expect("the file"));
    assert_eq!(host.read(&mut pair, 0, 512), data);
    assert_eq!(host.read(&mut pair, 1, 512), vec![0; 512]);
}

#[test]
fn a_second_controller_over_the_same_media_finds_what_was_flushed() {
    let (host, mut pair) = cached();
    let data = pattern(13, 512);
    host.write(&mut pair, 9, &data, BlockFlags::FORCE_UNIT_ACCESS);
    let media = host.controller.media(NSID).expect("a namespace");
    drop(host);
    let namespace = NamespaceOptions::new(BlockSize::B512, media);
    let options = ControllerOptions::default();
    let mut host = Host::over(EmulatedController::new(options, vec![namespace]).expect("options"));
    host.enable();
    let mut pair = host.create_pair(1, 8);
    assert_eq!(host.read(&mut pair, 9, 512), data);
}

#[test]
fn a_power_cut_takes_queues_and_mappings_away() {
    let (mut host, mut pair) = cached();
    host.submit(&mut pair, flush(NSID));
    host.controller
        .power_cut(&mut lose_all)
        .expect("memory does not fail");
    host.advance();
    assert!(host.next(&mut pair).is_none());
    assert!(!host.status().ready);
    let buffer = host
        .space
        .allocate(4096, lode_bus::PagePreference::Ordinary);
    let buffer = buffer.expect("memory");
    host.enable();
    let mut pair = host.create_pair(1, 8);
    let read = block(NvmOpcode::Read, 0, 1, BlockFlags::empty());
    let status = host
        .run(&mut pair, read.with_data(host.pages(&buffer, 0, 512)))
        .status();
    assert_eq!(status, Status::from(GenericStatus::DataTransferError));
}

#[test]
fn a_write_in_flight_is_kept_lost_or_torn_even_when_it_is_written_through() {
    for flags in [BlockFlags::empty(), BlockFlags::FORCE_UNIT_ACCESS] {
        for keeps in [[false, false], [true, false], [false, true], [true, true]] {
            let (mut host, mut pair) = cached();
            let (old, new) = (pattern(14, 1024), pattern(15, 1024));
            host.write(&mut pair, 0, &old, BlockFlags::empty());
            let rule = "opcode=write -> delay=1ms".parse().expect("a rule");
            host.controller.install_fault(rule).expect("room");
            let buffer = host.allocate(4096);
            buffer.copy_from_slice(0, &new);
            let write = block(NvmOpcode::Write, 0, 2, flags);
            host.submit(&mut pair, write.with_data(host.pages(&buffer, 0, 1024)));
            host.advance();
            host.controller.clear_faults();
            let mut last = 0;
            let mut pair = cut(&mut host, |block| {
                assert!(block.write >= last, "the oldest write comes first");
                last = block.write;
                let index = usize::try_from(block.lba.get()).expect("few");
                let keep = !block.is_in_flight || keeps[index];
                if keep { Fate::Keep } else { Fate::Lose }
            });
            let mut expected = old.clone();
            for (index, keep) in keeps.into_iter().enumerate() {
                if keep {
                    let bytes = index * 512..(index + 1) * 512;
                    expected[bytes.clone()].copy_from_slice(&new[bytes]);
                }
            }
            assert_eq!(host.read(&mut pair, 0, 1024), expected);
        }
    }
}
