//! The kernel's view of PCI functions: drivers, IOMMU groups, what they are used for; and moving
//! a function from one driver to another.
//!
//! Owns: [`Sysfs`], a root below which `sys`, `proc` and `dev` are found (the machine's own, or a
//! made-up one in tests); [`PciFunction`]. Reading needs no privilege, binding needs root.
//! Everything blocks on the kernel; nothing here is for the data path.

mod binding;
mod signature;
mod uses;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use binding::{Consent, Patience};

use crate::address::PciAddress;
use crate::error::VfioError;

/// Where `sys`, `proc` and `dev` are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysfs {
    root: PathBuf,
}

/// One PCI function as the kernel shows it at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciFunction {
    /// Its address.
    pub address: PciAddress,
    /// Class, subclass and programming interface (0x010802 for an NVMe controller).
    pub class: u32,
    /// Its vendor's number.
    pub vendor: u16,
    /// Its number among that vendor's devices.
    pub device: u16,
    /// The driver that has it.
    pub driver: Option<String>,
    /// Its IOMMU group; `None` where there is no IOMMU.
    pub group: Option<u32>,
    /// The memory node that it is near to, where the machine has several.
    pub numa_node: Option<u32>,
}

impl PciFunction {
    /// Whether it is an NVMe controller: mass storage (01h), non-volatile memory (08h).
    #[must_use]
    pub const fn is_nvme(&self) -> bool {
        self.class >> 8 == NVME_CLASS
    }

    /// Whether it is bound to VFIO.
    #[must_use]
    pub fn is_bound_to_vfio(&self) -> bool {
        self.driver.as_deref() == Some(VFIO_DRIVER)
    }

    /// Whether its driver keeps the other functions of its group from user space. No driver, a
    /// driver of VFIO, and those of bridges do not.
    #[must_use]
    pub fn spoils_group(&self) -> bool {
        self.driver
            .as_deref()
            .is_some_and(|driver| !HARMLESS_DRIVERS.contains(&driver))
    }

    /// The address with the driver, for people.
    #[must_use]
    pub fn with_driver(&self) -> String {
        let driver = self.driver.as_deref().unwrap_or("no driver");
        format!("{} ({driver})", self.address)
    }
}

impl Sysfs {
    /// The machine's own.
    #[must_use]
    pub fn of_this_machine() -> Self {
        Self::at("/")
    }

