//! The I/O address space of one controller.
//!
//! Owns: [`AddressSpace`], which `vfio-ioctls` opens, and through which memory is shown to the
//! controller and hidden from it.
//!
//! Invariant: once [`AddressSpace::seal`]ed, a device of the crate that belongs to this space
//! takes it for none of its own. The crate's device looks its group up when it is dropped, after
//! it has closed its descriptor, and unwraps what it finds. But a removal waits for just that
//! descriptor: by then the function may be gone, and the process would end in a panic. With the
//! space sealed, dropping such a device frees memory and does nothing else.

use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use lode_bus::DmaMemory;
#[cfg(feature = "iommufd")]
use vfio_ioctls::VfioIommufd;
use vfio_ioctls::{VfioContainer, VfioOps};

#[cfg(feature = "iommufd")]
use crate::cdev;
use crate::dma::Translation;
use crate::error::cause;
use crate::iommu::{self, IommuReach};

/// What devices of one controller see of this process' memory.
pub(crate) struct AddressSpace {
    kind: Kind,
    is_sealed: AtomicBool,
}

/// Who translates.
pub(crate) enum Kind {
    /// A container with the controller's group in it (type 1, version 2).
    Container(VfioContainer),
    /// An address space of iommufd.
    #[cfg(feature = "iommufd")]
    Iommufd(VfioIommufd),
}

impl AddressSpace {
    pub(crate) const fn new(kind: Kind) -> Self {
        Self {
            kind,
            is_sealed: AtomicBool::new(false),
        }
    }

    /// From now on no device of `vfio-ioctls` finds this space.
    pub(crate) fn seal(&self) {
        // Set and read by the threads that own the device one after the other.
        self.is_sealed.store(true, Ordering::Release);
    }

    /// What it can translate, which the device in it decides. Enters the kernel.
    ///
    /// # Errors
    /// When no device is in it yet, or the kernel tells more than is plausible.
    pub(crate) fn reach(&self) -> io::Result<IommuReach> {
        match &self.kind {
            Kind::Container(container) => iommu::reach(descriptor(container)),
            #[cfg(feature = "iommufd")]
            Kind::Iommufd(iommufd) => cdev::reach(iommufd),
        }
    }
}

impl VfioOps for AddressSpace {
    fn as_any(&self) -> &dyn Any {
        if self.is_sealed.load(Ordering::Acquire) {
            return &();
        }
        match &self.kind {
            Kind::Container(container) => container,
            #[cfg(feature = "iommufd")]
            Kind::Iommufd(iommufd) => iommufd,
        }
    }
}

fn descriptor(container: &VfioContainer) -> BorrowedFd<'_> {
    // SAFETY: the container owns this descriptor and lives as long as it is borrowed.
    unsafe { BorrowedFd::borrow_raw(container.as_raw_fd()) }
}

impl Translation for AddressSpace {
    fn map(&self, memory: &DmaMemory) -> io::Result<()> {
        let (iova, length) = (memory.iova().get(), memory.length_bytes());
        let start = memory.host_address();
        let mapped = match &self.kind {
            Kind::Container(container) => {
                // SAFETY: the table that calls this holds a handle to the memory until it is
                // unmapped or the space is closed, and no reference to DMA memory ever exists.
                unsafe { container.vfio_dma_map(iova, length, start) }
            }
            #[cfg(feature = "iommufd")]
            Kind::Iommufd(iommufd) => {
                // SAFETY: as above.
                unsafe { iommufd.vfio_dma_map(iova, length, start) }
            }
        };
        mapped.map_err(cause)
    }

    fn unmap(&self, iova: u64, length_bytes: u64) -> io::Result<()> {
        let length = usize::try_from(length_bytes).map_err(io::Error::other)?;
        let hidden = match &self.kind {
            Kind::Container(container) => container.vfio_dma_unmap(iova, length),
            #[cfg(feature = "iommufd")]
            Kind::Iommufd(iommufd) => iommufd.vfio_dma_unmap(iova, length),
        };
        hidden.map_err(cause)
    }

    fn account(&self) -> &'static str {
        match &self.kind {
            Kind::Container(_) => "VmLck:",
            #[cfg(feature = "iommufd")]
            Kind::Iommufd(_) => "VmPin:",
        }
    }
}

impl fmt::Debug for AddressSpace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AddressSpace")
            .field("is_sealed", &self.is_sealed)
            .finish_non_exhaustive()
    }
}
