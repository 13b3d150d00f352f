//! Namespaces on files: the same data, direct or through bounce buffers, and what can go wrong
//! with a file.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use lode_bus::Bus;
use lode_nvme_emu::{
    Access, Cache, ControllerOptions, EmulatedController, EmulatorError, EmulatorSpec, Media,
    NamespaceOptions,
};
use lode_nvme_spec::command::{BlockFlags, DatasetManagement, DatasetRange, DeleteQueue, flush};
use lode_nvme_spec::{DataPointer, MediaStatus, NvmOpcode, Status};
use lode_units::{BlockSize, NamespaceId};
use tempfile::TempDir;
use zerocopy::IntoBytes;

use crate::host::{Host, NSID, Pair, block, pattern};

const BLOCKS: u64 = 8192;

struct OnFile {
    host: Host,
    pair: Pair,
    path: PathBuf,
    _folder: TempDir,
}

fn on_file(cache: Cache) -> OnFile {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    let media = Media::create_file(&path, BLOCKS * 512, 512).expect("a sparse file");
    let namespace = NamespaceOptions {
        cache,
        ..NamespaceOptions::new(BlockSize::B512, media)
    };
    let controller =
        EmulatedController::new(ControllerOptions::default(), vec![namespace]).expect("options");
    let mut host = Host::over(controller);
    host.enable();
    let pair = host.create_pair(1, 64);
    OnFile {
        host,
        pair,
        path,
        _folder: folder,
    }
}

fn spec(path: &Path, options: &str) -> EmulatorSpec {
    format!("file:{}?{options}", path.display())
        .parse()
        .expect("a device string")
}

fn bytes_of_file(path: &Path, lba: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let file = File::open(path).expect("the file");
    file.read_exact_at(&mut bytes, lba * 512)
        .expect("its bytes");
    bytes
}

#[test]
fn a_file_is_reached_without_blocking_calls_where_the_host_allows_a_ring() {
    let on_file = on_file(Cache::Host);
    let access = on_file.host.controller.access(NSID);
    let can_ring = io_uring::IoUring::new(1).is_ok();
    assert_eq!(access == Some(Access::FileBlocking), !can_ring);
}

#[test]
fn transfers_of_every_offset_and_length_reach_the_file() {
    let OnFile {
        host,
        mut pair,
        path,
        _folder,
    } = on_file(Cache::Host);
    let buffer = host.allocate(256 << 10);
    for (round, length) in [512, 4096, 8704, 65536].into_iter().enumerate() {
        for offset in [0, 4, 512, 1536, 4092] {
            let data = pattern(round as u64 * 7 + offset as u64, length);
            buffer.copy_from_slice(offset, &data);
            let blocks = host.blocks(length);
            let pages = host.pages(&buffer, offset, length);
            let write = block(NvmOpcode::Write, 24, blocks, BlockFlags::empty());
            host.run_ok(&mut pair, write.with_data(pages));
            assert_eq!(bytes_of_file(&path, 24, length), data);
            buffer.fill_zero(0, 256 << 10);
            let read = block(NvmOpcode::Read, 24, blocks, BlockFlags::empty());
            host.run_ok(&mut pair, read.with_data(pages));
            assert!(buffer.equals(offset, &data), "{length} bytes at {offset}");
            assert!(buffer.equals(offset + length, &[0; 64]), "nothing beyond");
        }
    }
}

#[test]
fn scattered_pages_go_through_more_bounce_buffers_than_there_are() {
    let OnFile {
        host,
        mut pair,
        _folder,
        ..
    } = on_file(Cache::Host);
    let buffer = host.allocate(128 * 4096);
    let page = |index: u64| buffer.iova().get() + index * 4096;
    for index in 0..40_u64 {
        let at = usize::try_from(2 * index * 4096).expect("small");
        buffer.copy_from_slice(at, &pattern(index, 4096));
        buffer.copy_from_slice(at + 4096, &pattern(index + 100, 4096));
        // The pages of each transfer lie in reverse order, which no single operation can take.
        let pages = DataPointer::new(page(2 * index + 1), page(2 * index));
        let write = block(NvmOpcode::Write, index * 16, 16, BlockFlags::empty());
        host.queue(&mut pair, write.with_data(pages));
    }
    host.ring(&pair);
    for _ in 0..40 {
        assert_eq!(host.wait(&mut pair).status(), Status::SUCCESS);
    }
    for index in 0..40_u64 {
        let mut expected = pattern(index + 100, 4096);
        expected.extend(pattern(index, 4096));
        assert_eq!(host.read(&mut pair, index * 16, 8192), expected);
    }
}

