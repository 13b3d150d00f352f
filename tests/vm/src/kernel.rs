//! The kernel's side: its own NVMe driver, its log, and waiting for it.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lode_vfio::PciAddress;
use lode_vfio::sysfs::{Patience, Sysfs};
use rustix::fs::OFlags;

/// The block device of namespace `namespace` of the controller at `address` with the kernel's
/// driver, which is given the controller when it does not have it. Blocks until it is there.
pub(crate) fn disk_path(address: PciAddress, namespace: u32) -> Result<PathBuf> {
    Sysfs::of_this_machine()
        .unbind(address, Patience::default())
        .context("giving the controller back")?;
    for _ in 0..WAIT_STEPS {
        if let Some(disk) = find_disk(address, namespace) {
            return Ok(disk);
        }
        pause();
    }
    bail!("the kernel shows no namespace {namespace} of {address}")
}

/// Opens what [`disk_path`] finds.
pub(crate) fn open_disk(address: PciAddress, namespace: u32) -> Result<File> {
    let path = disk_path(address, namespace)?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .with_context(|| format!("opening {}", path.display()))
}

/// The block device of a namespace, without the kernel's multipath. The number in its name is not
/// that of the namespace.
fn find_disk(address: PciAddress, namespace: u32) -> Option<PathBuf> {
    let disks = std::fs::read_dir(find_controller(address)?).ok()?;
    disks.filter_map(Result::ok).find_map(|disk| {
        let number = std::fs::read_to_string(disk.path().join("nsid")).ok()?;
        let path = PathBuf::from("/dev").join(disk.file_name());
        (number.trim().parse() == Ok(namespace) && path.exists()).then_some(path)
    })
}

/// What the kernel's driver shows of a controller that it has.
fn find_controller(address: PciAddress) -> Option<PathBuf> {
    let controllers = format!("/sys/bus/pci/devices/{address}/nvme");
    let controller = std::fs::read_dir(controllers).ok()?.next()?.ok()?;
    Some(controller.path())
}

/// The identifier by which its subsystem knows a controller that the kernel's driver has (CNTLID).
pub(crate) fn controller_id(address: PciAddress) -> Result<u16> {
    let shown = find_controller(address).context("the kernel does not have it")?;
    let id = std::fs::read_to_string(shown.join("cntlid"))?;
    id.trim().parse().with_context(|| id.clone())
}

/// The node through which a controller that the kernel's driver has takes commands.
pub(crate) fn open_controller(address: PciAddress) -> Result<File> {
    let shown = find_controller(address).context("the kernel does not have it")?;
    let name = shown.file_name().context("a name")?;
    let node = PathBuf::from("/dev").join(name);
    File::open(&node).with_context(|| format!("opening {}", node.display()))
}

/// The lines of the kernel's log in which the IOMMU reports an access that it blocked.
pub(crate) fn blocked_accesses() -> Result<Vec<String>> {
    let mut log: File = rustix::fs::open(
        "/dev/kmsg",
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .context("the kernel's log")?
    .into();
    let mut found = Vec::new();
    let mut record = vec![0; RECORD_MAX_BYTES];
    for _ in 0..RECORDS_MAX {
        match log.read(&mut record) {
            Ok(length) => {
                let text = String::from_utf8_lossy(record.get(..length).unwrap_or_default());
                let message = text.split(';').nth(1).unwrap_or_default();
                let line = message.lines().next().unwrap_or_default();
                if line.contains("DMAR:") && line.contains("fault addr") {
                    found.push(line.to_owned());
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(found),
            // A record was overwritten while it was read; the next one follows.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("the kernel's log has no end")
}

#[expect(
    clippy::disallowed_methods,
    reason = "a device node and a driver appear without an event; the caller's loop is bounded"
)]
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

/// How often [`pause`] is called before something counts as never coming: half a minute.
pub(crate) const WAIT_STEPS: usize = 1500;
/// The kernel's own bound for one record.
const RECORD_MAX_BYTES: usize = 8192;
const RECORDS_MAX: usize = 1 << 20;
