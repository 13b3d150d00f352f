//! The device nodes behind which a function stands, and which of them are gone through.

use std::path::{Path, PathBuf};

use crate::error::VfioError;
use crate::sysfs::{PciFunction, Sysfs, device_directory};

/// How this process opens a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through its group and a container.
    Group {
        /// The group's node.
        node: PathBuf,
    },
    /// Through its own node and iommufd.
    Device {
        /// The function's node.
        node: PathBuf,
    },
}

impl Way {
    /// Its own node where the kernel and this build both have the newer interface, its group's
    /// otherwise. Rights do not count: who lacks them is told.
    ///
    /// # Errors
    /// When sysfs cannot be read.
    pub(crate) fn of(function: &PciFunction, group: u32, sysfs: &Sysfs) -> Result<Self, VfioError> {
        let own = device_node(function, sysfs)?
            .filter(|node| goes_through_iommufd(sysfs) && is_there(sysfs, node));
        Ok(own.map_or_else(
            || Self::Group {
                node: group_node(group),
            },
            |node| Self::Device { node },
        ))
    }

    /// The nodes that have to be opened, absolute: the function's, that of its address space.
    pub(crate) fn nodes(&self) -> [&Path; 2] {
        match self {
            Self::Group { node } => [node, Path::new(CONTAINER)],
            Self::Device { node } => [node, Path::new(IOMMUFD)],
        }
    }

    /// The kernel's interface, for people.
    pub(crate) const fn interface(&self) -> &'static str {
        match self {
            Self::Group { .. } => "group and container",
            Self::Device { .. } => "iommufd",
        }
    }
}

/// Whether this build and this kernel both have iommufd.
pub(crate) fn goes_through_iommufd(sysfs: &Sysfs) -> bool {
    HAS_IOMMUFD && is_there(sysfs, IOMMUFD)
}

/// The node of a group.
pub(crate) fn group_node(group: u32) -> PathBuf {
    Path::new(NODES).join(group.to_string())
}

/// The function's own node, where the kernel makes one (Linux 6.6 with device nodes for VFIO).
pub(crate) fn device_node(
    function: &PciFunction,
    sysfs: &Sysfs,
) -> Result<Option<PathBuf>, VfioError> {
    let names = sysfs.names(&device_directory(function.address).join("vfio-dev"))?;
    let name = names.iter().find(|name| name.starts_with("vfio"));
    Ok(name.map(|name| Path::new(NODES).join("devices").join(name)))
}

fn is_there(sysfs: &Sysfs, node: impl AsRef<Path>) -> bool {
    sysfs.below(node.as_ref()).exists()
}

/// Whether this build can go through device nodes at all.
const HAS_IOMMUFD: bool = cfg!(feature = "iommufd");
const NODES: &str = "/dev/vfio";
/// Makes containers.
pub(crate) const CONTAINER: &str = "/dev/vfio/vfio";
/// Makes address spaces of the newer kind.
pub(crate) const IOMMUFD: &str = "/dev/iommu";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysfs::tests::FakeTree;

    #[test]
    fn the_functions_own_node_is_taken_where_kernel_and_build_have_it() {
        let tree = FakeTree::new();
        tree.function("0000:01:00.0", "0x010802", Some("vfio-pci"), Some(7));
        let function = tree
            .sysfs()
            .function("0000:01:00.0".parse().expect("an address"))
            .expect("a function");
        let way = || Way::of(&function, 7, &tree.sysfs()).expect("a way");
        let group = Way::Group {
            node: "/dev/vfio/7".into(),
        };
        assert_eq!(way(), group);
        tree.directory("sys/bus/pci/devices/0000:01:00.0/vfio-dev/vfio3");
        assert_eq!(way(), group, "no node yet");
        tree.file("dev/vfio/devices/vfio3", "");
        assert_eq!(way(), group, "no iommufd");
        tree.file("dev/iommu", "");
        let own = Way::Device {
            node: "/dev/vfio/devices/vfio3".into(),
        };
        assert_eq!(way(), if HAS_IOMMUFD { own } else { group });
    }
}
