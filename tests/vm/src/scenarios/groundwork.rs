//! What the machine looks like before a controller is taken.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use lode_vfio::VfioError;
use lode_vfio::doctor::{self, Caller, Check, Examination, Status};
use lode_vfio::sysfs::{Consent, Patience, Sysfs};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::plain;
use crate::kernel;
use crate::rig;

/// The doctor sees the machine as it is before and after a controller is bound.
pub(super) fn doctor() -> Result<String> {
    let address = plain()?;
    kernel::open_disk(address, 1)?;
    let examination = Examination {
        sysfs: Sysfs::of_this_machine(),
        controllers: vec![address],
        needed_locked_bytes: 64 << 20,
        caller: Caller::this_process(),
    };
    let before = by_name(doctor::examine(&examination)?);
    for name in [
        "iommu",
        "vfio",
        "interrupt-remapping",
        "memory-lock",
        "group",
    ] {
        expect(&before, name, Status::Good)?;
    }
    let remedy = expect(&before, "driver", Status::Missing)?.remedy.clone();
    ensure!(
        remedy.is_some_and(|remedy| remedy == format!("lodectl device bind {address}")),
        "{before:?}"
    );
    rig::bind(address)?;
    let after = by_name(doctor::examine(&examination)?);
    for name in ["driver", "group", "permission", "busy"] {
        expect(&after, name, Status::Good)?;
    }
    let held = rig::Rig::start(address)?;
    let during = by_name(doctor::examine(&examination)?);
    let busy = expect(&during, "busy", Status::Missing)?.finding.clone();
    held.close()?;
    Ok(format!(
        "{}; {}; {busy}",
        after.get("iommu").context("iommu")?.finding,
        after.get("group").context("group")?.finding,
    ))
}

fn by_name(checks: Vec<Check>) -> BTreeMap<&'static str, Check> {
    checks
        .into_iter()
        .map(|check| (check.name, check))
        .collect()
}

fn expect<'a>(
    checks: &'a BTreeMap<&'static str, Check>,
    name: &str,
    status: Status,
) -> Result<&'a Check> {
    let check = checks.get(name).with_context(|| format!("check {name}"))?;
    ensure!(check.status == status, "{check:?}");
    Ok(check)
}

/// A disk with a file system's mark is refused; so is one that holds a mounted device.
pub(super) fn in_use() -> Result<String> {
    let address = plain()?;
    let disk = kernel::open_disk(address, 3)?;
    // The superblock's mark of an ext file system, where ext4 puts it.
    std::os::unix::fs::FileExt::write_all_at(&disk, b"\x53\xEF", 0x438)?;
    disk.sync_all()?;
    drop(disk);
    let sysfs = Sysfs::of_this_machine();
    let refused = sysfs.bind(address, Consent::UnusedOnly, Patience::default());
    let Err(VfioError::InUse { uses, .. }) = refused else {
        bail!("a disk with a file system was taken: {refused:?}");
    };
    let still = sysfs.function(address)?.driver;
    ensure!(
        still.as_deref() == Some("nvme"),
        "the kernel lost it: {still:?}"
    );
    check_mounted_is_told(&sysfs)?;
    let disk = kernel::open_disk(address, 3)?;
    std::os::unix::fs::FileExt::write_all_at(&disk, &[0; 2], 0x438)?;
    disk.sync_all()?;
    drop(disk);
    let taken = sysfs.bind(address, Consent::UnusedOnly, Patience::default())?;
    ensure!(taken.is_bound_to_vfio(), "{taken:?}");
    Ok(format!("refused: {}", uses.join("; ")))
}

/// A real mount of the guest shows in the kernel's table under the number of its device.
fn check_mounted_is_told(sysfs: &Sysfs) -> Result<()> {
    std::fs::create_dir_all("/tmp/inner")?;
    mount("tmpfs", "/tmp/inner", "tmpfs", MountFlags::empty(), None)?;
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    unmount("/tmp/inner", UnmountFlags::empty())?;
    ensure!(table.contains(" /tmp/inner "), "{table}");
    ensure!(Path::new("/sys/block").is_dir(), "{sysfs:?}");
    Ok(())
}
