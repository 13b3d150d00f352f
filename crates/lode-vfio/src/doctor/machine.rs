//! What holds for the whole machine: IOMMU, VFIO, interrupt remapping.

use std::path::Path;

use super::{Check, Examination, Status};
use crate::error::VfioError;
use crate::nodes;
use crate::sysfs::Sysfs;

pub(super) fn checks(examination: &Examination) -> Result<Vec<Check>, VfioError> {
    let sysfs = &examination.sysfs;
    let iommu = iommu(sysfs)?;
    let has_iommu = iommu.status == Status::Good;
    let mut checks = vec![iommu, vfio(sysfs)?];
    if has_iommu {
        checks.push(remapping(sysfs)?);
    }
    Ok(checks)
}

fn iommu(sysfs: &Sysfs) -> Result<Check, VfioError> {
    let units = sysfs.names(Path::new("sys/class/iommu"))?.len();
    let groups = sysfs.names(Path::new("sys/kernel/iommu_groups"))?.len();
    if groups > 0 {
        return Ok(Check::good(
            "iommu",
            format!("IOMMU units: {units}, groups: {groups}"),
        ));
    }
    let vendor = sysfs.text(Path::new("proc/cpuinfo"))?.unwrap_or_default();
    let setting = if vendor.contains("AuthenticAMD") {
        "enable AMD-Vi (IOMMU) in the firmware; the kernel uses it unless amd_iommu=off is set"
    } else {
        "enable VT-d in the firmware, add intel_iommu=on to the kernel command line, and reboot"
    };
    Ok(Check::bad(
        "iommu",
        Status::Missing,
        "the kernel has no IOMMU groups: the IOMMU is absent or switched off",
        setting,
    ))
}

fn vfio(sysfs: &Sysfs) -> Result<Check, VfioError> {
    let name = "vfio";
    let has = |path: &str| sysfs.path(Path::new(path)).exists();
    let has_node = has("dev/vfio/vfio");
    if has_node && has("sys/bus/pci/drivers/vfio-pci") {
        return Ok(Check::good(name, "vfio-pci is loaded"));
    }
    let release = sysfs.text(Path::new("proc/sys/kernel/osrelease"))?;
    let release = release.unwrap_or_default();
    let release = release.trim();
    let modules = sysfs.text(&Path::new("lib/modules").join(release).join("modules.dep"))?;
    let has_module = modules.is_some_and(|modules| modules.contains("/vfio-pci.ko"));
    if !has_node && !has_module {
        return Ok(Check::bad(
            name,
            Status::Missing,
            format!("this kernel ({release}) has no VFIO, nor a module of it"),
            "boot a kernel with CONFIG_VFIO_PCI, which distributions ship in their general ones",
        ));
    }
    let missing = if has_node {
        "the driver vfio-pci is not loaded"
    } else {
        "/dev/vfio/vfio does not exist: VFIO is not loaded"
    };
    Ok(Check::bad(
        name,
        Status::Missing,
        missing,
        "modprobe vfio-pci (as root; keep it with: echo vfio-pci > /etc/modules-load.d/vfio.conf)",
    ))
}

/// Without remapping a device could forge interrupts; VFIO then refuses unless told otherwise.
/// The kernel names the chips of remapped interrupts with the prefix `IR-`.
fn remapping(sysfs: &Sysfs) -> Result<Check, VfioError> {
    let name = "interrupt-remapping";
    let mut chips = 0_usize;
    for interrupt in sysfs.names(Path::new(INTERRUPTS))? {
        let file = Path::new(INTERRUPTS).join(interrupt).join("chip_name");
        let Some(chip) = sysfs.text(&file)? else {
            continue;
        };
        if chip.starts_with("IR-") || chip.contains("-IR-") {
            return Ok(Check::good(name, "interrupts are remapped"));
        }
        chips += usize::from(!chip.trim().is_empty());
    }
    // Who would refuse.
    let module = if nodes::goes_through_iommufd(sysfs) {
        "iommufd"
    } else {
        "vfio_iommu_type1"
    };
    let parameter = format!("sys/module/{module}/parameters/allow_unsafe_interrupts");
    let is_allowed = sysfs
        .text(Path::new(&parameter))?
        .is_some_and(|value| value.trim() == "Y");
    if is_allowed {
        return Ok(Check::bad(
            name,
            Status::Advice,
            "interrupts are not remapped, which VFIO was told to accept",
            "enable interrupt remapping (x2APIC) in the firmware for isolation between devices",
        ));
    }
    let (status, finding) = if chips == 0 {
        (
            Status::Unknown,
            "the kernel does not show its interrupt controllers",
        )
    } else {
        (
            Status::Missing,
            "interrupts are not remapped, and VFIO refuses to go without",
        )
    };
    Ok(Check::bad(
        name,
        status,
        finding,
        format!(
            "enable interrupt remapping (x2APIC) in the firmware, or on a machine whose devices \
             are all trusted: echo 1 > /{parameter} (as root)"
        ),
    ))
}

