//! Memory: how much may be locked, and huge pages on each node.

use std::path::Path;

use super::{Check, Examination, Status};
use crate::error::VfioError;
use crate::sysfs::Sysfs;

pub(super) fn checks(examination: &Examination) -> Result<Vec<Check>, VfioError> {
    let mut checks = vec![memory_lock(examination)];
    checks.extend(huge_pages(examination)?);
    Ok(checks)
}

fn memory_lock(examination: &Examination) -> Check {
    let name = "memory-lock";
    let needed = examination.needed_locked_bytes;
    // Root has the capability to lock any amount.
    let limit = examination
        .caller
        .memory_lock_limit_bytes
        .filter(|_| !examination.caller.is_root());
    match limit {
        Some(limit) if limit < needed => Check::bad(
            name,
            Status::Missing,
            format!(
                "{} of memory may be locked, {} are needed",
                mebibytes(limit),
                mebibytes(needed)
            ),
            format!(
                "ulimit -l {} (as root), or LimitMEMLOCK={needed} in the systemd unit",
                needed.div_ceil(1024)
            ),
        ),
        Some(limit) => Check::good(
            name,
            format!(
                "{} of memory may be locked, {} are needed",
                mebibytes(limit),
                mebibytes(needed)
            ),
        ),
        None => Check::good(name, "any amount of memory may be locked"),
    }
}

/// One check for each memory node. Huge pages are never needed: fewer entries in the IOMMU's
/// cache is what they buy.
fn huge_pages(examination: &Examination) -> Result<Vec<Check>, VfioError> {
    let sysfs = &examination.sysfs;
    let mut nodes: Vec<u32> = sysfs
        .names(Path::new(NODES))?
        .iter()
        .filter_map(|name| name.strip_prefix("node")?.parse().ok())
        .collect();
    nodes.sort_unstable();
    let wanted = examination.needed_locked_bytes.div_ceil(HUGE_PAGE_BYTES);
    nodes
        .into_iter()
        .map(|node| huge_pages_of(sysfs, node, wanted))
        .collect()
}

fn huge_pages_of(sysfs: &Sysfs, node: u32, wanted: u64) -> Result<Check, VfioError> {
    let directory = format!("{NODES}/node{node}/hugepages/hugepages-2048kB");
    let count = |file: &str| -> Result<u64, VfioError> {
        let text = sysfs.text(&Path::new(&directory).join(file))?;
        Ok(text.and_then(|text| text.trim().parse().ok()).unwrap_or(0))
    };
    let (reserved, free) = (count("nr_hugepages")?, count("free_hugepages")?);
    let finding = format!("node {node}: {free} of {reserved} huge pages of 2 MiB are free");
    if free >= wanted {
        return Ok(Check::good("huge-pages", finding));
    }
    let missing = wanted.saturating_sub(free);
    Ok(Check::bad(
        "huge-pages",
        Status::Advice,
        format!("{finding}; ordinary pages are used for the rest"),
        format!(
            "echo {} > /{directory}/nr_hugepages",
            reserved.saturating_add(missing)
        ),
    ))
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes / (1 << 20))
}

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
        let check = memory_lock(&examination);
        assert_eq!(check.status, Status::Missing);
        assert_eq!(
            check.finding,
            "8 MiB of memory may be locked, 64 MiB are needed"
        );
        let remedy = check.remedy.expect("a remedy");
        assert!(remedy.contains("ulimit -l 65536"), "{remedy}");
        examination.caller.memory_lock_limit_bytes = Some(64 << 20);
        assert_eq!(memory_lock(&examination).status, Status::Good);
    }

    #[test]
    fn root_and_no_limit_may_lock_anything() {
        let tree = FakeTree::new();
        let mut examination = examination(&tree);
        examination.caller.user = 0;
        assert_eq!(memory_lock(&examination).status, Status::Good);
        examination.caller.user = 1000;
        examination.caller.memory_lock_limit_bytes = None;
        assert_eq!(memory_lock(&examination).status, Status::Good);
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
    fn a_machine_without_nodes_has_no_check_of_huge_pages() {
        let tree = FakeTree::new();
        let checks = checks(&examination(&tree)).expect("checks");
        assert_eq!(checks.len(), 1);
        find(&checks, "memory-lock");
    }
}
