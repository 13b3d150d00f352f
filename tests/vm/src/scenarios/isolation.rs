//! What the IOMMU lets through and what it does not.

use anyhow::{Result, ensure};
use lode_block::{BlockDevice, Operation};
use lode_bus::PagePreference;
use lode_nvme::{ControllerOptions, QueueOptions};

use super::shadow;
use crate::kernel;
use crate::rig::{Rig, bind, length_of, request};

/// A read into memory that was hidden again is blocked and logged, and the memory stays as it
/// was: the negative control of [`no_stray_dma`].
pub(super) fn blocked_dma() -> Result<String> {
    bind(shadow()?)?;
    let mut rig = Rig::open(shadow()?, ControllerOptions::default())?;
    let mut queue = rig.queue(1, QueueOptions::default())?;
    let hidden = rig.space.allocate(4096, PagePreference::Ordinary)?;
    rig.controller.map_memory(&hidden)?;
    let span = lode_bus::DmaSpan {
        iova: hidden.iova(),
        length_bytes: u32::try_from(length_of(&queue, 8))?,
    };
    rig.write(&mut queue, (400, 8), 8)??;
    rig.run(&mut queue, request(Operation::Read, (400, 8), span))??;
    ensure!(!hidden.equals(0, &[0; 4096]), "mapped memory is written");
    hidden.fill_zero(0, 4096);
    rig.controller.unmap_memory(&hidden)?;
    let before = kernel::blocked_accesses()?.len();
    // The emulated device calls a blocked access a success; what counts is the IOMMU's log.
    let _either = rig.run(&mut queue, request(Operation::Read, (400, 8), span))?;
    ensure!(hidden.equals(0, &[0; 4096]), "hidden memory was written");
    let blocked = kernel::blocked_accesses()?;
    ensure!(blocked.len() > before, "the IOMMU logged nothing");
    ensure!(queue.in_flight() == 0, "nothing is left");
    drop(queue);
    rig.close()?;
    Ok(blocked.last().cloned().unwrap_or_default())
}

/// No scenario of this guest so far has made a device touch memory that it may not.
pub(super) fn no_stray_dma() -> Result<String> {
    let blocked = kernel::blocked_accesses()?;
    ensure!(blocked.is_empty(), "stray accesses: {blocked:?}");
    Ok("the IOMMU logged no blocked access since the guest started".to_owned())
}
