//! What a core hosts: an engine shard, as its poller sees it.

use std::os::fd::RawFd;

use lode_engine::{Completion, ControlRequest, DataRequest, Token};
use lode_units::Instant;

/// A state machine that a core polls: the engine's shard, or a stand-in for it.
///
/// Every call comes from the core's own thread and must not block. A request that was taken is
/// completed exactly once by [`Hosted::poll`].
pub trait Hosted: 'static {
    /// Takes a data request.
    ///
    /// # Errors
    /// Gives the request back when every slot is in use; it is offered again later.
    fn submit(&mut self, request: DataRequest) -> Result<(), DataRequest>;

    /// Takes a control request.
    ///
    /// # Errors
    /// Gives the request back when every slot is in use; it is offered again later.
    fn control(&mut self, token: Token, request: ControlRequest) -> Result<(), ControlRequest>;

    /// Advances everything that can go on by `now` and appends what has completed. Returns how
    /// much was found to do, completions or not: while it is above 0 the core does not sleep.
    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) -> usize;

    /// Requests taken and not yet completed, and commands of the host's own that a poll would
    /// complete. While it is above 0 the core keeps polling.
    fn in_flight(&self) -> usize;

    /// The next moment at which [`Hosted::poll`] has something to do although nothing completes.
    fn next_deadline(&self) -> Option<Instant>;

    /// Lets interrupts through: from now on a completion signals a descriptor of
    /// [`Hosted::interrupt_fds`] or the core's own signal.
    fn arm(&mut self);

    /// Masks interrupts again.
    fn disarm(&mut self);

    /// The descriptors that become readable when an armed interrupt fires. Asked at the start and
    /// after every call through the mailbox. A descriptor stays open until a list without it has
    /// been returned, or the host is dropped.
    fn interrupt_fds(&self) -> Vec<RawFd>;
}
