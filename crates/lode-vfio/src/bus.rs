//! A PCI function behind VFIO as a driver sees it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use lode_bus::{Bus, BusError, DmaMemory, MappedRegisters};
use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FLAGS_PCI, VFIO_DEVICE_FLAGS_RESET, VFIO_PCI_BAR0_REGION_INDEX,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_REGION_INFO_FLAG_MMAP,
};

use crate::address::PciAddress;
use crate::device::OpenDevice;
use crate::dma::DmaTable;
use crate::error::VfioError;
use crate::interrupts::{RemovalRequest, Vectors};
use crate::syscall;
use crate::sysfs::Sysfs;

/// A PCI function taken through VFIO: its registers mapped, an I/O address space of its own.
///
/// Dropping it gives the function back to `vfio-pci`, which resets it and stops its memory
/// accesses, once the last [`MappedRegisters`] is dropped too.
#[derive(Debug)]
pub struct VfioBus {
    name: String,
    address: PciAddress,
    registers: MappedRegisters,
    vectors: Vectors,
    removal: Option<RemovalRequest>,
    can_reset: bool,
    configuration_offset: u64,
    table: Mutex<DmaTable>,
    open: OpenDevice,
}

impl VfioBus {
    /// Takes the function at `address`, which must be bound to `vfio-pci` already. Enters the
    /// kernel and may block for the reset that VFIO does.
    ///
    /// # Errors
    /// What is missing; [`crate::doctor`] knows the command that mends it.
    pub fn open(address: PciAddress) -> Result<Self, VfioError> {
        let open = OpenDevice::open(address, &Sysfs::of_this_machine())?;
        let device = open.device.as_fd();
        let told = |operation| move |source| VfioError::System { operation, source };
        let info = syscall::device_info(device).map_err(told("asking what the function is"))?;
        if info.flags & VFIO_DEVICE_FLAGS_PCI == 0 {
            return Err(VfioError::NoRegisters {
                address,
                reason: "it is no PCI function",
            });
        }
        let configuration = syscall::region_info(device, VFIO_PCI_CONFIG_REGION_INDEX)
            .map_err(told("looking for the configuration space"))?;
        // The crate asks at the opening and leaves out what the kernel does not tell.
        let vectors = open
            .description()
            .get_irq_info(VFIO_PCI_MSIX_IRQ_INDEX)
            .ok_or_else(|| told("counting the interrupts")(io::ErrorKind::Unsupported.into()))?
            .count;
        let reach = open
            .space
            .reach()
            .map_err(told("asking for the reach of the IOMMU"))?;
        // An older kernel has no such interrupt; removal then shows in the registers.
        let removal = RemovalRequest::watch(open.description()).ok();
        let bus = Self {
            name: format!("vfio:{address}"),
            address,
            // Decoding is switched on before the window is first touched.
            registers: map_registers(address, &open)?,
            vectors: Vectors::new(vectors),
            removal,
            can_reset: info.flags & VFIO_DEVICE_FLAGS_RESET != 0,
            configuration_offset: configuration.offset,
            table: Mutex::new(DmaTable::new(reach)),
            open,
        };
        bus.enable_function()
            .map_err(told("enabling memory access of the function"))?;
        Ok(bus)
    }

    /// The function's address.
    #[must_use]
    pub const fn address(&self) -> PciAddress {
        self.address
    }

    /// The device node through which the function was taken (`/dev/vfio/7`).
    #[must_use]
    pub fn node(&self) -> &Path {
        &self.open.node
    }

    /// A descriptor that becomes readable when the kernel wants the function back, where the
    /// kernel can tell. Whoever holds the bus then shuts the controller down and drops it.
    #[must_use]
    pub fn removal_signal(&self) -> Option<BorrowedFd<'_>> {
        self.removal.as_ref().map(RemovalRequest::signal)
    }

    /// Whether the kernel wants the function back. It is still there and answers, which leaves
    /// the time to shut it down. Enters the kernel, does not block.
    #[must_use]
    pub fn is_removal_requested(&self) -> bool {
        self.removal
            .as_ref()
            .is_some_and(RemovalRequest::is_pending)
    }

    /// Lets the function decode its registers and access memory (PCI Local Bus 3.0 §6.2.2).
    fn enable_function(&self) -> io::Result<()> {
        let at = self.configuration_offset + COMMAND_OFFSET;
        let mut bytes = [0; 2];
        self.open.device.read_exact_at(&mut bytes, at)?;
        let command = u16::from_le_bytes(bytes);
        // Pin interrupts stay off: nobody would answer them.
        let wanted = command | COMMAND_MEMORY | COMMAND_MASTER | COMMAND_NO_PIN_INTERRUPT;
        if command != wanted {
            self.open.device.write_all_at(&wanted.to_le_bytes(), at)?;
        }
        Ok(())
    }

    fn check_present(&self) -> Result<(), BusError> {
        if self.registers.is_lost() {
            return Err(BusError::Gone);
        }
        Ok(())
    }
}

