//! One controller that is bound to VFIO: who may open it, through which device nodes, and who has
//! it open.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{Caller, Check, Examination, Status};
use crate::error::VfioError;
use crate::nodes::{self, Way};
use crate::sysfs::{PciFunction, Sysfs};

pub(super) fn checks(
    function: &PciFunction,
    group: u32,
    examination: &Examination,
) -> Result<[Check; 2], VfioError> {
    let way = Way::of(function, group, &examination.sysfs)?;
    Ok([
        permission(&way, &examination.sysfs, &examination.caller),
        holder(function, group, examination)?,
    ])
}

/// Whether the device nodes on the way to the function may be opened, and which way that is.
fn permission(way: &Way, sysfs: &Sysfs, caller: &Caller) -> Check {
    let name = "permission";
    let mut closed = Vec::new();
    let mut found = Vec::new();
    for node in way.nodes() {
        let Ok(metadata) = fs::metadata(sysfs.below(node)) else {
            return Check::bad(
                name,
                Status::Missing,
                format!("{} does not exist", node.display()),
                "modprobe vfio-pci",
            );
        };
        if !may_use(&metadata, caller) {
            let (owner, mode) = (metadata.uid(), metadata.mode() & 0o777);
            found.push(format!("{} (owner {owner}, mode {mode:o})", node.display()));
            closed.push(node.display().to_string());
        }
    }
    if closed.is_empty() {
        let [node, space] = way.nodes().map(Path::display);
        let interface = way.interface();
        return Check::good(
            name,
            format!("{node} and {space} may be opened ({interface})"),
        );
    }
    Check::bad(
        name,
        Status::Missing,
        format!("user {} may not open {}", caller.user, found.join(", ")),
        format!("chown {} {} (as root)", caller.user, closed.join(" ")),
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

/// Which process has the function or its group open. Those of other users cannot be looked into
/// without root.
fn holder(
    function: &PciFunction,
    group: u32,
    examination: &Examination,
) -> Result<Check, VfioError> {
    let sysfs = &examination.sysfs;
    let mut targets = vec![nodes::group_node(group)];
    targets.extend(nodes::device_node(function, sysfs)?);
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
            .any(|entry| fs::read_link(entry.path()).is_ok_and(|path| targets.contains(&path)));
        if has_it {
            let program = sysfs.text(&directory.join("comm"))?.unwrap_or_default();
            let program = program.trim();
            return Ok(Check::bad(
                "busy",
                Status::Missing,
                format!("process {process} ({program}) has it open"),
                format!("stop it, for example: kill {process}"),
            ));
        }
    }
    if is_partial && !examination.caller.is_root() {
        return Ok(Check::bad(
            "busy",
            Status::Unknown,
            "no process of this user has it open; those of others cannot be seen",
            "sudo lodectl doctor",
        ));
    }
    Ok(Check::good("busy", "no process has it open"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::doctor::controller;
    use crate::doctor::tests::{examination, find};
    use crate::sysfs::tests::FakeTree;

    fn bound() -> FakeTree {
        let tree = FakeTree::new();
        tree.function("0000:01:00.0", "0x010802", Some("vfio-pci"), Some(7))
            .file("dev/vfio/7", "")
            .file("dev/vfio/vfio", "");
        // As the kernel makes it: everybody may have a container.
        let path = tree.sysfs().path(Path::new("dev/vfio/vfio"));
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).expect("mode");
        tree
    }

    fn checked(tree: &FakeTree) -> Vec<Check> {
        controller::checks(&examination(tree)).expect("checks")
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
        let set = |mode| {
            let path = tree.sysfs().path(Path::new("dev/vfio/7"));
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode");
            fs::metadata(&path).expect("metadata").uid()
        };
        let mut examination = examination(&tree);
        let user = set(0o600) + 4321;
        examination.caller.user = user;
        let checks = controller::checks(&examination).expect("checks");
        let check = find(&checks, "permission");
        assert_eq!(check.status, Status::Missing);
        assert_eq!(
            check.remedy,
            Some(format!("chown {user} /dev/vfio/7 (as root)"))
        );
        set(0o666);
        let checks = controller::checks(&examination).expect("checks");
        let check = find(&checks, "permission");
        assert_eq!(check.status, Status::Good);
        assert!(check.finding.contains("group and container"), "{check:?}");
    }

    #[test]
    fn nodes_of_the_newer_interface_are_asked_for_where_they_are_gone_through() {
        let tree = bound();
        tree.directory("sys/bus/pci/devices/0000:01:00.0/vfio-dev/vfio0")
            .file("dev/vfio/devices/vfio0", "")
            .file("dev/iommu", "");
        let mut examination = examination(&tree);
        examination.caller.user = 0;
        let checks = controller::checks(&examination).expect("checks");
        let finding = &find(&checks, "permission").finding;
        let expected = if cfg!(feature = "iommufd") {
            "/dev/vfio/devices/vfio0 and /dev/iommu may be opened (iommufd)"
        } else {
            "/dev/vfio/7 and /dev/vfio/vfio may be opened (group and container)"
        };
        assert_eq!(finding, expected);
    }

    #[test]
    fn a_process_that_has_the_functions_own_node_open_is_found_too() {
        let tree = bound();
        tree.directory("sys/bus/pci/devices/0000:01:00.0/vfio-dev/vfio0")
            .link("proc/321/fd/9", "/dev/vfio/devices/vfio0")
            .file("proc/321/comm", "lodestored\n");
        let checks = checked(&tree);
        assert!(find(&checks, "busy").finding.contains("321 (lodestored)"));
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
        let checks = controller::checks(&examination).expect("checks");
        assert_eq!(find(&checks, "busy").status, Status::Good);
    }
}