    /// The one below `root`.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Every NVMe controller on PCI, by address. Empty on a machine without PCI.
    ///
    /// # Errors
    /// When a function can be seen but not read.
    pub fn nvme_functions(&self) -> Result<Vec<PciFunction>, VfioError> {
        let mut found = Vec::new();
        for name in self.names(Path::new(DEVICES))? {
            let Ok(address) = name.parse() else {
                continue;
            };
            match self.function(address) {
                Ok(function) if function.is_nvme() => found.push(function),
                // Not an NVMe controller, or removed since it was listed.
                Ok(_) | Err(VfioError::NoDevice { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        found.sort_by_key(|function| function.address);
        Ok(found)
    }

    /// The function at `address`.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn function(&self, address: PciAddress) -> Result<PciFunction, VfioError> {
        let directory = device_directory(address);
        if !self.path(&directory).is_dir() {
            return Err(VfioError::NoDevice { address });
        }
        let group = self.link_name(&directory.join("iommu_group"));
        let node = self.text(&directory.join("numa_node"))?;
        Ok(PciFunction {
            address,
            class: self.number(&directory.join("class"))?,
            vendor: narrow(self.number(&directory.join("vendor"))?),
            device: narrow(self.number(&directory.join("device"))?),
            driver: self.link_name(&directory.join("driver")),
            group: group.and_then(|group| group.parse().ok()),
            // -1 stands for none.
            numa_node: node.and_then(|node| node.trim().parse().ok()),
        })
    }

    /// The other functions of `function`'s group, by address; empty when it is in none.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn siblings(&self, function: &PciFunction) -> Result<Vec<PciFunction>, VfioError> {
        let Some(group) = function.group else {
            return Ok(Vec::new());
        };
        let members = Path::new(GROUPS).join(group.to_string()).join("devices");
        let mut found = Vec::new();
        for name in self.names(&members)? {
            match name.parse() {
                Ok(address) if address != function.address => found.push(self.function(address)?),
                // Itself, or a device that is not on PCI.
                Ok(_) | Err(_) => {}
            }
        }
        found.sort_by_key(|sibling| sibling.address);
        Ok(found)
    }

    /// `relative` below the root.
    pub(crate) fn path(&self, relative: &Path) -> PathBuf {
        self.root.join(relative)
    }

    /// An absolute path of the machine below the root.
    pub(crate) fn below(&self, absolute: &Path) -> PathBuf {
        self.path(absolute.strip_prefix("/").unwrap_or(absolute))
    }

    /// The names in a directory; none when it does not exist.
    pub(crate) fn names(&self, relative: &Path) -> Result<Vec<String>, VfioError> {
        let path = self.path(relative);
        let listed = fs::read_dir(&path).and_then(|entries| {
            entries
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect()
        });
        match listed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(VfioError::File {
                operation: "list",
                path,
                source,
            }),
            Ok(names) => Ok(names),
        }
    }

    /// A file's text; `None` when it does not exist.
    pub(crate) fn text(&self, relative: &Path) -> Result<Option<String>, VfioError> {
        let path = self.path(relative);
        match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(VfioError::File {
                operation: "read",
                path,
                source,
            }),
            Ok(text) => Ok(Some(text)),
        }
    }

    /// The last part of a link's target.
    pub(crate) fn link_name(&self, relative: &Path) -> Option<String> {
        let target = fs::read_link(self.path(relative)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// A hexadecimal number as sysfs writes it (`0x010802`); 0 when the file does not exist.
    fn number(&self, relative: &Path) -> Result<u32, VfioError> {
        let Some(text) = self.text(relative)? else {
            return Ok(0);
        };
        u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).map_err(|error| {
            VfioError::File {
                operation: "understand",
                path: self.path(relative),
                source: io::Error::other(error),
            }
        })
    }
}

/// The directory of a function, relative to the root.
pub(crate) fn device_directory(address: PciAddress) -> PathBuf {
    Path::new(DEVICES).join(address.to_string())
}

fn narrow(number: u32) -> u16 {
    u16::try_from(number & 0xFFFF).expect("16 bits were kept")
}

/// The driver that hands a function to user space.
pub(crate) const VFIO_DRIVER: &str = "vfio-pci";
const DEVICES: &str = "sys/bus/pci/devices";
const GROUPS: &str = "sys/kernel/iommu_groups";
const NVME_CLASS: u32 = 0x0108;
/// What the kernel lets stand beside a function in user space.
const HARMLESS_DRIVERS: &[&str] = &[VFIO_DRIVER, "pci-stub", "pcieport", "xen-pciback"];

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A made-up `/sys`, `/proc` and `/dev`.
    pub(crate) struct FakeTree {
        root: tempfile::TempDir,
    }

    impl FakeTree {
        pub(crate) fn new() -> Self {
            Self {
                root: tempfile::tempdir().expect("a directory"),
            }
        }

        pub(crate) fn sysfs(&self) -> Sysfs {
            Sysfs::at(self.root.path())
        }

        pub(crate) fn file(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
            let path = self.root.path().join(path);
            fs::create_dir_all(path.parent().expect("below the root")).expect("directories");
            fs::write(path, content).expect("a file");
            self
        }

        pub(crate) fn link(&self, path: &str, target: &str) -> &Self {
            let path = self.root.path().join(path);
            fs::create_dir_all(path.parent().expect("below the root")).expect("directories");
            symlink(target, path).expect("a link");
            self
        }

        pub(crate) fn directory(&self, path: &str) -> &Self {
            fs::create_dir_all(self.root.path().join(path)).expect("directories");
            self
        }

