//! The one bus type of the daemon: an emulated controller, a real one, or another process'.
//!
//! An enum and no trait object: the data path calls registers and [`Bus::advance`] through a
//! branch that is always predicted.

use std::os::fd::{BorrowedFd, RawFd};

use lode_bus::{Bus, BusError, DmaMemory, MappedRegisters, Registers};
use lode_nvme_emu::{EmulatedController, EmulatedRegisters};
use lode_units::Instant;
use lode_vfio::VfioBus;
use lode_vfio_user::{VfioUserBus, VfioUserRegisters};

/// A controller of any kind.
#[derive(Debug)]
pub(crate) enum AnyBus {
    /// Inside this process, over a file or memory.
    Emulated(Box<EmulatedController>),
    /// Taken through the kernel's VFIO.
    Vfio(Box<VfioBus>),
    /// Served by another process.
    VfioUser(Box<VfioUserBus>),
}

/// The registers of any kind.
#[derive(Debug)]
pub(crate) enum AnyRegisters {
    /// Of an emulated controller.
    Emulated(EmulatedRegisters),
    /// Of a real one.
    Vfio(MappedRegisters),
    /// Of one behind a socket.
    VfioUser(VfioUserRegisters),
}

impl AnyBus {
    /// Whether the controller runs inside this process.
    pub(crate) const fn is_emulated(&self) -> bool {
        matches!(self, Self::Emulated(_))
    }

    /// Why the other process' controller is gone, once it is.
    pub(crate) fn loss(&self) -> Option<String> {
        match self {
            Self::Emulated(_) | Self::Vfio(_) => None,
            Self::VfioUser(bus) => bus.loss(),
        }
    }

    /// Whether the kernel wants the controller back. Enters the kernel, does not block.
    pub(crate) fn is_removal_requested(&self) -> bool {
        match self {
            Self::Emulated(_) | Self::VfioUser(_) => false,
            Self::Vfio(bus) => bus.is_removal_requested(),
        }
    }
}

/// The same call on whichever variant `$this` is.
macro_rules! any {
    ($this:expr, $inner:ident => $call:expr) => {
        match $this {
            Self::Emulated($inner) => $call,
            Self::Vfio($inner) => $call,
            Self::VfioUser($inner) => $call,
        }
    };
}

impl Registers for AnyRegisters {
    fn length_bytes(&self) -> u64 {
        any!(self, registers => registers.length_bytes())
    }

    fn read_u32(&self, offset: u32) -> u32 {
        any!(self, registers => registers.read_u32(offset))
    }

    fn read_u64(&self, offset: u32) -> u64 {
        any!(self, registers => registers.read_u64(offset))
    }

    fn write_u32(&self, offset: u32, value: u32) {
        any!(self, registers => registers.write_u32(offset, value));
    }

    fn write_u64(&self, offset: u32, value: u64) {
        any!(self, registers => registers.write_u64(offset, value));
    }
}

impl Bus for AnyBus {
    type Registers = AnyRegisters;

    fn name(&self) -> &str {
        any!(self, bus => bus.name())
    }

    fn registers(&self) -> AnyRegisters {
        match self {
            Self::Emulated(bus) => AnyRegisters::Emulated(bus.registers()),
            Self::Vfio(bus) => AnyRegisters::Vfio(bus.registers()),
            Self::VfioUser(bus) => AnyRegisters::VfioUser(bus.registers()),
        }
    }

    fn map(&self, memory: &DmaMemory) -> Result<(), BusError> {
        any!(self, bus => bus.map(memory))
    }

    fn unmap(&self, memory: &DmaMemory) -> Result<(), BusError> {
        any!(self, bus => bus.unmap(memory))
    }

    fn interrupt_count(&self) -> u16 {
        any!(self, bus => bus.interrupt_count())
    }

    fn enable_interrupt(&self, vector: u16) -> Result<RawFd, BusError> {
        any!(self, bus => bus.enable_interrupt(vector))
    }

    fn route_interrupt(&self, vector: u16, signal: BorrowedFd<'_>) -> Result<(), BusError> {
        any!(self, bus => bus.route_interrupt(vector, signal))
    }

    fn rest_interrupt(&self, vector: u16) -> Result<(), BusError> {
        any!(self, bus => bus.rest_interrupt(vector))
    }

    fn reset_function(&self) -> Result<(), BusError> {
        any!(self, bus => bus.reset_function())
    }

    fn is_present(&self) -> bool {
        any!(self, bus => bus.is_present())
    }

    fn advance(&self, now: Instant) -> Option<Instant> {
        any!(self, bus => bus.advance(now))
    }
}
