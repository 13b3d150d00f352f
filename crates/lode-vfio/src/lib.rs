//! Real controllers behind the hardware seam, and what has to be true of a machine before one
//! can be used.
//!
//! Owns: [`VfioBus`], a PCI function taken through the kernel's VFIO, which implements
//! [`lode_bus::Bus`]; [`sysfs`], the kernel's view of NVMe functions, their drivers and groups,
//! with binding and unbinding; [`doctor`], which names what is missing and the command that
//! mends it.
//!
//! A bus may be used from several threads. Opening, mapping, resetting and everything in
//! [`sysfs`] and [`doctor`] enter the kernel and may block; register accesses do neither.
//!
//! Invariants:
//! 1. A controller has an I/O address space of its own: what is hidden from it is hidden, also
//!    while another controller still sees the same memory.
//! 2. Memory stays allocated while it is mapped for a device: the table of mappings holds a
//!    handle to it.

#![expect(unsafe_code, reason = "system calls of VFIO")]

mod address;
mod bus;
#[cfg(feature = "iommufd")]
mod cdev;
mod device;
mod dma;
mod error;
mod group;
mod interrupts;
mod iommu;
mod nodes;
mod space;
mod syscall;

pub mod doctor;
pub mod sysfs;

pub use address::{AddressError, PciAddress};
pub use bus::VfioBus;
pub use error::VfioError;
