//! What the tasks of a core use to reach the shard that the core hosts.
//!
//! Every function works on the gateway of the calling thread, so that futures made here are
//! `Send`, as generated services demand, although they run on one core only: they hold indices
//! and DMA buffers. Used on a thread that is no core, or continued on another core, they panic.
//!
//! Owns: [`submit`] and [`control`], one request each; [`Session`], the many requests of a stream;
//! [`take_buffer`] and the [`PooledBuffer`] it gives.
//!
//! Invariants:
//! 1. A buffer goes back to the pool of its core on every path, also when the future that waited
//!    for it is dropped: then when its request ends, because a device may still write into it.
//! 2. Nothing is allocated per request: slots, queues and waits are as long from the start as
//!    they may become, and whoever exceeds them is refused.
//! 3. A caller that does not fetch its answers keeps no buffer from those who wait for one.
//! 4. No waker is woken and no buffer dropped while the gateway's state is borrowed.

mod buffer;
mod buffers;
mod desk;
mod error;
mod request;
mod session;
mod settled;
mod slots;

pub use buffer::{PooledBuffer, TakeBuffer, take_buffer};
pub(crate) use desk::Desk;
pub use desk::{BUFFER_WAITS_MAX, REQUESTS_MAX, SESSIONS_MAX};
pub use error::{BufferError, RefuseReason};
pub use request::{ControlFuture, IoAnswer, IoFuture, IoRequest, Refused, control, submit};
pub use session::Session;

use lode_units::CoreId;

/// The core that the calling thread is, if it is one.
#[must_use]
pub fn core() -> Option<CoreId> {
    Desk::here().map(|desk| desk.core())
}

/// Whether the core of the calling thread is stopping; `true` on a thread that is no core.
#[must_use]
pub fn is_stopping() -> bool {
    Desk::here().is_none_or(|desk| desk.is_stopping())
}
