//! Files on file systems of their own, which a test mounts where the system lets an ordinary
//! process do so: one that is full, and one that can do no more than read and write.

use std::path::{Path, PathBuf};
use std::process::Command;

use lode_nvme_emu::{Access, EmulatedController, EmulatorSpec};
use lode_nvme_spec::command::{BlockFlags, DatasetManagement, DatasetRange, flush};
use lode_nvme_spec::{GenericStatus, NvmOpcode};
use zerocopy::IntoBytes;

use crate::host::{Host, NSID, Pair, block, pattern};

/// Runs the test called `test` again in a mount namespace, with a folder on a file system mounted
/// by `options`. Returns that folder in the second run, and `None` in the first, which fails when
/// the second did. Where nothing can be mounted there is no second run.
fn mounted(test: &str, options: &str) -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return Some(folder.into());
    }
    let folder = tempfile::tempdir().expect("a folder");
    let itself = std::env::current_exe().expect("this program");
    let script = format!("mount {options} none \"$0\" || exit 77; \"$1\" --exact \"$2\"");
    let outcome = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", &script])
        .arg(folder.path())
        .arg(itself)
        .arg(test)
        .env(FOLDER, folder.path())
        .output()
        .ok()?;
    let output = String::from_utf8_lossy(&outcome.stdout);
    let ran = output.contains("running 1 test");
    let was_refused = !ran && matches!(outcome.status.code(), Some(1 | 77));
    assert!(outcome.status.success() || was_refused, "{output}");
    None
}

fn open(folder: &Path, options: &str) -> (Host, Pair) {
    let spec: EmulatorSpec = format!("file:{}?{options}", folder.join("disk").display())
        .parse()
        .expect("a device string");
    let controller = EmulatedController::open(&spec).expect("a sparse file");
    let mut host = Host::over(controller);
    host.enable();
    let pair = host.create_pair(1, 8);
    (host, pair)
}

#[test]
fn a_full_file_system_is_capacity_exceeded_and_reads_go_on() {
    let name = "mounted::a_full_file_system_is_capacity_exceeded_and_reads_go_on";
    let Some(folder) = mounted(name, "-t tmpfs -o size=1M") else {
        return;
    };
    for options in [
        "create&size=8MiB&lba=4096",
        "create&size=8MiB&lba=4096&cache=modelled",
    ] {
        let (host, mut pair) = open(&folder, options);
        let data = pattern(1, 65536);
        host.write(&mut pair, 0, &data, BlockFlags::FORCE_UNIT_ACCESS);
        let buffer = host.allocate(1 << 20);
        let pages = host.pages(&buffer, 0, 1 << 20);
        let write = block(NvmOpcode::Write, 256, 256, BlockFlags::FORCE_UNIT_ACCESS);
        let status = host.run(&mut pair, write.with_data(pages)).status();
        assert_eq!(status, GenericStatus::CapacityExceeded.into());
        assert_eq!(host.read(&mut pair, 0, 65536), data);
        drop(host);
        std::fs::remove_file(folder.join("disk")).expect("the file");
    }
}

#[test]
fn a_file_system_without_direct_io_and_fallocate_serves_all_the_same() {
    let name = "mounted::a_file_system_without_direct_io_and_fallocate_serves_all_the_same";
    let Some(folder) = mounted(name, "-t ramfs") else {
        return;
    };
    let (host, mut pair) = open(&folder, "create&size=8MiB&lba=512");
    let access = host.controller.access(NSID);
    assert!(matches!(
        access,
        Some(Access::FileBuffered | Access::FileBlocking)
    ));
    let data = pattern(2, 4 << 20);
    for (index, part) in (0..).zip(data.chunks(1 << 20)) {
        host.write(&mut pair, index * 2048, part, BlockFlags::empty());
    }
    // Longer than one bounce buffer, so that zeros are written in parts.
    let zero = block(
        NvmOpcode::WriteZeroes,
        3,
        5000,
        BlockFlags::FORCE_UNIT_ACCESS,
    );
    host.run_ok(&mut pair, zero);
    let list = host.allocate(4096);
    let range = DatasetRange {
        block_count: 8.into(),
        lba: 6000.into(),
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
    host.run_ok(&mut pair, flush(NSID));
    let mut expected = data;
    expected[3 * 512..5003 * 512].fill(0);
    let mut found = Vec::new();
    for index in 0..4 {
        found.extend(host.read(&mut pair, index * 2048, 1 << 20));
    }
    assert!(
        found == expected,
        "a hint that cannot be taken changes nothing"
    );
}

const FOLDER: &str = "LODE_NVME_EMU_MOUNTED_FOLDER";
