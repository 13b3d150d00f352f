//! Hosts one shard per core: a pinned thread with a runtime of its own, the poller as one adaptive
//! task on it, a mailbox for other threads, and the gateway through which the tasks of the core
//! reach the shard.
//!
//! Owns: [`Core`] and [`CoreHandle`]; [`Hosted`], what a core polls; [`gateway`]; [`Signal`], the
//! way to wake a sleeping core; [`CorePort`], the line between two cores; [`CoreStats`];
//! [`Connection`] and [`accept`], which hand sockets to cores.
//!
//! Invariants:
//! 1. A completion that is published while the core goes to sleep is found by the poll after
//!    arming or ends the sleep: no wake-up is lost (see [`Signal`]).
//! 2. While something is in flight an adaptive core polls; otherwise it sleeps after its idle
//!    budget and polls no more until it is woken.
//! 3. A core that ends tells how on every path; the panic of one of its tasks ends that task, the
//!    panic of its host ends the core.
//! 4. A letter that was sent and announced is found by the peer's next poll, asleep or not.
//! 5. Poller and gateway allocate nothing per request and take no lock.

mod connection;
mod core;
mod exit;
pub mod gateway;
mod handle;
mod hosted;
mod mailbox;
mod options;
mod poller;
mod port;
mod signal;
mod stats;

pub use crate::core::{BuildError, Built, Core, CoreContext, SpawnError};
pub use connection::{Connection, Listener, accept};
pub use exit::CoreExit;
pub use handle::{CallError, CoreHandle};
pub use hosted::Hosted;
pub use mailbox::MAILBOX_JOBS_MAX;
pub use options::{CoreOptions, PollMode};
pub use port::{CorePort, PORT_LETTERS_MAX};
pub use signal::Signal;
pub use stats::CoreStats;
