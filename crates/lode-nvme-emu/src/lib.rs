//! An emulated NVMe controller behind the hardware seam, for a first try without hardware and for
//! tests and simulation.
//!
//! Owns: the controller's side of NVMe ([`EmulatedController`], a cheap handle that implements
//! [`lode_bus::Bus`]) over namespaces in memory or in a file ([`Media`]); a volatile write cache
//! that really loses what was not flushed ([`Cache`]); a fault script ([`FaultRule`]); a model of
//! latency ([`Latency`]); and the words that a configuration names all this with
//! ([`EmulatorSpec`]). It knows nothing of any driver: the two share the wire structures of
//! `lode-nvme-spec` and DMA memory.
//!
//! A doorbell write stores a number and marks a queue. All work is done by
//! [`lode_bus::Bus::advance`], on the thread that calls it and in the time that it is given: one
//! thread in virtual time is deterministic, several threads each take the queues that they ring,
//! share nothing that they write for every command, and take another's when it stays away.
//! A caller of `advance` looks at its own completion queues afterwards.
//!
//! What blocks: calls on a file where the host refuses io_uring ([`Access::FileBlocking`]); a
//! modelled cache in front of a file; the sync of a normal shutdown and of switching the cache
//! off; `unmap`, function reset and
//! power cut, which wait until no file operation is in flight.
//!
//! Invariants:
//! 1. Nothing that a host writes to registers, queues, lists or data makes this crate panic; an
//!    address that is not mapped is never touched, and counted.
//! 2. A command completes at most once, unless a fault rule says otherwise; after a reset none of
//!    before completes, and CSTS.RDY falls only when nothing of before can reach the host's memory.
//! 3. After a controller is enabled and its queues exist, commands on memory or a file allocate
//!    nothing; log pages and a queue's first command on a file that was added later may.
//! 4. Every table and wait is bounded: queues 1025, commands in flight of one queue 1024, fault
//!    rules 64, namespaces 4096, waits for file operations 5 s.
#![expect(unsafe_code, reason = "file I/O into DMA memory, in backing/ only")]

mod admin;
mod backing;
mod batch;
mod bounce;
mod cache;
mod control;
mod controller;
mod counters;
mod dma;
mod error;
mod fault;
mod handle;
mod interrupts;
mod io;
mod lanes;
mod latency;
mod namespace;
mod options;
mod outstanding;
mod power;
mod prp;
mod queues;
mod registers;
mod serve;
mod shadow;
mod spec;

pub use backing::{Access, Media};
pub use controller::EmulatedController;
pub use counters::{Counters, OperationCounters};
pub use error::EmulatorError;
pub use fault::{DeviceFault, FaultAction, FaultEvent, FaultMatch, FaultRule, QueueMatch};
pub use latency::Latency;
pub use options::{Cache, ControllerOptions, NamespaceOptions, OptionalCommands, SignalPolicy};
pub use power::{Fate, UnflushedBlock};
pub use registers::EmulatedRegisters;
pub use spec::{EmulatorSpec, MediaSpec};
