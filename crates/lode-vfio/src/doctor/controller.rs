//! One controller: its group, its driver, who may open it and who has it open.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Caller, Check, Examination, Status};
use crate::error::VfioError;
use crate::sysfs::{PciFunction, Sysfs};

pub(super) fn checks(examination: &Examination) -> Result<Vec<Check>, VfioError> {
    let sysfs = &examination.sysfs;
    let mut checks = Vec::new();
    let mut functions = Vec::new();
    if examination.controllers.is_empty() {
        functions = sysfs.nvme_functions()?;
        checks.push(found(&functions));
    }
    for address in &examination.controllers {
        match sysfs.function(*address) {
            Ok(function) => functions.push(function),
            Err(VfioError::NoDevice { .. }) => checks.push(
                Check::bad(
                    "controllers",
                    Status::Missing,
                    format!("there is no PCI function {address}"),
                    "lodectl device list",
                )
                .about(*address),
            ),
            Err(error) => return Err(error),
        }
    }
    for function in &functions {
        let own = checks_of(function, examination)?;
        checks.extend(own.into_iter().map(|check| check.about(function.address)));
    }
    Ok(checks)
}

fn found(functions: &[PciFunction]) -> Check {
    let name = "controllers";
    if functions.is_empty() {
        return Check::bad(
            name,
            Status::Missing,
            "this machine has no NVMe controller on PCI",
            "use file:PATH or memory:SIZE instead of vfio:ADDRESS (an emulated controller)",
        );
    }
    let shown: Vec<_> = functions.iter().map(PciFunction::with_driver).collect();
    Check::good(name, shown.join(", "))
}

fn checks_of(function: &PciFunction, examination: &Examination) -> Result<Vec<Check>, VfioError> {
    let sysfs = &examination.sysfs;
    let mut checks = vec![driver(function, sysfs)?];
    let Some(group) = function.group else {
        checks.push(Check::bad(
            "group",
            Status::Missing,
            "it is in no IOMMU group",
            "switch the IOMMU on: see the check called iommu",
        ));
        return Ok(checks);
    };
    checks.push(viability(function, group, sysfs)?);
    if function.is_bound_to_vfio() {
        checks.push(permission(group, sysfs, &examination.caller));
        checks.push(holder(group, examination)?);
    }
    Ok(checks)
}

fn driver(function: &PciFunction, sysfs: &Sysfs) -> Result<Check, VfioError> {
    if function.is_bound_to_vfio() {
        return Ok(Check::good("driver", "it is bound to vfio-pci"));
    }
    let driver = function.driver.as_deref().unwrap_or("no driver");
    let uses = sysfs.uses(function.address)?;
    let address = function.address;
    if uses.is_empty() {
        return Ok(Check::bad(
            "driver",
            Status::Missing,
            format!("it is bound to {driver}"),
            format!("lodectl device bind {address}"),
        ));
    }
    Ok(Check::bad(
        "driver",
        Status::Missing,
        format!("it is bound to {driver} and in use: {}", uses.join("; ")),
        format!("choose another controller, or free this one and: lodectl device bind {address}"),
    ))
}

fn viability(function: &PciFunction, group: u32, sysfs: &Sysfs) -> Result<Check, VfioError> {
    let siblings = sysfs.siblings(function)?;
    let spoiling: Vec<_> = siblings
        .iter()
        .filter(|sibling| sibling.spoils_group())
        .collect();
    if spoiling.is_empty() {
        return Ok(Check::good(
            "group",
            format!("group {group} with {} other functions", siblings.len()),
        ));
    }
    let shown: Vec<_> = spoiling
        .iter()
        .map(|sibling| sibling.with_driver())
        .collect();
    let commands: Vec<_> = spoiling
        .iter()
        .map(|sibling| {
            let address = sibling.address;
            format!("echo {address} > /sys/bus/pci/devices/{address}/driver/unbind")
        })
        .collect();
    Ok(Check::bad(
        "group",
        Status::Missing,
        format!(
            "group {group} is not viable because of {}",
            shown.join(", ")
        ),
        format!(
            "{}, or move the controller to another slot",
            commands.join("; ")
        ),
    ))
}