const INTERRUPTS: &str = "sys/kernel/irq";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::tests::{examination, find};
    use crate::sysfs::tests::FakeTree;

    fn with_iommu() -> FakeTree {
        let tree = FakeTree::new();
        tree.directory("sys/class/iommu/dmar0")
            .directory("sys/kernel/iommu_groups/0");
        tree
    }

    fn checked(tree: &FakeTree) -> Vec<Check> {
        checks(&examination(tree)).expect("checks")
    }

    #[test]
    fn a_machine_without_groups_is_told_the_setting_of_its_own_vendor() {
        let tree = FakeTree::new();
        tree.file("proc/cpuinfo", "vendor_id\t: AuthenticAMD\n");
        let checks = checked(&tree);
        let check = find(&checks, "iommu");
        assert_eq!(check.status, Status::Missing);
        assert!(
            check
                .remedy
                .as_ref()
                .is_some_and(|remedy| remedy.contains("AMD-Vi"))
        );
        tree.file("proc/cpuinfo", "vendor_id\t: GenuineIntel\n");
        let checks = checked(&tree);
        let remedy = find(&checks, "iommu").remedy.as_ref();
        assert!(remedy.is_some_and(|remedy| remedy.contains("intel_iommu=on")));
    }

    #[test]
    fn a_missing_driver_a_missing_vfio_and_a_kernel_without_are_told_apart() {
        let tree = with_iommu();
        tree.file("proc/sys/kernel/osrelease", "6.1.0-9-amd64\n");
        let checks = checked(&tree);
        let check = find(&checks, "vfio");
        assert!(check.finding.contains("6.1.0-9-amd64"), "{check:?}");
        let modprobe = |check: &Check| {
            check
                .remedy
                .as_ref()
                .is_some_and(|remedy| remedy.contains("modprobe"))
        };
        assert!(!modprobe(check), "{check:?}");
        tree.file(
            "lib/modules/6.1.0-9-amd64/modules.dep",
            "kernel/drivers/vfio/pci/vfio-pci.ko.xz: kernel/drivers/vfio/vfio.ko.xz\n",
        );
        let checks = checked(&tree);
        let check = find(&checks, "vfio");
        assert!(check.finding.contains("/dev/vfio/vfio"), "{check:?}");
        assert!(modprobe(check), "{check:?}");
        tree.file("dev/vfio/vfio", "");
        let checks = checked(&tree);
        assert!(find(&checks, "vfio").finding.contains("vfio-pci"));
        tree.directory("sys/bus/pci/drivers/vfio-pci");
        assert_eq!(find(&checked(&tree), "vfio").status, Status::Good);
    }

    #[test]
    fn remapping_shows_in_the_names_of_interrupt_chips() {
        let tree = with_iommu();
        assert_eq!(
            find(&checked(&tree), "interrupt-remapping").status,
            Status::Unknown
        );
        tree.file("sys/kernel/irq/24/chip_name", "PCI-MSI\n");
        assert_eq!(
            find(&checked(&tree), "interrupt-remapping").status,
            Status::Missing
        );
        tree.file("dev/iommu", "");
        let [other, asked] = if cfg!(feature = "iommufd") {
            ["vfio_iommu_type1", "iommufd"]
        } else {
            ["iommufd", "vfio_iommu_type1"]
        };
        let allowed = |module| {
            let parameter = format!("sys/module/{module}/parameters/allow_unsafe_interrupts");
            tree.file(&parameter, "Y\n");
            find(&checked(&tree), "interrupt-remapping").status
        };
        assert_eq!(allowed(other), Status::Missing);
        assert_eq!(allowed(asked), Status::Advice);
        tree.file("sys/kernel/irq/25/chip_name", "IR-PCI-MSI-0000:01:00.0\n");
        assert_eq!(
            find(&checked(&tree), "interrupt-remapping").status,
            Status::Good
        );
    }
}
