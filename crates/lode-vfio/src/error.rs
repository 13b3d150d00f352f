//! What stands in the way of a controller behind VFIO.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use lode_units::Iova;
use vmm_sys_util::errno;

use crate::address::PciAddress;

/// An error of this crate. Each says what is missing; `lodectl doctor` says how to mend it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VfioError {
    /// The kernel has no VFIO, or it is not loaded.
    #[error("{path} does not exist: the vfio modules are not loaded or the kernel has none")]
    NoVfio {
        /// The device node of VFIO.
        path: PathBuf,
    },
    /// There is no such PCI function.
    #[error("there is no PCI function {address}")]
    NoDevice {
        /// The function asked for.
        address: PciAddress,
    },
    /// The function is in no IOMMU group.
    #[error("{address} is in no IOMMU group: the IOMMU is off or absent")]
    NoIommu {
        /// The function.
        address: PciAddress,
    },
    /// The function belongs to another driver.
    #[error("{address} is bound to {}, not to vfio-pci", driver.as_deref().unwrap_or("no driver"))]
    NotBound {
        /// The function.
        address: PciAddress,
        /// The driver that has it, if any.
        driver: Option<String>,
    },
    /// This process may not open the group.
    #[error("no permission to open {path}")]
    NoPermission {
        /// The group's device node.
        path: PathBuf,
    },
    /// Somebody else has the group open, possibly this process for another function of it.
    #[error("{path} is in use")]
    Busy {
        /// The group's device node.
        path: PathBuf,
    },
    /// Another function of the group is held by a driver that does direct memory access.
    #[error("group {group} is not viable: {}", siblings.join(", "))]
    NotViable {
        /// The group.
        group: u32,
        /// The functions in the way with their drivers (`0000:01:00.1 (snd_hda_intel)`).
        siblings: Vec<String>,
    },
    /// The IOMMU cannot be used from user space.
    #[error("the IOMMU refuses group {group}: interrupt remapping may be missing")]
    IommuRefused {
        /// The group.
        group: u32,
        /// The system's word.
        #[source]
        source: io::Error,
    },
    /// The function's registers cannot be mapped.
    #[error("the registers of {address} cannot be mapped: {reason}")]
    NoRegisters {
        /// The function.
        address: PciAddress,
        /// What is wrong with them.
        reason: &'static str,
    },
    /// A range of I/O virtual addresses lies outside of what the IOMMU translates.
    #[error("iova {iova} with {length_bytes} bytes is outside of what the IOMMU translates")]
    OutOfReach {
        /// Where the range begins.
        iova: Iova,
        /// How long it is.
        length_bytes: u64,
    },
    /// The limit of locked memory is too low.
    #[error("locked memory: {needed_bytes} bytes are needed, the limit is {limit_bytes}")]
    MemoryLock {
        /// What this process must be allowed to lock in all.
        needed_bytes: u64,
        /// RLIMIT_MEMLOCK.
        limit_bytes: u64,
    },
    /// The kernel takes no more mappings.
    #[error("all {limit} mappings of the IOMMU are in use")]
    TooManyMappings {
        /// How many there may be.
        limit: usize,
    },
    /// Another memory is already mapped at this address.
    #[error("iova {iova} is taken by another memory")]
    AddressTaken {
        /// Where the range begins.
        iova: Iova,
    },
    /// The device holds data or is in use; the caller asks the person and forces it.
    #[error("{address} is in use: {}", uses.join("; "))]
    InUse {
        /// The function.
        address: PciAddress,
        /// Every use that was found.
        uses: Vec<String>,
    },
    /// The function did not come to the driver it was meant for.
    #[error("{address} did not bind to {driver}")]
    NotTaken {
        /// The function.
        address: PciAddress,
        /// The driver.
        driver: String,
    },
    /// A file of sysfs or procfs could not be read or written.
    #[error("cannot {operation} {path}")]
    File {
        /// What was tried.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's word.
        #[source]
        source: io::Error,
    },
    /// Any other failure of a system call.
    #[error("{operation} failed")]
    System {
        /// What was tried.
        operation: &'static str,
        /// The system's word.
        #[source]
        source: io::Error,
    },
}

/// The system's word inside an error of `vfio-ioctls`, wherever it is wrapped; the error itself
/// where the crate keeps none.
pub(crate) fn cause(error: vfio_ioctls::VfioError) -> io::Error {
    let mut next: Option<&dyn Error> = Some(&error);
    while let Some(inner) = next {
        let number = inner
            .downcast_ref::<errno::Error>()
            .map(|error| error.errno())
            .or_else(|| inner.downcast_ref::<io::Error>()?.raw_os_error());
        if let Some(number) = number {
            return io::Error::from_raw_os_error(number);
        }
        next = inner.source();
    }
    io::Error::other(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_word_is_found_inside_the_crates_errors() {
        let refused = errno::Error::new(libc::ENOSPC);
        let error = cause(vfio_ioctls::VfioError::IommuDmaMap(refused));
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        let denied = io::Error::from_raw_os_error(libc::EACCES);
        let error = cause(vfio_ioctls::VfioError::OpenContainer(denied));
        assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    }

    #[test]
    fn an_error_without_the_systems_word_keeps_its_own() {
        let error = cause(vfio_ioctls::VfioError::GroupSetContainer);
        assert_eq!(error.raw_os_error(), None);
        assert!(error.to_string().contains("container"), "{error}");
    }
}
