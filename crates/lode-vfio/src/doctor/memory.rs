//! Memory: how much may be locked, and huge pages on each node.

use std::path::Path;

use super::{Check, Examination, Status};
use crate::error::VfioError;
use crate::sysfs::Sysfs;

pub(super) fn checks(examination: &Examination) -> Result<Vec<Check>, VfioError> {
    let mut checks = vec![memory_lock(examination, controllers_in_use(examination)?)];
    checks.extend(huge_pages(examination)?);
    Ok(checks)
}

/// How many controllers the daemon has in mind: those asked about, or those that are bound.
fn controllers_in_use(examination: &Examination) -> Result<usize, VfioError> {
    if !examination.controllers.is_empty() {
        return Ok(examination.controllers.len());
    }
    let functions = examination.sysfs.nvme_functions()?;
    let bound = functions
        .iter()
        .filter(|function| function.is_bound_to_vfio());
    Ok(bound.count().max(1))
}

/// Each controller has an address space of its own, in which the same memory counts again.
fn memory_lock(examination: &Examination, controllers: usize) -> Check {
    let name = "memory-lock";
    let each = examination.needed_locked_bytes;
    let needed = each.saturating_mul(controllers as u64);
    // Root has the capability to lock any amount.
    let limit = examination
        .caller
        .memory_lock_limit_bytes
        .filter(|_| !examination.caller.is_root());
    let finding = |limit| {
        let (limit, needed) = (mebibytes(limit), mebibytes(needed));
        let share = match controllers {
            0 | 1 => String::new(),
            count => format!(" ({} for each of {count} controllers)", mebibytes(each)),
        };
        format!("{limit} of memory may be locked, {needed} are needed{share}")
    };
    match limit {
        Some(limit) if limit < needed => Check::bad(
            name,
            Status::Missing,
            finding(limit),
            format!(
                "ulimit -l {} (as root), or LimitMEMLOCK={needed} in the systemd unit",
                needed.div_ceil(1024)
            ),
        ),
        Some(limit) => Check::good(name, finding(limit)),
        None => Check::good(name, "any amount of memory may be locked"),
    }
}

/// One check for each memory node; one for the machine where the kernel knows no nodes. Huge pages
/// are never needed: fewer entries in the IOMMU's cache is what they buy.
fn huge_pages(examination: &Examination) -> Result<Vec<Check>, VfioError> {
    let sysfs = &examination.sysfs;
    let mut nodes: Vec<u32> = sysfs
        .names(Path::new(NODES))?
        .iter()
        .filter_map(|name| name.strip_prefix("node")?.parse().ok())
        .collect();
    nodes.sort_unstable();
    let wanted = examination.needed_locked_bytes.div_ceil(HUGE_PAGE_BYTES);
    if nodes.is_empty() && sysfs.path(Path::new(WHOLE)).is_dir() {
        return Ok(vec![huge_pages_of(sysfs, "this machine", WHOLE, wanted)?]);
    }
    nodes
        .into_iter()
        .map(|node| {
            let directory = format!("{NODES}/node{node}/hugepages/hugepages-2048kB");
            huge_pages_of(sysfs, &format!("node {node}"), &directory, wanted)
        })
        .collect()
}

/// What is reserved in `directory`, which is that of `owner`.
fn huge_pages_of(
    sysfs: &Sysfs,
    owner: &str,
    directory: &str,
    wanted: u64,
) -> Result<Check, VfioError> {
    let count = |file: &str| -> Result<u64, VfioError> {
        let text = sysfs.text(&Path::new(directory).join(file))?;
        Ok(text.and_then(|text| text.trim().parse().ok()).unwrap_or(0))
    };
    let (reserved, free) = (count("nr_hugepages")?, count("free_hugepages")?);
    let finding = format!("{owner}: {free} of {reserved} huge pages of 2 MiB are free");
    if free >= wanted {
        return Ok(Check::good("huge-pages", finding));
    }
    let missing = wanted.saturating_sub(free);
    Ok(Check::bad(
        "huge-pages",
        Status::Advice,
        format!("{finding}; ordinary pages are used for the rest"),
        format!(
            "echo {} > /{directory}/nr_hugepages (as root)",
            reserved.saturating_add(missing)
        ),
    ))
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes / (1 << 20))
}

