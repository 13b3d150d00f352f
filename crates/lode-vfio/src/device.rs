//! A function taken through VFIO, with everything that keeps it taken.

use std::fmt;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vfio_ioctls::{VfioDevice, VfioOps};

use crate::address::PciAddress;
#[cfg(feature = "iommufd")]
use crate::cdev;
use crate::error::VfioError;
use crate::group;
use crate::nodes::Way;
use crate::space::AddressSpace;
use crate::sysfs::{Sysfs, VFIO_DRIVER};

/// An open function in an I/O address space of its own.
///
/// The fields are closed in the order in which they stand: what the crate knows of the function,
/// which closes nothing; the function itself; its address space.
pub(crate) struct OpenDevice {
    /// The crate's view: what it found out when it opened the function.
    description: VfioDevice,
    /// The function.
    pub(crate) device: File,
    /// What it sees of this process' memory.
    pub(crate) space: Arc<AddressSpace>,
    /// The device node through which it was opened.
    pub(crate) node: PathBuf,
}

impl OpenDevice {
    /// Takes `address`. Enters the kernel; the function is reset on the way.
    ///
    /// # Errors
    /// What is missing, as exactly as the kernel lets it be told.
    pub(crate) fn open(address: PciAddress, sysfs: &Sysfs) -> Result<Self, VfioError> {
        let function = sysfs.function(address)?;
        let group = function.group.ok_or(VfioError::NoIommu { address })?;
        if function.driver.as_deref() != Some(VFIO_DRIVER) {
            return Err(VfioError::NotBound {
                address,
                driver: function.driver,
            });
        }
        match Way::of(&function, group, sysfs)? {
            #[cfg(feature = "iommufd")]
            Way::Device { node } => cdev::open(&function, group, node, sysfs),
            // A build without iommufd finds no other way.
            _ => group::open(&function, group, sysfs),
        }
    }

    /// Has the crate open the function that sysfs shows at `path`, in `space`, through `node`.
    ///
    /// # Errors
    /// The crate's own; the caller knows what they mean on the way that it goes.
    pub(crate) fn attach(
        path: &Path,
        space: AddressSpace,
        node: PathBuf,
    ) -> Result<Self, vfio_ioctls::VfioError> {
        let space = Arc::new(space);
        let owner: Arc<dyn VfioOps> = Arc::<AddressSpace>::clone(&space);
        let description = VfioDevice::new(path, owner, true)?;
        space.seal();
        // SAFETY: the descriptor is open, and nobody else closes it: the crate keeps it in a
        // `ManuallyDrop` that only its own `Drop` empties, and only for a device that finds its
        // address space, which is sealed.
        let device = unsafe { File::from_raw_fd(description.as_raw_fd()) };
        Ok(Self {
            description,
            device,
            space,
            node,
        })
    }

    /// The crate's view of the function.
    pub(crate) const fn description(&self) -> &VfioDevice {
        &self.description
    }
}

impl fmt::Debug for OpenDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("OpenDevice")
            .field("node", &self.node)
            .field("device", &self.device)
            .field("space", &self.space)
            .finish_non_exhaustive()
    }
}
