//! The emulated controller as hardware would be: what the device does is not the driver's work.
//!
//! Everything that the device does for the driver's calls happens in the two functions
//! [`device_works`] and [`device_hears`], which are never inlined, so that a profiler can leave
//! them out by name ([`LEFT_OUT`]).

use std::os::fd::{BorrowedFd, RawFd};

use lode_bus::{Bus, BusError, DmaMemory, Registers};
use lode_nvme_emu::EmulatedController;
use lode_units::Instant;

/// The names of the functions that hold the device's work, for callgrind.
pub(crate) const LEFT_OUT: &str = "*apart*device_*";

/// The way to an emulated controller that keeps its work in functions of their own.
#[derive(Debug)]
pub(crate) struct Apart(pub(crate) EmulatedController);

/// Its registers.
#[derive(Debug)]
pub(crate) struct ApartRegisters(<EmulatedController as Bus>::Registers);

#[inline(never)]
fn device_works(device: &EmulatedController, now: Instant) -> Option<Instant> {
    device.advance(now)
}

#[inline(never)]
fn device_hears(registers: &impl Registers, offset: u32, value: u32) {
    registers.write_u32(offset, value);
}

impl Registers for ApartRegisters {
    fn length_bytes(&self) -> u64 {
        self.0.length_bytes()
    }

    fn read_u32(&self, offset: u32) -> u32 {
        self.0.read_u32(offset)
    }

    fn read_u64(&self, offset: u32) -> u64 {
        self.0.read_u64(offset)
    }

    fn write_u32(&self, offset: u32, value: u32) {
        device_hears(&self.0, offset, value);
    }

    fn write_u64(&self, offset: u32, value: u64) {
        self.0.write_u64(offset, value);
    }
}

impl Bus for Apart {
    type Registers = ApartRegisters;

    fn name(&self) -> &str {
        self.0.name()
    }

    fn registers(&self) -> ApartRegisters {
        ApartRegisters(self.0.registers())
    }

    fn map(&self, memory: &DmaMemory) -> Result<(), BusError> {
        self.0.map(memory)
    }

    fn unmap(&self, memory: &DmaMemory) -> Result<(), BusError> {
        self.0.unmap(memory)
    }

    fn interrupt_count(&self) -> u16 {
        self.0.interrupt_count()
    }

    fn enable_interrupt(&self, vector: u16) -> Result<RawFd, BusError> {
        self.0.enable_interrupt(vector)
    }

    fn route_interrupt(&self, vector: u16, signal: BorrowedFd<'_>) -> Result<(), BusError> {
        self.0.route_interrupt(vector, signal)
    }

    fn reset_function(&self) -> Result<(), BusError> {
        self.0.reset_function()
    }

    fn is_present(&self) -> bool {
        self.0.is_present()
    }

    fn advance(&self, now: Instant) -> Option<Instant> {
        device_works(&self.0, now)
    }
}