/// The pages of all nodes together.
const WHOLE: &str = "sys/kernel/mm/hugepages/hugepages-2048kB";
const NODES: &str = "sys/devices/system/node";
const HUGE_PAGE_BYTES: u64 = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::tests::{examination, find};
    use crate::sysfs::tests::FakeTree;

    #[test]
    fn too_low_a_limit_tells_how_much_is_needed() {
        let tree = FakeTree::new();
        let mut examination = examination(&tree);
        let check = memory_lock(&examination, 1);
        assert_eq!(check.status, Status::Missing);
        assert_eq!(
            check.finding,
            "8 MiB of memory may be locked, 64 MiB are needed"
        );
        let remedy = check.remedy.expect("a remedy");
        assert!(remedy.contains("ulimit -l 65536"), "{remedy}");
        examination.caller.memory_lock_limit_bytes = Some(64 << 20);
        assert_eq!(memory_lock(&examination, 1).status, Status::Good);
    }

    #[test]
    fn each_controller_needs_its_share_of_locked_memory() {
        let tree = FakeTree::new();
        let address = |text: &str| text.parse().expect("an address");
        let mut examination = examination(&tree);
        examination.controllers = vec![address("0000:01:00.0"), address("0000:02:00.0")];
        let checks = checks(&examination).expect("checks");
        let check = find(&checks, "memory-lock");
        assert_eq!(
            check.finding,
            "8 MiB of memory may be locked, 128 MiB are needed (64 MiB for each of 2 controllers)"
        );
        let remedy = check.remedy.as_ref().expect("a remedy");
        assert!(remedy.contains("ulimit -l 131072"), "{remedy}");

        examination.controllers.clear();
        for (bus, driver) in [("01", "vfio-pci"), ("02", "vfio-pci"), ("03", "nvme")] {
            tree.function(
                &format!("0000:{bus}:00.0"),
                "0x010802",
                Some(driver),
                Some(7),
            );
        }
        let bound = super::checks(&examination).expect("checks");
        assert_eq!(find(&bound, "memory-lock"), check);
    }

    #[test]
    fn root_and_no_limit_may_lock_anything() {
        let tree = FakeTree::new();
        let mut examination = examination(&tree);
        examination.caller.user = 0;
        assert_eq!(memory_lock(&examination, 1).status, Status::Good);
        examination.caller.user = 1000;
        examination.caller.memory_lock_limit_bytes = None;
        assert_eq!(memory_lock(&examination, 1).status, Status::Good);
    }

    #[test]
    fn huge_pages_are_told_for_each_node_with_the_number_to_reserve() {
        let tree = FakeTree::new();
        for (node, reserved, free) in [(0, 40, 32), (1, 10, 2)] {
            let directory = format!("{NODES}/node{node}/hugepages/hugepages-2048kB");
            tree.file(
                &format!("{directory}/nr_hugepages"),
                format!("{reserved}\n"),
            )
            .file(&format!("{directory}/free_hugepages"), format!("{free}\n"));
        }
        let checks = huge_pages(&examination(&tree)).expect("checks");
        assert_eq!(checks.len(), 2);
        assert_eq!(checks[0].status, Status::Good);
        assert_eq!(checks[1].status, Status::Advice);
        let remedy = checks[1].remedy.as_ref().expect("a remedy");
        assert!(remedy.starts_with("echo 40 > /sys/"), "{remedy}");
        assert!(remedy.contains("node1"), "{remedy}");
    }

    #[test]
    fn a_kernel_without_nodes_has_huge_pages_of_the_whole_machine() {
        let tree = FakeTree::new();
        let pages = || huge_pages(&examination(&tree)).expect("checks");
        assert!(pages().is_empty(), "nor any huge pages");
        tree.file(&format!("{WHOLE}/nr_hugepages"), "40\n")
            .file(&format!("{WHOLE}/free_hugepages"), "32\n");
        let checks = pages();
        assert_eq!(find(&checks, "huge-pages").status, Status::Good);
        assert!(checks[0].finding.starts_with("this machine: 32 of 40"));
    }
}
