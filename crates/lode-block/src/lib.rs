//! The storage seam: what the layers above ask of a block device, whatever stands behind it.
//!
//! Owns: [`BlockDevice`], one core's way to one namespace; the [`Request`] and [`Completion`]
//! that cross it; the [`Geometry`] that a device promises; [`DeviceError`], which says what a
//! caller can do about a failure; [`Durability`]; and [`BufferPool`], the bounded store of DMA
//! buffers.
//!
//! A device belongs to the thread that polls it. Nothing here blocks; the data path allocates
//! nothing.
//!
//! Invariants:
//! 1. Every request that [`BlockDevice::submit`] accepts is completed exactly once, by
//!    [`BlockDevice::poll`], also when the device fails, hangs or disappears.
//! 2. When a completion is handed out, the device no longer touches the request's memory.
//! 3. A buffer taken from a [`BufferPool`] goes back to that pool; what is not returned is counted.

mod buffer_pool;
mod device;
mod durability;
mod error;
mod request;

pub use buffer_pool::{BufferPool, BufferPoolSpec};
pub use device::{BlockDevice, Geometry, RejectReason, Rejected, WriteCache};
pub use durability::Durability;
pub use error::{DeviceError, ErrorKind};
pub use request::{Completion, Operation, Request, Tag};