fn map_registers(address: PciAddress, open: &OpenDevice) -> Result<MappedRegisters, VfioError> {
    let refused = |reason| VfioError::NoRegisters { address, reason };
    let region = syscall::region_info(open.device.as_fd(), VFIO_PCI_BAR0_REGION_INDEX).map_err(
        |source| VfioError::System {
            operation: "looking for the registers",
            source,
        },
    )?;
    if region.flags & VFIO_REGION_INFO_FLAG_MMAP == 0 {
        return Err(refused("the kernel does not let BAR 0 be mapped"));
    }
    let length_bytes = usize::try_from(region.size)
        .ok()
        .filter(|length| (WINDOW_MIN_BYTES..=WINDOW_MAX_BYTES).contains(length))
        .ok_or_else(|| refused("BAR 0 is absent or of an implausible size"))?;
    MappedRegisters::map(&open.device, region.offset, length_bytes).map_err(|source| {
        VfioError::System {
            operation: "mapping the registers",
            source,
        }
    })
}

impl Bus for VfioBus {
    type Registers = MappedRegisters;

    fn name(&self) -> &str {
        &self.name
    }

    fn registers(&self) -> MappedRegisters {
        self.registers.clone()
    }

    fn map(&self, memory: &DmaMemory) -> Result<(), BusError> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.map(memory, &*self.open.space)
    }

    fn unmap(&self, memory: &DmaMemory) -> Result<(), BusError> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.unmap(memory, &*self.open.space)
    }

    fn interrupt_count(&self) -> u16 {
        self.vectors.count()
    }

    fn enable_interrupt(&self, vector: u16) -> Result<RawFd, BusError> {
        self.check_present()?;
        self.vectors.enable(self.open.device.as_fd(), vector)
    }

    fn route_interrupt(&self, vector: u16, signal: BorrowedFd<'_>) -> Result<(), BusError> {
        self.check_present()?;
        self.vectors.route(self.open.device.as_fd(), vector, signal)
    }

    fn rest_interrupt(&self, vector: u16) -> Result<(), BusError> {
        self.check_present()?;
        self.vectors.rest(self.open.device.as_fd(), vector)
    }

    fn reset_function(&self) -> Result<(), BusError> {
        self.check_present()?;
        if !self.can_reset {
            return Err(BusError::Unsupported {
                operation: "resetting the function",
            });
        }
        let told = |operation| move |source| BusError::System { operation, source };
        syscall::reset(self.open.device.as_fd()).map_err(told("resetting the function"))?;
        // The kernel restores the configuration space; a device may still have lost these bits.
        self.enable_function()
            .map_err(told("enabling memory access after a reset"))
    }

    fn is_present(&self) -> bool {
        !self.registers.is_lost()
    }
}

impl Drop for VfioBus {
    fn drop(&mut self) {
        // The kernel would do the same when the last descriptor is closed; a register handle
        // that is still held must not keep a vector firing until then. Refused only by a device
        // that is gone, which fires nothing.
        let _refused = self.vectors.disable(self.open.description()).is_err();
        let table = self.table.get_mut().unwrap_or_else(PoisonError::into_inner);
        table.hide_all(&*self.open.space);
    }
}

/// The command register of the configuration space and three of its bits.
const COMMAND_OFFSET: u64 = 4;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;
const COMMAND_NO_PIN_INTERRUPT: u16 = 1 << 10;
/// The controller registers and the doorbells of the admin queue (NVMe PCIe Transport 1.0 §3.1).
const WINDOW_MIN_BYTES: usize = 0x1008;
/// Doorbells of 65,536 queues at the widest stride end far below; a controller memory buffer in
/// BAR 0 can be larger, and is not used.
const WINDOW_MAX_BYTES: usize = 1 << 32;