fn permission(group: u32, sysfs: &Sysfs, caller: &Caller) -> Check {
    let name = "permission";
    let node = node(group);
    let Ok(metadata) = fs::metadata(sysfs.path(&node)) else {
        return Check::bad(
            name,
            Status::Missing,
            format!("/{} does not exist", node.display()),
            "modprobe vfio-pci",
        );
    };
    if may_use(&metadata, caller) {
        return Check::good(name, format!("/{} may be opened", node.display()));
    }
    Check::bad(
        name,
        Status::Missing,
        format!(
            "user {} may not open /{} (owner {}, mode {:o})",
            caller.user,
            node.display(),
            metadata.uid(),
            metadata.mode() & 0o777
        ),
        format!("chown {} /{} (as root)", caller.user, node.display()),
    )
}

/// Whether reading and writing is allowed by owner, group and mode.
fn may_use(metadata: &fs::Metadata, caller: &Caller) -> bool {
    let shift = if caller.is_root() {
        return true;
    } else if caller.user == metadata.uid() {
        6
    } else if caller.groups.contains(&metadata.gid()) {
        3
    } else {
        0
    };
    metadata.mode() >> shift & 0o6 == 0o6
}

/// Which process has the group open. Those of other users cannot be looked into without root.
fn holder(group: u32, examination: &Examination) -> Result<Check, VfioError> {
    let sysfs = &examination.sysfs;
    let target = Path::new("/").join(node(group));
    let mut is_partial = false;
    for process in sysfs.names(Path::new("proc"))? {
        if process.parse::<u32>().is_err() {
            continue;
        }
        let directory = Path::new("proc").join(&process);
        // A process that ended, or one of another user.
        let Ok(descriptors) = fs::read_dir(sysfs.path(&directory).join("fd")) else {
            is_partial = true;
            continue;
        };
        let has_it = descriptors
            .filter_map(Result::ok)
            .any(|entry| fs::read_link(entry.path()).is_ok_and(|path| path == target));
        if has_it {
            let program = sysfs.text(&directory.join("comm"))?.unwrap_or_default();
            let program = program.trim();
            return Ok(Check::bad(
                "busy",
                Status::Missing,
                format!("process {process} ({program}) has the group open"),
                format!("stop it, for example: kill {process}"),
            ));
        }
    }
    if is_partial && !examination.caller.is_root() {
        return Ok(Check::bad(
            "busy",
            Status::Unknown,
            "no process of this user has the group open; those of others cannot be seen",
            "sudo lodectl doctor",
        ));
    }
    Ok(Check::good("busy", "no process has the group open"))
}

