//! NVMe controllers across a vfio-user socket.
//!
//! Owns: the published protocol ("vfio-user Protocol Specification", version 0.1) over a Unix
//! socket, from both ends: [`VfioUserBus`], another process' controller behind the hardware seam
//! ([`lode_bus::Bus`]); and [`Server`], which offers any bus of this process to another one.
//!
//! Memory is shared, not copied: DMA memory goes to the server as descriptors of sealed memory
//! files, doorbells come to the client as a mapped area where the server offers one, interrupts
//! are eventfds. What is left are messages: every other register, and the set-up.
//!
//! A bus may be used from several threads; one exchange of messages is on its way at a time. A
//! server runs on the thread that calls it.
//!
//! What blocks: attaching, mapping, enabling interrupts and resetting wait for the server; so does
//! each access to a register that is not mapped, for microseconds as a rule, for
//! [`Patience::request`] at most. Mapped doorbells do not.
//!
//! Invariants:
//! 1. Nothing that the other side sends makes this crate panic, allocate without bound, or wait
//!    without a deadline: lengths, counts and offsets are checked before they are used.
//! 2. A peer that is silent for too long, closes its socket or breaks the protocol is gone for
//!    good: registers read all ones, calls fail, nothing is sent to it any more.
//! 3. The client's memory cannot be shortened by the server (it is sealed); memory and doorbells
//!    that the other side takes away read all ones and do not end the process.
//! 4. Descriptors that were received and are not wanted are closed.
//!
//! No IOMMU stands between the two processes: a server can reach all memory that it was given
//! until the process ends, also after this side has let go of it.

mod client;
mod error;
mod server;
mod stream;
mod wire;

pub use client::{Patience, VfioUserBus, VfioUserRegisters};
pub use error::VfioUserError;
pub use server::{DoorbellTransport, ListeningSocket, Server};
pub use wire::Command;
