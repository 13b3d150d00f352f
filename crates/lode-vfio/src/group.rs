//! Opening a function through its group: a container, the group in it, the function of the group.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use vfio_ioctls::VfioContainer;
use vfio_ioctls::VfioError as CrateError;

use crate::address::PciAddress;
use crate::device::OpenDevice;
use crate::error::{VfioError, cause};
use crate::nodes::{CONTAINER, group_node};
use crate::space::{AddressSpace, Kind};
use crate::syscall;
use crate::sysfs::{PciFunction, Sysfs, device_directory};

/// Opens `function`, which is bound to VFIO, through `group`.
///
/// # Errors
/// What is missing, as exactly as the kernel lets it be told.
pub(crate) fn open(
    function: &PciFunction,
    group: u32,
    sysfs: &Sysfs,
) -> Result<OpenDevice, VfioError> {
    let container = VfioContainer::new(None).map_err(no_container)?;
    let space = AddressSpace::new(Kind::Container(container));
    let path = sysfs.path(&device_directory(function.address));
    match OpenDevice::attach(&path, space, group_node(group)) {
        Err(CrateError::GroupViable) => Err(VfioError::NotViable {
            group,
            siblings: spoiling(function, sysfs)?,
        }),
        Err(error) => Err(refused(function.address, group, error)),
        Ok(open) => Ok(open),
    }
}

/// Why there is no container.
fn no_container(error: CrateError) -> VfioError {
    match error {
        CrateError::OpenContainer(source) => node_error(PathBuf::from(CONTAINER), source),
        // The version has been 0 since the beginning; what differs is whether the type is there.
        _ => VfioError::System {
            operation: "using VFIO's type 1 IOMMU (is vfio_iommu_type1 loaded?)",
            source: io::ErrorKind::Unsupported.into(),
        },
    }
}

/// Why the function of the group could not be had.
fn refused(address: PciAddress, group: u32, error: CrateError) -> VfioError {
    let node = group_node(group);
    let told = |operation, source| VfioError::System { operation, source };
    match error {
        CrateError::OpenGroup(source, _) => node_error(node, source),
        // The crate drops the reason of these two.
        CrateError::GetGroupStatus => told("asking for the group's state", said_again(&node)),
        CrateError::GroupSetContainer => {
            told("putting the group into a container", said_again(&node))
        }
        CrateError::ContainerSetIOMMU(_) => VfioError::IommuRefused {
            group,
            source: cause(error),
        },
        CrateError::VfioDeviceGetInfo(_) => told("asking what the function is", cause(error)),
        CrateError::VfioDeviceGetInfoOther | CrateError::VfioDeviceGetInfoPCI => {
            VfioError::NoRegisters {
                address,
                reason: "it is no PCI function with message-signalled interrupts",
            }
        }
        // The crate reads the function's group once more; it was there a moment ago.
        CrateError::InvalidPath => VfioError::NoIommu { address },
        _ => told("opening the function", cause(error)),
    }
}

/// What the kernel says to a step whose answer was dropped: the same steps once more, on
/// descriptors that are closed again.
fn said_again(node: &Path) -> io::Error {
    let again = || {
        let group = open_node(node)?;
        syscall::group_flags(group.as_fd())?;
        let container = open_node(Path::new(CONTAINER))?;
        syscall::set_container(group.as_fd(), container.as_fd())
    };
    again()
        .err()
        .unwrap_or_else(|| io::Error::other("the kernel refused once, and then did not"))
}

fn open_node(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Why a device node could not be opened.
pub(crate) fn node_error(path: PathBuf, source: io::Error) -> VfioError {
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

/// The functions that keep `function`'s group from user space, with their drivers.
pub(crate) fn spoiling(function: &PciFunction, sysfs: &Sysfs) -> Result<Vec<String>, VfioError> {
    Ok(sysfs
        .siblings(function)?
        .iter()
        .filter(|sibling| sibling.spoils_group())
        .map(PciFunction::with_driver)
        .collect())
}

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

    #[test]
    fn each_refusal_of_the_crate_says_what_is_missing() {
        use vmm_sys_util::errno;
        let address = "0000:01:00.0".parse().expect("an address");
        let of = |error| refused(address, 4_000_000_000, error);
        let denied = || errno::Error::new(libc::EPERM);
        assert!(matches!(
            of(CrateError::OpenGroup(io::Error::from_raw_os_error(libc::EBUSY), String::new())),
            VfioError::Busy { path } if path == Path::new("/dev/vfio/4000000000")
        ));
        assert!(matches!(
            of(CrateError::ContainerSetIOMMU(denied())),
            VfioError::IommuRefused { source, .. } if source.raw_os_error() == Some(libc::EPERM)
        ));
        assert!(matches!(
            of(CrateError::GroupGetDeviceFD(denied())),
            VfioError::System { operation: "opening the function", source }
                if source.raw_os_error() == Some(libc::EPERM)
        ));
        assert!(matches!(
            of(CrateError::VfioDeviceGetInfoOther),
            VfioError::NoRegisters { .. }
        ));
    }

    #[test]
    fn a_reason_that_the_crate_drops_is_asked_for_again() {
        let address = "0000:01:00.0".parse().expect("an address");
        // There is no such group: the kernel's word is that of the second attempt.
        for error in [CrateError::GetGroupStatus, CrateError::GroupSetContainer] {
            let refused = refused(address, 4_000_000_000, error);
            assert!(
                matches!(&refused, VfioError::System { source, .. }
                    if source.raw_os_error() == Some(libc::ENOENT)),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn a_container_without_the_type_is_told_the_module() {
        let error = no_container(CrateError::VfioExtension);
        assert!(error.to_string().contains("vfio_iommu_type1"), "{error}");
        let missing = io::Error::from_raw_os_error(libc::ENOENT);
        assert!(matches!(
            no_container(CrateError::OpenContainer(missing)),
            VfioError::NoVfio { path } if path == Path::new("/dev/vfio/vfio")
        ));
    }
}
