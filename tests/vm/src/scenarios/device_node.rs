//! A controller through its own device node and iommufd.

use anyhow::{Context, Result, bail, ensure};
use lode_nvme::{ControllerOptions, QueueOptions};
use lode_vfio::doctor::{self, Caller, Examination};
use lode_vfio::sysfs::Sysfs;
use lode_vfio::{PciAddress, VfioBus, VfioError};

use crate::rig::{Rig, bind};

/// Where the kernel has the newer interface it is the one that is gone through; data goes both
/// ways; the doctor says which interface it is and who has it; a second taker is told that it is
/// busy.
pub(super) fn device_node() -> Result<String> {
    let address: PciAddress = "0000:00:14.0".parse().context("an address")?;
    bind(address)?;
    let mut rig = Rig::open(address, ControllerOptions::default())?;
    let node = rig.controller.bus().node().display().to_string();
    ensure!(
        node.starts_with("/dev/vfio/devices/vfio"),
        "it was opened through {node}"
    );
    let mut queue = rig.queue(1, QueueOptions::default())?;
    rig.write(&mut queue, (0, 512), 17)??;
    rig.flush(&mut queue)??;
    rig.verify(&mut queue, (0, 512), 17)?;
    let permission = finding(address, "permission")?;
    ensure!(permission.contains("iommufd"), "{permission}");
    let busy = finding(address, "busy")?;
    ensure!(busy.contains(&std::process::id().to_string()), "{busy}");
    match VfioBus::open(address) {
        Err(VfioError::Busy { path }) => ensure!(path.display().to_string() == node, "{path:?}"),
        other => bail!("a second taker got {other:?}"),
    }
    drop(queue);
    rig.close()?;
    Ok(format!("{permission}; with a second taker: {busy}"))
}

fn finding(address: PciAddress, name: &str) -> Result<String> {
    let checks = doctor::examine(&Examination {
        sysfs: Sysfs::of_this_machine(),
        controllers: vec![address],
        needed_locked_bytes: 0,
        caller: Caller::this_process(),
    })?;
    let check = checks.into_iter().find(|check| check.name == name);
    Ok(check.with_context(|| format!("no check {name}"))?.finding)
}
