//! What can go wrong between a driver and the machine below it.

use std::io;

use lode_units::Iova;

/// An error of the hardware seam.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BusError {
    /// The device is no longer there; the caller fails it.
    #[error("the device is gone")]
    Gone,
    /// The operating system refused memory; the caller asks for less or gives up.
    #[error("no memory for {length_bytes} bytes of DMA memory")]
    NoMemory {
        /// What was asked for.
        length_bytes: usize,
        /// The system's word.
        #[source]
        source: io::Error,
    },
    /// No room is left in the I/O virtual address space.
    #[error("no I/O virtual addresses left for {length_bytes} bytes")]
    NoAddress {
        /// What was asked for.
        length_bytes: usize,
    },
    /// A range could not be made visible to the device.
    #[error("cannot map {length_bytes} bytes at iova {iova:?}")]
    Map {
        /// Where the range begins.
        iova: Iova,
        /// How long it is.
        length_bytes: usize,
        /// The system's word.
        #[source]
        source: io::Error,
    },
    /// The bus has no such interrupt vector.
    #[error("interrupt vector {vector} does not exist; there are {count}")]
    NoVector {
        /// The vector asked for.
        vector: u16,
        /// How many there are.
        count: u16,
    },
    /// This transport cannot do it; the caller does without.
    #[error("{operation} is not supported by this transport")]
    Unsupported {
        /// What was asked for.
        operation: &'static str,
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
