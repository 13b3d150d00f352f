//! The guest's unprivileged user, and what root does for it: what the doctor says, to the letter.

use std::os::unix::fs::chown;
use std::path::PathBuf;

use anyhow::{Context, Result};
use lode_vfio::PciAddress;
use lode_vfio::doctor::{self, Caller, Examination};
use lode_vfio::sysfs::Sysfs;

/// The user, and its group.
pub(crate) const USER: u32 = 1000;

/// Gives the user the device nodes of the controller at `address`, as root: the ones that the
/// doctor names. They are taken back when the result is dropped.
pub(crate) fn give_nodes(address: PciAddress) -> Result<GivenNodes> {
    let checks = doctor::examine(&Examination {
        sysfs: Sysfs::of_this_machine(),
        controllers: vec![address],
        needed_locked_bytes: 0,
        caller: Caller {
            memory_lock_limit_bytes: None,
            user: USER,
            groups: vec![USER],
        },
    })?;
    let check = checks.iter().find(|check| check.name == "permission");
    let remedy = check.and_then(|check| check.remedy.as_deref());
    obey(remedy.with_context(|| format!("nothing is to be given: {check:?}"))?)
}

/// Carries out a remedy of the check called `permission`.
pub(crate) fn obey(remedy: &str) -> Result<GivenNodes> {
    let nodes = remedy
        .strip_prefix(&format!("chown {USER} "))
        .and_then(|rest| rest.strip_suffix(" (as root)"))
        .with_context(|| format!("no command that gives nodes away: {remedy}"))?;
    let mut given = GivenNodes(Vec::new());
    for node in nodes.split(' ') {
        chown(node, Some(USER), None).with_context(|| format!("giving {node} away"))?;
        given.0.push(node.into());
    }
    Ok(given)
}

/// Device nodes that belong to the user meanwhile.
pub(crate) struct GivenNodes(Vec<PathBuf>);

impl Drop for GivenNodes {
    fn drop(&mut self) {
        for node in &self.0 {
            // Gone together with its controller.
            let _gone = chown(node, Some(0), None).is_err();
        }
    }
}
