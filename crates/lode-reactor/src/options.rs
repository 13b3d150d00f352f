//! How a core is set up.

use std::time::Duration;

use lode_units::{CoreId, MonotonicClock};

/// When a core stops polling and sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PollMode {
    /// Never: one processor is fully used.
    Always,
    /// When nothing was found and nothing came in for the idle budget, also with commands in
    /// flight if their completion wakes the core: a slow device is not waited for by polling.
    #[default]
    Adaptive,
    /// As soon as a poll finds nothing: least processor time, a wake-up for each batch of
    /// completions.
    Interrupt,
}

/// How a core is set up.
#[derive(Clone, Copy, Debug)]
pub struct CoreOptions {
    /// Which core of the daemon it is.
    pub core: CoreId,
    /// The operating system's processor that the thread is pinned to; `None` leaves it free.
    pub cpu: Option<usize>,
    /// When it sleeps.
    pub poll: PollMode,
    /// How long it polls on after the last request or completion. It must exceed a client's turn
    /// from an answer to its next request, or every batch pays a wake-up. A core whose sleeps
    /// turn out too short to pay polls longer, up to 1 ms.
    pub idle_budget: Duration,
    /// How many tasks the runtime runs before it looks at sockets again.
    pub event_interval: u32,
    /// The clock, shared by all cores of the daemon.
    pub clock: MonotonicClock,
}

impl CoreOptions {
    /// The defaults for core `core`: not pinned, adaptive.
    #[must_use]
    pub fn new(core: CoreId, clock: MonotonicClock) -> Self {
        Self {
            core,
            cpu: None,
            poll: PollMode::default(),
            idle_budget: Duration::from_micros(200),
            event_interval: 31,
            clock,
        }
    }
}
