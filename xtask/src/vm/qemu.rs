//! QEMU's command line for a guest.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::guests::{Disk, Emulation, Fault, Plan};
use super::kit::Kit;
use crate::process;

/// A QEMU that carries out `plan`, its files and sockets in `directory`. The disks are made anew.
///
/// # Errors
/// When a disk or the log cannot be made.
pub(super) fn command(plan: &Plan, kit: &Kit, image: &Path, directory: &Path) -> Result<Command> {
    let console = File::create(directory.join(CONSOLE)).context("the console's file")?;
    let mut command = Command::new(&kit.qemu);
    command
        // Software emulation: the guest needs an IOMMU and nothing of the host's.
        .args(match plan.emulation {
            Emulation::Parallel => &["-accel", "tcg,thread=multi", "-smp", "2"][..],
            Emulation::Counted => &COUNTED,
        })
        .args(["-machine", "q35", "-cpu", "max"])
        .args(["-m", "1G", "-nodefaults", "-display", "none"])
        .args(["-no-reboot", "-serial", "stdio"])
        .arg("-kernel")
        .arg(&kit.kernel)
        .arg("-initrd")
        .arg(image)
        .args(["-append", &kernel_arguments(plan)])
        .args(["-device", "intel-iommu,intremap=on"])
        .args(["-device", "virtio-serial-pci"])
        .arg("-chardev")
        .arg(socket("line", directory, LINE))
        .args(["-device", "virtserialport,chardev=line,nr=1"])
        .arg("-chardev")
        .arg(socket("monitor", directory, MONITOR))
        .args(["-mon", "chardev=monitor,mode=control"])
        .stdin(Stdio::null())
        .stdout(console.try_clone()?)
        .stderr(console);
    for disk in plan.guest.disks {
        make(disk, &directory.join(disk.file))?;
        if disk.fault == Fault::Limited {
            command.args(["-object", &format!("throttle-group,id={}", disk.node)]);
        }
        command
            .arg("-blockdev")
            .arg(disk.describe(directory).to_string());
    }
    for device in plan.guest.devices {
        command.args(["-device", device]);
    }
    Ok(command)
}

/// Makes the file behind a disk, if it has one.
fn make(disk: &Disk, path: &Path) -> Result<()> {
    if disk.fault == Fault::Null {
        return Ok(());
    }
    let file = File::create(path).context("a disk")?;
    file.set_len(disk.mebibytes << 20)
        .context("a disk's length")?;
    if disk.fault == Fault::Used {
        process::output(
            Command::new("mke2fs")
                .args(["-q", "-F", "-t", "ext4"])
                .arg(path),
        )?;
    }
    Ok(())
}

/// A panic ends the machine at once; namespaces appear under their controller, not under a
/// multipath device. The kernel's check that the timer ticks in time is left out: on a busy host
/// an emulated one does not.
fn kernel_arguments(plan: &Plan) -> String {
    format!(
        "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off no_timer_check \
         intel_iommu=on nvme_core.multipath=N {} lode.scenarios={}",
        plan.guest.kernel,
        plan.scenarios.join(",")
    )
}

fn socket(name: &str, directory: &Path, file: &str) -> String {
    let path = directory.join(file);
    format!(
        "socket,id={name},path={},server=on,wait=off",
        path.display()
    )
}

const COUNTED: [&str; 6] = [
    "-accel",
    "tcg,thread=single",
    "-smp",
    "1",
    "-icount",
    "shift=0,sleep=off",
];

pub(super) const LINE: &str = "line";
pub(super) const MONITOR: &str = "monitor";
pub(super) const CONSOLE: &str = "console";
