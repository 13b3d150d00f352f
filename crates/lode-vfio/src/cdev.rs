//! Opening a function through its own device node, with an address space of iommufd: what takes
//! the place of groups and containers from Linux 6.6 on.

use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use iommufd_bindings::iommufd::{
    IOMMUFD_CMD_IOAS_IOVA_RANGES, IOMMUFD_TYPE, iommu_ioas_iova_ranges, iommu_iova_range,
};
use iommufd_ioctls::{IommuFd, IommufdError};
use vfio_ioctls::VfioError as CrateError;
use vfio_ioctls::VfioIommufd;

use crate::device::OpenDevice;
use crate::error::{VfioError, cause};
use crate::group::{node_error, spoiling};
use crate::iommu::IommuReach;
use crate::nodes::IOMMUFD;
use crate::space::{AddressSpace, Kind};
use crate::sysfs::{PciFunction, Sysfs, device_directory};

/// Opens `function`, which is bound to VFIO and in `group`, through its own `node`.
///
/// # Errors
/// What is missing, as exactly as the kernel lets it be told.
pub(crate) fn open(
    function: &PciFunction,
    group: u32,
    node: PathBuf,
    sysfs: &Sysfs,
) -> Result<OpenDevice, VfioError> {
    let iommufd = IommuFd::new().map_err(no_iommufd)?;
    let space =
        VfioIommufd::new(Arc::new(iommufd), None, None).map_err(|error| VfioError::System {
            operation: "making an address space of iommufd",
            source: cause(error),
        })?;
    let space = AddressSpace::new(Kind::Iommufd(space));
    let path = sysfs.path(&device_directory(function.address));
    match OpenDevice::attach(&path, space, node.clone()) {
        Ok(open) => Ok(open),
        Err(error) if is_busy(&error) => {
            let siblings = spoiling(function, sysfs)?;
            Err(if siblings.is_empty() {
                VfioError::Busy { path: node }
            } else {
                VfioError::NotViable { group, siblings }
            })
        }
        Err(error) => Err(refused(function, group, node, error)),
    }
}

fn no_iommufd(error: IommufdError) -> VfioError {
    match error {
        IommufdError::OpenIommufd(source) => node_error(PathBuf::from(IOMMUFD), source),
        _ => VfioError::System {
            operation: "opening iommufd",
            source: io::Error::other(error),
        },
    }
}

/// Whether somebody has the function or its group. A function that another process has open
/// through its node answers a second one with "invalid".
fn is_busy(error: &CrateError) -> bool {
    matches!(error, CrateError::VfioDeviceBindIommufd(error)
        if [libc::EBUSY, libc::EINVAL].contains(&error.errno()))
}

fn refused(function: &PciFunction, group: u32, node: PathBuf, error: CrateError) -> VfioError {
    let told = |operation, source| VfioError::System { operation, source };
    match error {
        CrateError::OpenDeviceCdev(source) => node_error(node, source),
        CrateError::InvalidVfioDev => VfioError::NoVfio { path: node },
        CrateError::VfioDeviceBindIommufd(_) | CrateError::VfioDeviceAttachIommufdPt(_) => {
            VfioError::IommuRefused {
                group,
                source: cause(error),
            }
        }
        CrateError::VfioDeviceGetInfo(_) => told("asking what the function is", cause(error)),
        CrateError::VfioDeviceGetInfoOther | CrateError::VfioDeviceGetInfoPCI => {
            VfioError::NoRegisters {
                address: function.address,
                reason: "it is no PCI function with message-signalled interrupts",
            }
        }
        _ => told("opening the function", cause(error)),
    }
}

/// What the address space of `iommufd` can translate once its function is attached. iommufd has no
/// limit of mappings. Enters the kernel once.
///
/// # Errors
/// When it tells more ranges than is plausible.
pub(crate) fn reach(iommufd: &VfioIommufd) -> io::Result<IommuReach> {
    let mut ranges = vec![iommu_iova_range::default(); RANGES_MAX];
    let mut request = iommu_ioas_iova_ranges {
        size: length_of(size_of::<iommu_ioas_iova_ranges>()),
        ioas_id: iommufd.ioas().id(),
        num_iovas: length_of(ranges.len()),
        allowed_iovas: ranges.as_mut_ptr().expose_provenance() as u64,
        ..Default::default()
    };
    // SAFETY: the request takes this structure, whose size it tells; the array that it points to
    // has as many entries as it says and outlives the call.
    let answer = unsafe {
        libc::ioctl(
            iommufd.iommufd().as_raw_fd(),
            IOAS_IOVA_RANGES,
            std::ptr::from_mut(&mut request),
        )
    };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    let count = usize::try_from(request.num_iovas).unwrap_or(usize::MAX);
    Ok(IommuReach {
        ranges: ranges
            .iter()
            .take(count)
            .map(|range| range.start..=range.last)
            .collect(),
        mappings_available: None,
        page_bytes: request.out_iova_alignment.max(1),
    })
}

fn length_of(length: usize) -> u32 {
    u32::try_from(length).expect("what a system call is told here is small")
}

/// `_IO(IOMMUFD_TYPE, number)`: lengths are told inside the structures.
const IOAS_IOVA_RANGES: libc::c_ulong =
    ((IOMMUFD_TYPE as libc::c_ulong) << 8) | IOMMUFD_CMD_IOAS_IOVA_RANGES as libc::c_ulong;
const RANGES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use vmm_sys_util::errno;

    use super::*;

    fn function() -> PciFunction {
        let tree = crate::sysfs::tests::FakeTree::new();
        tree.function("0000:01:00.0", "0x010802", Some("vfio-pci"), Some(7));
        let address = "0000:01:00.0".parse().expect("an address");
        tree.sysfs().function(address).expect("a function")
    }

    #[test]
    fn each_refusal_of_the_crate_says_what_is_missing() {
        let of = |error| {
            refused(
                &function(),
                7,
                PathBuf::from("/dev/vfio/devices/vfio0"),
                error,
            )
        };
        let denied = || errno::Error::new(libc::EPERM);
        assert!(matches!(
            of(CrateError::OpenDeviceCdev(io::Error::from_raw_os_error(
                libc::EACCES
            ))),
            VfioError::NoPermission { .. }
        ));
        assert!(matches!(
            of(CrateError::InvalidVfioDev),
            VfioError::NoVfio { .. }
        ));
        for error in [
            CrateError::VfioDeviceBindIommufd(denied()),
            CrateError::VfioDeviceAttachIommufdPt(denied()),
        ] {
            assert!(matches!(
                of(error),
                VfioError::IommuRefused { group: 7, source }
                    if source.raw_os_error() == Some(libc::EPERM)
            ));
        }
        let missing = io::Error::from_raw_os_error(libc::EACCES);
        assert!(matches!(
            no_iommufd(IommufdError::OpenIommufd(missing)),
            VfioError::NoPermission { path } if path == Path::new("/dev/iommu")
        ));
    }

    #[test]
    fn a_function_in_use_is_told_from_one_that_may_not_be_had() {
        let of = |number| {
            is_busy(&CrateError::VfioDeviceBindIommufd(errno::Error::new(
                number,
            )))
        };
        assert!(of(libc::EBUSY));
        assert!(of(libc::EINVAL));
        assert!(!of(libc::EPERM));
        assert!(!is_busy(&CrateError::InvalidVfioDev));
    }
}