#[test]
fn many_commands_are_in_flight_at_once_and_each_completes_once() {
    let OnFile {
        host,
        mut pair,
        _folder,
        ..
    } = on_file(Cache::Host);
    let buffer = host.allocate(63 * 4096);
    for round in 0..20_u64 {
        for index in 0..63_u64 {
            let at = usize::try_from(index * 4096).expect("small");
            buffer.copy_from_slice(at, &pattern(round * 100 + index, 4096));
            let data = DataPointer::new(buffer.iova().get() + index * 4096, 0);
            let write = block(NvmOpcode::Write, index * 8, 8, BlockFlags::empty());
            host.queue(&mut pair, write.with_data(data));
        }
        host.ring(&pair);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..63 {
            let completion = host.wait(&mut pair);
            assert_eq!(completion.status(), Status::SUCCESS);
            assert!(seen.insert(completion.command_id()));
        }
        assert!(host.next(&mut pair).is_none());
    }
    for index in 0..63_u64 {
        assert_eq!(
            host.read(&mut pair, index * 8, 4096),
            pattern(1900 + index, 4096)
        );
    }
}

#[test]
fn flush_write_through_and_compare_work_on_a_file() {
    let OnFile {
        host,
        mut pair,
        _folder,
        ..
    } = on_file(Cache::Host);
    let data = pattern(5, 8192);
    host.write(&mut pair, 0, &data, BlockFlags::FORCE_UNIT_ACCESS);
    host.run_ok(&mut pair, flush(NSID));
    host.run_ok(&mut pair, flush(NamespaceId::new(u32::MAX)));
    let buffer = host.allocate(8192);
    buffer.copy_from_slice(0, &data);
    let compare = block(NvmOpcode::Compare, 0, 16, BlockFlags::empty());
    let compare = compare.with_data(host.pages(&buffer, 0, 8192));
    host.run_ok(&mut pair, compare);
    buffer.copy_from_slice(8191, &[!data[8191]]);
    let status = host.run(&mut pair, compare).status();
    assert_eq!(status, MediaStatus::CompareFailure.into());
    host.run_ok(
        &mut pair,
        block(NvmOpcode::Verify, 0, 8192, BlockFlags::empty()),
    );
}

#[test]
fn zeroed_and_deallocated_blocks_read_as_zeros_and_give_their_space_back() {
    let OnFile {
        host,
        mut pair,
        path,
        _folder,
    } = on_file(Cache::Host);
    let length = 1 << 20;
    let data = pattern(9, length);
    host.write(&mut pair, 0, &data, BlockFlags::FORCE_UNIT_ACCESS);
    let allocated = std::fs::metadata(&path).expect("the file").blocks();
    let zero = block(NvmOpcode::WriteZeroes, 8, 8, BlockFlags::FORCE_UNIT_ACCESS);
    host.run_ok(&mut pair, zero);
    let ranges = [(1000, 24), (64, 0), (1024, 1024)].map(|(lba, count)| DatasetRange {
        lba: lba.into(),
        block_count: count.into(),
        ..DatasetRange::default()
    });
    let list = host.allocate(4096);
    list.copy_from_slice(0, ranges.as_bytes());
    let deallocate = DatasetManagement {
        namespace: NSID,
        range_count: 3,
        deallocates: true,
    };
    let deallocate = deallocate.encode().with_data(host.pages(&list, 0, 48));
    host.run_ok(&mut pair, deallocate);
    let mut expected = data;
    for (lba, count) in [(8, 8), (1000, 24), (1024, 1024)] {
        expected[lba * 512..(lba + count) * 512].fill(0);
    }
    assert!(host.read(&mut pair, 0, length) == expected);
    let left = std::fs::metadata(&path).expect("the file").blocks();
    assert!(
        left + 1000 < allocated,
        "{left} of {allocated} sectors left"
    );
}

#[test]
fn data_are_there_when_the_file_is_opened_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    let data = pattern(3, 65536);
    for round in 0..2 {
        let controller =
            EmulatedController::open(&spec(&path, "create&size=4MiB&lba=4096")).expect("the file");
        let mut host = Host::over(controller);
        host.enable();
        let mut pair = host.create_pair(1, 16);
        if round == 0 {
            host.write(&mut pair, 5, &data, BlockFlags::empty());
        } else {
            assert_eq!(host.read(&mut pair, 5, data.len()), data);
        }
    }
}

#[test]
fn a_file_is_opened_by_one_controller_at_a_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    let first = EmulatedController::open(&spec(&path, "create&size=1MiB")).expect("the file");
    let second = EmulatedController::open(&spec(&path, ""));
    assert!(matches!(second, Err(EmulatorError::InUse { .. })));
    drop(first);
    EmulatedController::open(&spec(&path, "")).expect("free again");
}

