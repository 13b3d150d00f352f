//! From a PCI address to an open device: container, group, function.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use vfio_bindings::bindings::vfio::{
    VFIO_API_VERSION, VFIO_GROUP_FLAGS_VIABLE, VFIO_TYPE1v2_IOMMU,
};

use crate::address::PciAddress;
use crate::error::VfioError;
use crate::syscall;
use crate::sysfs::{PciFunction, Sysfs};

/// A function taken through VFIO, in an I/O address space of its own.
#[derive(Debug)]
pub(crate) struct OpenDevice {
    /// The function; closed first.
    pub(crate) device: File,
    /// Holds the group: nobody else can open it meanwhile.
    _group: File,
    /// The I/O address space.
    pub(crate) container: OwnedFd,
}

impl OpenDevice {
    /// Takes `address`. Enters the kernel; the function is reset on the way.
    ///
    /// # Errors
    /// What is missing, as exactly as the kernel lets it be told.
    pub(crate) fn open(address: PciAddress, sysfs: &Sysfs) -> Result<Self, VfioError> {
        let function = sysfs.function(address)?;
        let group_number = function.group.ok_or(VfioError::NoIommu { address })?;
        if function.driver.as_deref() != Some(VFIO_DRIVER) {
            return Err(VfioError::NotBound {
                address,
                driver: function.driver,
            });
        }
        let container = open_container()?;
        let group = open_node(&Path::new(NODES).join(group_number.to_string()))?;
        check_viable(&group, group_number, &function, sysfs)?;
        syscall::set_container(group.as_fd(), container.as_fd()).map_err(|source| {
            VfioError::System {
                operation: "putting the group into a container",
                source,
            }
        })?;
        syscall::set_iommu(container.as_fd(), VFIO_TYPE1v2_IOMMU).map_err(|source| {
            VfioError::IommuRefused {
                group: group_number,
                source,
            }
        })?;
        let device = syscall::device(group.as_fd(), &address.to_string()).map_err(|source| {
            VfioError::System {
                operation: "opening the function",
                source,
            }
        })?;
        Ok(Self {
            device: device.into(),
            _group: group,
            container: container.into(),
        })
    }
}

fn open_container() -> Result<File, VfioError> {
    let container = open_node(&Path::new(NODES).join("vfio"))?;
    let told = |operation, source| VfioError::System { operation, source };
    let version = syscall::api_version(container.as_fd())
        .map_err(|source| told("asking VFIO for its version", source))?;
    let has_type = syscall::has_extension(container.as_fd(), VFIO_TYPE1v2_IOMMU)
        .map_err(|source| told("asking VFIO for its IOMMU types", source))?;
    if version != VFIO_API_VERSION || !has_type {
        return Err(told(
            "using VFIO's type 1 IOMMU (is vfio_iommu_type1 loaded?)",
            io::ErrorKind::Unsupported.into(),
        ));
    }
    Ok(container)
}

fn open_node(path: &Path) -> Result<File, VfioError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|source| node_error(path.to_owned(), source))
}

fn node_error(path: PathBuf, source: io::Error) -> VfioError {
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV) => VfioError::NoVfio { path },
        Some(libc::EACCES | libc::EPERM) => VfioError::NoPermission { path },
        Some(libc::EBUSY) => VfioError::Busy { path },
        _ => VfioError::File {
            operation: "open",
            path,
            source,
        },
    }
}

fn check_viable(
    group: &File,
    number: u32,
    function: &PciFunction,
    sysfs: &Sysfs,
) -> Result<(), VfioError> {
    let flags = syscall::group_flags(group.as_fd()).map_err(|source| VfioError::System {
        operation: "asking for the group's state",
        source,
    })?;
    if flags & VFIO_GROUP_FLAGS_VIABLE != 0 {
        return Ok(());
    }
    Err(VfioError::NotViable {
        group: number,
        siblings: sysfs
            .siblings(function)?
            .iter()
            .filter(|sibling| sibling.spoils_group())
            .map(PciFunction::with_driver)
            .collect(),
    })
}

/// The driver that hands a function to user space.
pub(crate) const VFIO_DRIVER: &str = "vfio-pci";
const NODES: &str = "/dev/vfio";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_of_a_device_node_says_what_is_missing() {
        let path = || PathBuf::from("/dev/vfio/7");
        let of = |errno| node_error(path(), io::Error::from_raw_os_error(errno));
        assert!(matches!(of(libc::ENOENT), VfioError::NoVfio { .. }));
        assert!(matches!(of(libc::EACCES), VfioError::NoPermission { .. }));
        assert!(matches!(of(libc::EBUSY), VfioError::Busy { .. }));
        assert!(matches!(of(libc::EIO), VfioError::File { .. }));
    }
}