fn node(group: u32) -> PathBuf {
    Path::new("dev/vfio").join(group.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::doctor::tests::{examination, find};
    use crate::sysfs::tests::{FakeTree, address};

    fn bound() -> FakeTree {
        let tree = FakeTree::new();
        tree.function("0000:01:00.0", "0x010802", Some("vfio-pci"), Some(7))
            .file("dev/vfio/7", "");
        tree
    }

    fn checked(tree: &FakeTree) -> Vec<Check> {
        checks(&examination(tree)).expect("checks")
    }

    #[test]
    fn a_controller_with_the_kernels_driver_is_told_the_command_that_binds_it() {
        let tree = FakeTree::new();
        tree.function("0000:01:00.0", "0x010802", Some("nvme"), Some(7));
        let checks = checked(&tree);
        let check = find(&checks, "driver");
        assert_eq!(check.finding, "it is bound to nvme");
        assert_eq!(
            check.remedy.as_deref(),
            Some("lodectl device bind 0000:01:00.0")
        );
        assert_eq!(check.subject, Some(address("0000:01:00.0")));
    }

    #[test]
    fn a_sibling_that_spoils_the_group_is_named_with_its_driver() {
        let tree = bound();
        tree.function("0000:01:00.1", "0x040300", Some("snd_hda_intel"), Some(7));
        let checks = checked(&tree);
        let check = find(&checks, "group");
        assert_eq!(check.status, Status::Missing);
        assert!(check.finding.contains("0000:01:00.1 (snd_hda_intel)"));
        let remedy = check.remedy.as_ref().expect("a remedy");
        assert!(remedy.contains("echo 0000:01:00.1 >"), "{remedy}");
    }

    #[test]
    fn a_controller_without_a_group_needs_the_iommu() {
        let tree = FakeTree::new();
        tree.function("0000:01:00.0", "0x010802", Some("vfio-pci"), None);
        assert_eq!(find(&checked(&tree), "group").status, Status::Missing);
    }

    #[test]
    fn owner_group_and_mode_of_the_node_decide_who_may_open_it() {
        let tree = bound();
        let path = tree.sysfs().path(Path::new("dev/vfio/7"));
        let set = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode");
            fs::metadata(&path).expect("metadata")
        };
        let owner = set(0o600).uid();
        let group = set(0o600).gid();
        let caller = |user, groups: &[u32]| Caller {
            memory_lock_limit_bytes: None,
            user,
            groups: groups.to_vec(),
        };
        let (other_user, other_group) = (owner + 4321, group + 4321);
        let stranger = caller(other_user, &[other_group]);
        let member = caller(other_user, &[other_group, group]);
        assert!(may_use(&set(0o600), &caller(0, &[0])));
        assert!(!may_use(&set(0o600), &stranger));
        assert!(!may_use(&set(0o600), &member));
        assert!(may_use(&set(0o660), &member));
        assert!(!may_use(&set(0o660), &stranger));
        assert!(!may_use(&set(0o664), &stranger));
        assert!(may_use(&set(0o666), &stranger));
    }

    #[test]
    fn a_node_that_may_not_be_opened_is_told_the_command_that_gives_it_away() {
        let tree = bound();
        let path = tree.sysfs().path(Path::new("dev/vfio/7"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("mode");
        let mut examination = examination(&tree);
        examination.caller.user = fs::metadata(&path).expect("metadata").uid() + 4321;
        let check = permission(7, &examination.sysfs, &examination.caller);
        assert_eq!(check.status, Status::Missing);
        let user = examination.caller.user;
        assert_eq!(
            check.remedy,
            Some(format!("chown {user} /dev/vfio/7 (as root)"))
        );
    }

    #[test]
    fn the_process_that_has_the_group_open_is_named() {
        let tree = bound();
        tree.link("proc/321/fd/9", "/dev/vfio/7")
            .file("proc/321/comm", "lodestored\n")
            .link("proc/322/fd/9", "/dev/vfio/8")
            .directory("proc/self/fd");
        let checks = checked(&tree);
        let check = find(&checks, "busy");
        assert_eq!(check.status, Status::Missing);
        assert!(check.finding.contains("321 (lodestored)"));
    }

    #[test]
    fn processes_that_cannot_be_seen_are_admitted() {
        let tree = bound();
        tree.file("proc/323/comm", "another\n");
        assert_eq!(find(&checked(&tree), "busy").status, Status::Unknown);
        let mut examination = examination(&tree);
        examination.caller.user = 0;
        let checks = checks(&examination).expect("checks");
        assert_eq!(find(&checks, "busy").status, Status::Good);
    }

    #[test]
    fn a_controller_asked_for_that_does_not_exist_is_told() {
        let tree = FakeTree::new();
        let mut examination = examination(&tree);
        examination.controllers = vec![address("0000:09:00.0")];
        let checks = checks(&examination).expect("checks");
        assert_eq!(checks.len(), 1);
        assert!(checks[0].finding.contains("0000:09:00.0"));
    }
}