#[test]
fn files_that_do_not_fit_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    let open = |options: &str| EmulatedController::open(&spec(&path, options)).map(|_| ());
    assert!(matches!(open(""), Err(EmulatorError::Open { .. })));
    open("create&size=1MiB").expect("created");
    for size in ["2MiB", "512KiB"] {
        let outcome = open(&format!("size={size}"));
        let Err(EmulatorError::SizeMismatch { actual_bytes, .. }) = outcome else {
            panic!("another size is refused");
        };
        assert_eq!(actual_bytes, 1 << 20);
    }
    let file = OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("the file");
    file.set_len(1_000_000).expect("a cut");
    assert!(matches!(open(""), Err(EmulatorError::SizeNotBlocks { .. })));
    let outcome = EmulatedController::open(&spec(folder.path(), ""));
    assert!(matches!(outcome, Err(EmulatorError::Open { .. })));
    let null = EmulatedController::open(&spec(Path::new("/dev/null"), ""));
    assert!(matches!(null, Err(EmulatorError::NotStorage { .. })));
}

#[test]
fn reading_where_the_file_was_cut_is_a_media_error_and_nothing_else_suffers() {
    let OnFile {
        host,
        mut pair,
        path,
        _folder,
    } = on_file(Cache::Host);
    host.write(&mut pair, 0, &pattern(1, 4096), BlockFlags::empty());
    let file = OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("the file");
    file.set_len(1 << 20).expect("a cut");
    let buffer = host.allocate(4096);
    let data = host.pages(&buffer, 0, 4096);
    let lost = block(NvmOpcode::Read, 4096, 8, BlockFlags::empty()).with_data(data);
    let status = host.run(&mut pair, lost).status();
    assert_eq!(status, MediaStatus::UnrecoveredRead.into());
    assert_eq!(host.read(&mut pair, 0, 4096), pattern(1, 4096));
}

#[test]
fn a_reset_waits_for_file_operations_and_completes_none_of_them() {
    let OnFile {
        mut host,
        mut pair,
        _folder,
        ..
    } = on_file(Cache::Host);
    let buffer = host.allocate(48 * 65536);
    for index in 0..48_u64 {
        let at = usize::try_from(index * 65536).expect("small");
        let write = block(NvmOpcode::Write, index * 128, 128, BlockFlags::empty());
        host.queue(&mut pair, write.with_data(host.pages(&buffer, at, 65536)));
    }
    host.ring(&pair);
    host.advance();
    host.disable();
    assert!(
        host.next(&mut pair).is_none(),
        "nothing completes after a reset"
    );
    host.controller
        .unmap(&buffer)
        .expect("nothing is in flight");
    host.enable();
    let mut pair = host.create_pair(1, 64);
    host.write(&mut pair, 0, &pattern(8, 4096), BlockFlags::empty());
    assert_eq!(host.read(&mut pair, 0, 4096), pattern(8, 4096));
}

#[test]
fn unmapping_waits_for_reads_into_the_memory_and_keeps_their_completions() {
    let OnFile {
        host,
        mut pair,
        _folder,
        ..
    } = on_file(Cache::Host);
    let buffer = host.allocate(32 * 65536);
    for index in 0..32_u64 {
        let at = usize::try_from(index * 65536).expect("small");
        let read = block(NvmOpcode::Read, index * 128, 128, BlockFlags::empty());
        host.queue(&mut pair, read.with_data(host.pages(&buffer, at, 65536)));
    }
    host.ring(&pair);
    host.advance();
    host.controller.unmap(&buffer).expect("the reads end");
    for _ in 0..32 {
        assert_eq!(host.wait(&mut pair).status(), Status::SUCCESS);
    }
}

#[test]
fn deleting_a_queue_waits_for_its_file_operations() {
    let OnFile {
        mut host,
        mut pair,
        _folder,
        ..
    } = on_file(Cache::Host);
    let buffer = host.allocate(48 * 65536);
    for index in 0..48_u64 {
        let at = usize::try_from(index * 65536).expect("small");
        let write = block(NvmOpcode::Write, index * 128, 128, BlockFlags::empty());
        host.queue(&mut pair, write.with_data(host.pages(&buffer, at, 65536)));
    }
    host.ring(&pair);
    host.advance();
    let queue = pair.id;
    host.admin_ok(DeleteQueue { queue }.encode_submission());
    for _ in 0..48 {
        let completion = host.next(&mut pair).expect("completed before the deletion");
        assert_eq!(completion.status(), Status::SUCCESS);
    }
    host.admin_ok(DeleteQueue { queue }.encode_completion());
    let mut pair = host.create_pair(1, 8);
    host.run_ok(&mut pair, flush(NSID));
}

#[test]
fn a_broadcast_flush_reaches_every_namespace_of_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    let spec = spec(&path, "create&size=4MiB&namespaces=3");
    let mut host = Host::over(EmulatedController::open(&spec).expect("the file"));
    host.enable();
    let mut pair = host.create_pair(1, 8);
    for id in 1..=3 {
        host.run_ok(&mut pair, flush(NamespaceId::new(id)));
    }
    host.run_ok(&mut pair, flush(NamespaceId::new(u32::MAX)));
    assert!(host.controller.remove_namespace(NamespaceId::new(2)));
    host.run_ok(&mut pair, flush(NamespaceId::new(u32::MAX)));
}
