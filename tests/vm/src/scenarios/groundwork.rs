//! What the machine looks like before a controller is taken.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use lode_bus::PageKind;
use lode_nvme::QueueOptions;
use lode_vfio::doctor::{self, Caller, Check, Examination, Status};
use lode_vfio::sysfs::{Consent, Patience, Sysfs};
use lode_vfio::{PciAddress, VfioError};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::{faulty, plain, shadow};
use crate::kernel;
use crate::rig;

/// The doctor sees the machine as it is before and after a controller is bound.
pub(super) fn doctor() -> Result<String> {
    let address = shadow()?;
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

/// Where huge pages are reserved, the driver's memory lies in them, and the doctor counts them.
pub(super) fn huge_pages() -> Result<String> {
    let mut rig = rig::Rig::start(faulty()?)?;
    let kind = rig.data.page_kind();
    ensure!(kind == PageKind::Huge, "{kind:?} pages");
    let mut queue = rig.queue(1, QueueOptions::default())?;
    rig.write(&mut queue, (0, 64), 12)??;
    rig.verify(&mut queue, (0, 64), 12)?;
    drop(queue);
    let checks = by_name(doctor::examine(&Examination {
        sysfs: Sysfs::of_this_machine(),
        controllers: vec![faulty()?],
        needed_locked_bytes: 64 << 20,
        caller: Caller::this_process(),
    })?);
    let finding = expect(&checks, "huge-pages", Status::Good)?.finding.clone();
    rig.close()?;
    Ok(finding)
}

/// A disk that is mounted is refused, and so is one that only holds a file system; with consent
/// it is taken.
pub(super) fn in_use() -> Result<String> {
    let address = plain()?;
    let disk = kernel::disk_path(address, 3)?;
    let sysfs = Sysfs::of_this_machine();
    std::fs::create_dir_all(MOUNT_POINT)?;
    mount(&disk, MOUNT_POINT, "ext4", MountFlags::RDONLY, None).context("mounting the disk")?;
    let mounted = refused(&sysfs, address)?;
    ensure!(
        mounted.len() == 2
            && mounted[0].ends_with(&format!("is mounted at {MOUNT_POINT}"))
            && mounted[1].ends_with("holds an ext2/3/4 file system"),
        "{mounted:?}"
    );
    unmount(MOUNT_POINT, UnmountFlags::empty())?;
    let idle = refused(&sysfs, address)?;
    ensure!(idle == mounted[1..], "{idle:?}");
    let taken = sysfs.bind(address, Consent::EvenInUse, Patience::default())?;
    ensure!(taken.is_bound_to_vfio(), "{taken:?}");
    Ok(format!("refused: {}", mounted.join("; ")))
}

/// The uses for which the controller was refused; the kernel still has it then.
fn refused(sysfs: &Sysfs, address: PciAddress) -> Result<Vec<String>> {
    let outcome = sysfs.bind(address, Consent::UnusedOnly, Patience::default());
    let Err(VfioError::InUse { uses, .. }) = outcome else {
        bail!("a disk in use was taken: {outcome:?}");
    };
    let driver = sysfs.function(address)?.driver;
    ensure!(
        driver.as_deref() == Some("nvme"),
        "the kernel lost it: {driver:?}"
    );
    Ok(uses)
}

const MOUNT_POINT: &str = "/tmp/mounted";
