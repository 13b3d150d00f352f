//! The NVMe driver: safe code over `lode-bus`, behind the storage seam of `lode-block`.
//!
//! Owns: [`Controller`], which brings a controller up, watches it, resets it and shuts it down;
//! [`NamespaceQueue`], one I/O queue pair for one namespace on one core, which implements
//! [`lode_block::BlockDevice`]; the mapping of NVMe status to what a caller can do
//! ([`error_kind`]).
//!
//! A controller belongs to one thread and is driven by [`Controller::poll`]; each of its queues
//! may live on another. They share a few atomic words (`gate.rs`, `link.rs`), no lock. Time is
//! passed in. Nothing blocks except what says so; submit, kick and poll of a queue allocate
//! nothing.
//!
//! Invariants:
//! 1. Every request that a queue accepts is completed exactly once.
//! 2. A request is not completed while the device may still touch its memory: after a reset not
//!    before CC.EN = 0 and CSTS.RDY = 0 were seen, or the memory was hidden from the device.
//! 3. No doorbell of an epoch is rung in the next one: a queue is created anew only after its
//!    owner has followed the reset.
//! 4. Every wait has a deadline, every retry a limit; at their end the controller is gone.
//! 5. A queue makes progress through timeouts and resets only while its controller is polled.

#![forbid(unsafe_code)]

mod admin;
mod command_id;
mod controller;
mod doorbell;
mod error;
mod gate;
mod link;
mod namespace;
mod options;
mod prp;
mod queue;
mod ring;
mod stats;
mod status;

pub use controller::{Controller, ControllerEvent, ControllerIdentity, ControllerState};
pub use error::{Failure, NvmeError};
pub use namespace::{Namespace, Refusal};
pub use options::{ControllerOptions, QueueOptions, Quirks, WriteCachePolicy};
pub use queue::NamespaceQueue;
pub use stats::{
    ControllerStats, ERROR_KIND_COUNT, OPERATION_COUNT, QueueStats, error_index, operation_index,
};
pub use status::error_kind;
