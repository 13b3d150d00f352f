//! One controller: its driver and its group.

use super::{Check, Examination, Status, access};
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
        checks.extend(access::checks(function, group, examination)?);
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
        let company = match &siblings[..] {
            [] => format!("it is alone in group {group}"),
            others => {
                let shown: Vec<_> = others.iter().map(PciFunction::with_driver).collect();
                format!("it shares group {group} with {}", shown.join(", "))
            }
        };
        return Ok(Check::good("group", company));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::tests::{examination, find};
    use crate::sysfs::tests::{FakeTree, address};

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
        let tree = FakeTree::new();
        tree.function("0000:01:00.0", "0x010802", Some("vfio-pci"), Some(7));
        tree.function("0000:01:00.1", "0x040300", Some("snd_hda_intel"), Some(7));
        let checks = checked(&tree);
        let check = find(&checks, "group");
        assert_eq!(check.status, Status::Missing);
        assert!(check.finding.contains("0000:01:00.1 (snd_hda_intel)"));
        let remedy = check.remedy.as_ref().expect("a remedy");
        assert!(remedy.contains("echo 0000:01:00.1 >"), "{remedy}");
    }

    #[test]
    fn functions_that_share_the_group_and_leave_it_viable_are_told() {
        let tree = FakeTree::new();
        tree.function("0000:01:00.0", "0x010802", Some("vfio-pci"), Some(7));
        let group = || find(&checked(&tree), "group").clone();
        assert_eq!(group().finding, "it is alone in group 7");
        tree.function("0000:00:1c.0", "0x060400", Some("pcieport"), Some(7));
        assert_eq!(group().status, Status::Good);
        assert_eq!(
            group().finding,
            "it shares group 7 with 0000:00:1c.0 (pcieport)"
        );
    }

    #[test]
    fn a_controller_without_a_group_needs_the_iommu() {
        let tree = FakeTree::new();
        tree.function("0000:01:00.0", "0x010802", Some("vfio-pci"), None);
        assert_eq!(find(&checked(&tree), "group").status, Status::Missing);
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
