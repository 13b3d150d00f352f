//! One controller as its driver sees it.

use std::os::fd::{BorrowedFd, RawFd};

use lode_units::Instant;

use crate::error::BusError;
use crate::memory::DmaMemory;

/// The register window of a controller (BAR 0 and 1 of a PCIe one; NVMe PCIe Transport 1.0 §3.1).
///
/// Accesses are naturally aligned and little-endian. Reading a device that has been removed
/// returns all ones; writing to it does nothing. An offset outside the window behaves in the
/// same way. Nothing here blocks.
pub trait Registers: Send {
    /// The length of the window in bytes.
    fn length_bytes(&self) -> u64;

    /// Reads 32 bits.
    fn read_u32(&self, offset: u32) -> u32;

    /// Reads 64 bits.
    fn read_u64(&self, offset: u32) -> u64;

    /// Writes 32 bits. Every earlier write to DMA memory is visible to the device before this
    /// one: a doorbell needs no further barrier.
    fn write_u32(&self, offset: u32, value: u32);

    /// Writes 64 bits, with the ordering of [`Registers::write_u32`].
    fn write_u64(&self, offset: u32, value: u64);
}

/// The way to one controller: its registers, the memory that it can see, its interrupts.
///
/// Calls other than [`Bus::advance`] belong to bring-up and to long operations: they may
/// allocate and enter the kernel.
pub trait Bus: Send + Sync {
    /// A handle to the registers, usable from the core that took it.
    type Registers: Registers;

    /// A name for logs and errors, as written in the configuration.
    fn name(&self) -> &str;

    /// A handle to the controller's registers.
    fn registers(&self) -> Self::Registers;

    /// Makes `memory` visible to the device at its own address.
    ///
    /// # Errors
    /// When the device is gone or its address translation is full.
    fn map(&self, memory: &DmaMemory) -> Result<(), BusError>;

    /// Hides `memory` from the device. When this returns, the device can no longer write there.
    ///
    /// # Errors
    /// When the device is gone.
    fn unmap(&self, memory: &DmaMemory) -> Result<(), BusError>;

    /// How many interrupt vectors can be enabled.
    fn interrupt_count(&self) -> u16;

    /// Enables interrupt `vector` and returns the descriptor that becomes readable when it
    /// fires; the bus keeps owning it.
    ///
    /// # Errors
    /// When there is no such vector or the device is gone.
    fn enable_interrupt(&self, vector: u16) -> Result<RawFd, BusError>;

    /// Makes `vector` fire into `signal` from now on instead of a descriptor of the bus's own.
    ///
    /// # Errors
    /// As [`Bus::enable_interrupt`]; unsupported by default.
    fn route_interrupt(&self, vector: u16, signal: BorrowedFd<'_>) -> Result<(), BusError> {
        let _unused = (vector, signal);
        Err(BusError::Unsupported {
            operation: "routing an interrupt",
        })
    }

    /// Lets `vector` rest: whoever waits for it polls, and wants no signal before it is routed
    /// again. What happens meanwhile may be signalled then or not at all: poll once after routing.
    ///
    /// It exists because a signal nobody waits for still costs the kernel an interrupt. A bus
    /// whose signals are cheap may go on firing, as by default.
    ///
    /// # Errors
    /// As [`Bus::enable_interrupt`].
    fn rest_interrupt(&self, vector: u16) -> Result<(), BusError> {
        let _unused = vector;
        Ok(())
    }

    /// Resets the whole function (PCIe function level reset), the last resort after a failed
    /// controller reset. May block for some hundred milliseconds.
    ///
    /// # Errors
    /// When the transport has no such reset or the device is gone.
    fn reset_function(&self) -> Result<(), BusError>;

    /// Whether the device is still there, as far as the transport knows.
    fn is_present(&self) -> bool;

    /// Lets a device that runs inside this process work for a moment: it looks at its doorbells
    /// and posts what has become due by `now`. Hardware needs no such call. Does not block.
    ///
    /// Returns the moment at which it should be called again although nothing was submitted (a
    /// completion that is being delayed), if there is one.
    fn advance(&self, now: Instant) -> Option<Instant> {
        let _unused = now;
        None
    }
}
