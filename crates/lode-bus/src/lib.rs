//! The hardware seam: all that a driver may ask of the machine below it.
//!
//! Owns: the [`Registers`] of one controller, the [`Bus`] that makes memory visible to it and
//! delivers its interrupts, registers that are mapped into this process ([`MappedRegisters`]), and
//! DMA memory ([`DmaMemory`], [`DmaBuffer`]), which is only ever copied into and out of, never
//! borrowed as a Rust reference.
//!
//! A VFIO device, a vfio-user peer and the emulated controller each implement [`Bus`]; a driver
//! is generic over it and cannot tell them apart. Nothing here blocks except where it says so.
//!
//! Invariants:
//! 1. A [`DmaMemory`] has one I/O virtual address for its whole life, the same for every
//!    controller that it is mapped for.
//! 2. Every access to DMA memory is bounds-checked on the host's side; a device's accesses are
//!    bounded by what was mapped.
//! 3. Memory stays mapped in the process while any handle to it lives, so that a late write by a
//!    device may spoil data but never another object's memory.

#![expect(
    unsafe_code,
    reason = "DMA memory and registers are shared with devices: raw copies, the fault handler"
)]

mod bus;
mod error;
mod lost_pages;
mod memory;
mod window;

pub use bus::{Bus, Registers};
pub use error::BusError;
pub use memory::{DmaBuffer, DmaMemory, DmaSpan, IovaSpace, PageKind, PagePreference};
pub use window::MappedRegisters;