        pub(crate) fn read(&self, path: &str) -> String {
            fs::read_to_string(self.root.path().join(path)).expect("a file")
        }

        /// A function of class `class`, with a driver and a group where named.
        pub(crate) fn function(
            &self,
            address: &str,
            class: &str,
            driver: Option<&str>,
            group: Option<u32>,
        ) -> &Self {
            let directory = format!("{DEVICES}/{address}");
            self.file(&format!("{directory}/class"), format!("{class}\n"))
                .file(&format!("{directory}/vendor"), "0x1b36\n")
                .file(&format!("{directory}/device"), "0x0010\n")
                .file(&format!("{directory}/numa_node"), "-1\n");
            if let Some(driver) = driver {
                let target = format!("../../../../bus/pci/drivers/{driver}");
                self.link(&format!("{directory}/driver"), &target);
            }
            if let Some(group) = group {
                self.link(
                    &format!("{directory}/iommu_group"),
                    &format!("../../../kernel/iommu_groups/{group}"),
                );
                self.file(&format!("{GROUPS}/{group}/devices/{address}"), "");
            }
            self
        }
    }

    pub(crate) fn address(text: &str) -> PciAddress {
        text.parse().expect("an address")
    }

    #[test]
    fn nvme_controllers_are_listed_with_driver_and_group() {
        let tree = FakeTree::new();
        tree.function("0000:02:00.0", "0x010802", Some("vfio-pci"), Some(12))
            .function("0000:01:00.0", "0x010802", Some("nvme"), None)
            .function("0000:00:1f.3", "0x040300", Some("snd_hda_intel"), Some(3))
            .file("sys/bus/pci/devices/0000:02:00.0/numa_node", "1\n");
        let found = tree.sysfs().nvme_functions().expect("a list");
        let shown: Vec<_> = found.iter().map(PciFunction::with_driver).collect();
        assert_eq!(shown, ["0000:01:00.0 (nvme)", "0000:02:00.0 (vfio-pci)"]);
        assert_eq!((found[0].group, found[1].group), (None, Some(12)));
        assert_eq!((found[0].numa_node, found[1].numa_node), (None, Some(1)));
        assert_eq!((found[0].vendor, found[0].device), (0x1b36, 0x0010));
        assert!(found[1].is_bound_to_vfio());
    }

    #[test]
    fn a_machine_without_pci_has_no_controllers() {
        let found = FakeTree::new().sysfs().nvme_functions().expect("a list");
        assert_eq!(found, []);
    }

    #[test]
    fn the_siblings_of_a_group_are_found_and_judged() {
        let tree = FakeTree::new();
        tree.function("0000:01:00.0", "0x010802", Some("vfio-pci"), Some(5))
            .function("0000:01:00.1", "0x040300", Some("snd_hda_intel"), Some(5))
            .function("0000:00:01.0", "0x060400", Some("pcieport"), Some(5))
            .function("0000:01:00.2", "0x0c0330", None, Some(5));
        let sysfs = tree.sysfs();
        let function = sysfs.function(address("0000:01:00.0")).expect("there");
        let siblings = sysfs.siblings(&function).expect("three");
        assert_eq!(siblings.len(), 3);
        let spoiling: Vec<_> = siblings
            .iter()
            .filter(|sibling| sibling.spoils_group())
            .map(PciFunction::with_driver)
            .collect();
        assert_eq!(spoiling, ["0000:01:00.1 (snd_hda_intel)"]);
    }

    #[test]
    fn an_absent_function_and_a_strange_file_are_errors() {
        let tree = FakeTree::new();
        tree.function("0000:01:00.0", "twelve", None, None);
        let sysfs = tree.sysfs();
        assert!(matches!(
            sysfs.function(address("0000:09:00.0")),
            Err(VfioError::NoDevice { .. })
        ));
        assert!(matches!(
            sysfs.function(address("0000:01:00.0")),
            Err(VfioError::File { .. })
        ));
    }
}
