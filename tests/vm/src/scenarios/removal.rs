//! A device that is asked for while it is in use, goes, and comes back.

use anyhow::{Context, Result, anyhow, ensure};
use lode_block::{BlockDevice, Operation};
use lode_bus::Bus;
use lode_nvme::{ControllerOptions, QueueOptions};
use lode_vfio::PciAddress;
use lode_vfio::sysfs::Sysfs;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::host;
use crate::kernel::{self, WAIT_STEPS};
use crate::rig::{Rig, bind, length_of, request};

/// Removal is requested with reads in flight: the wish arrives, requests end, the device is let
/// go, and the one that is plugged in afterwards works and holds the same data. Letting go needs
/// nothing of sysfs.
pub(super) fn removal() -> Result<String> {
    let address = appeared()?;
    bind(address)?;
    let mut rig = Rig::open(address, ControllerOptions::default())?;
    let mut queue = rig.queue(1, QueueOptions::default())?;
    rig.write(&mut queue, (8, 8), 31)??;
    rig.flush(&mut queue)??;
    ensure!(
        !rig.controller.bus().is_removal_requested(),
        "no wish before"
    );
    let length = length_of(&queue, 1);
    for lba in 0..32 {
        let read = request(Operation::Read, (lba, 1), rig.span(0, length));
        queue
            .submit(read)
            .map_err(|rejected| anyhow!("{:?}", rejected.reason))?;
    }
    host::monitor_quietly("device_del removable")?;
    queue.kick();
    await_wish(&rig)?;
    ensure!(
        rig.controller.bus().is_removal_requested() && rig.controller.bus().is_present(),
        "the wish stays and is no absence"
    );
    let mut completions = Vec::with_capacity(32);
    rig.until("end of the reads", |rig| {
        queue.poll(rig.now(), &mut completions);
        Ok(completions.len() == 32)
    })?;
    let failed = completions
        .iter()
        .filter(|done| done.result.is_err())
        .count();
    drop(queue);
    rig.close()?;
    vanished(address)?;
    plug_in()?;
    let back = appeared()?;
    bind(back)?;
    let mut rig = Rig::open(back, ControllerOptions::default())?;
    let mut queue = rig.queue(1, QueueOptions::default())?;
    rig.verify(&mut queue, (8, 8), 31)?;
    drop(queue);
    let hidden = HiddenFunctions::hide()?;
    rig.close()?;
    drop(hidden);
    Ok(format!(
        "32 reads in flight, {failed} failed; {back} came back with its data"
    ))
}

/// Sysfs without any PCI function while it lives: a function that is being removed may be gone from
/// there before its owner has let go of it, whoever is faster. Here it always is.
struct HiddenFunctions;

impl HiddenFunctions {
    fn hide() -> Result<Self> {
        mount("none", FUNCTIONS, "tmpfs", MountFlags::empty(), None)
            .context("hiding the functions")?;
        Ok(Self)
    }
}

impl Drop for HiddenFunctions {
    fn drop(&mut self) {
        unmount(FUNCTIONS, UnmountFlags::empty()).expect("what was mounted can be unmounted");
    }
}

fn await_wish(rig: &Rig) -> Result<()> {
    let signal = rig
        .controller
        .bus()
        .removal_signal()
        .context("the kernel tells of removals")?;
    let mut descriptors = [PollFd::new(&signal, PollFlags::IN)];
    let limit = Timespec {
        tv_sec: 20,
        tv_nsec: 0,
    };
    let ready = poll(&mut descriptors, Some(&limit))?;
    ensure!(ready == 1, "the wish did not arrive");
    Ok(())
}

/// Plugs the controller in again, once the machine has finished taking it out: it lets go of
/// its name and its disk a little after the function has vanished.
pub(super) fn plug_in() -> Result<()> {
    let command = "device_add nvme,id=removable,bus=rootport,serial=removable,drive=removable";
    let mut answer = String::new();
    for _ in 0..WAIT_STEPS {
        answer = host::monitor(command)?;
        if answer.is_empty() {
            return Ok(());
        }
        kernel::pause();
    }
    Err(anyhow!(
        "the machine does not let go of the controller: {answer}"
    ))
}

/// The controller behind the slot, wherever the firmware put it.
pub(super) fn appeared() -> Result<PciAddress> {
    for _ in 0..WAIT_STEPS {
        let functions = Sysfs::of_this_machine().nvme_functions()?;
        let found = functions
            .iter()
            .map(|function| function.address)
            .find(|address| !address.to_string().starts_with("0000:00:"));
        if let Some(address) = found {
            return Ok(address);
        }
        kernel::pause();
    }
    Err(anyhow!("no controller appeared in the slot"))
}

pub(super) fn vanished(address: PciAddress) -> Result<()> {
    for _ in 0..WAIT_STEPS {
        if Sysfs::of_this_machine().function(address).is_err() {
            return Ok(());
        }
        kernel::pause();
    }
    Err(anyhow!("{address} did not go"))
}

const FUNCTIONS: &str = "/sys/bus/pci/devices";
