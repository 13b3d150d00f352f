//! A controller comes up and says what it is.

use anyhow::{Result, ensure};
use lode_bus::Bus;
use lode_nvme::{ControllerOptions, QueueOptions};

use super::{plain, shadow};
use crate::rig::{Rig, bind};

/// Identify: the controller, five namespaces of two block sizes, the queues that it grants.
pub(super) fn bring_up() -> Result<String> {
    let rig = Rig::start(plain()?)?;
    let identity = rig
        .controller
        .identity()
        .ok_or_else(|| anyhow::anyhow!("no identity"))?;
    let blocks: Vec<_> = rig
        .controller
        .namespaces()
        .iter()
        .map(|namespace| namespace.geometry.block_size.bytes())
        .collect();
    ensure!(blocks == [512, 4096, 512, 4096, 512], "{blocks:?}");
    ensure!(identity.serial_number == "plain", "{identity:?}");
    ensure!(!identity.uses_shadow_doorbells, "{identity:?}");
    let first = rig.namespace(1)?.geometry;
    ensure!(first.capacity_bytes() == 6 << 30, "{first:?}");
    let finding = format!(
        "{} (NVMe {:?}), 5 namespaces, transfers up to {} KiB, {} queue pairs, {} vectors, {:?}",
        identity.model_number,
        identity.version,
        identity.transfer_max_bytes / 1024,
        rig.controller.queue_pairs_granted(),
        rig.controller.bus().interrupt_count(),
        rig.data.page_kind(),
    );
    rig.close()?;
    Ok(finding)
}

/// Two controllers at once, each in its own I/O address space: the same address leads to
/// different memory.
pub(super) fn two_controllers() -> Result<String> {
    bind(plain()?)?;
    bind(shadow()?)?;
    let mut first = Rig::open(plain()?, ControllerOptions::default())?;
    let mut second = Rig::open(shadow()?, ControllerOptions::default())?;
    ensure!(
        first.data.iova() == second.data.iova(),
        "the spaces are separate and begin alike"
    );
    let mut first_queue = first.queue(1, QueueOptions::default())?;
    let mut second_queue = second.queue(1, QueueOptions::default())?;
    for round in 1..=50 {
        first.write(&mut first_queue, (round, 8), round)??;
        second.write(&mut second_queue, (round, 8), round + 1000)??;
        first.verify(&mut first_queue, (round, 8), round)?;
        second.verify(&mut second_queue, (round, 8), round + 1000)?;
    }
    drop((first_queue, second_queue));
    first.close()?;
    second.close()?;
    Ok("50 rounds on both, nothing mixed up".to_owned())
}
