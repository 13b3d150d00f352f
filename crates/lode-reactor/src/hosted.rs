//! What a core hosts: an engine shard, as its poller sees it.

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
    /// complete.
    fn in_flight(&self) -> usize;

    /// Whether something is under way whose end only a poll finds: meanwhile the core does not
    /// sleep. What wakes an armed core when it completes does not count.
    fn needs_polling(&self) -> bool {
        self.in_flight() > 0
    }

    /// The next moment at which [`Hosted::poll`] has something to do although nothing completes.
    fn next_deadline(&self) -> Option<Instant>;

    /// The core is about to sleep, and [`Hosted::arm`] is next: devices that put off signals until
    /// they have heard of the completions that were found are told of all of them, now and from
    /// now on with each poll.
    fn acknowledge(&mut self) {}

    /// The core is about to sleep: from now on a completion signals [`CoreContext::signal`], by
    /// an interrupt that is routed there or by [`Signal::notify`]. One poll follows.
    ///
    /// [`CoreContext::signal`]: crate::CoreContext::signal
    /// [`Signal::notify`]: crate::Signal::notify
    fn arm(&mut self);

    /// The core is awake and polls: signals are of no use to it.
    fn disarm(&mut self);
}
