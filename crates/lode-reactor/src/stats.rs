//! What a core counts about itself.

use lode_stats::{Counter, Gauge, Histogram};

/// A core's account. The core writes, the scrape reads.
///
/// Busy, idle and asleep time add up to the time since the poller began, except for the turn
/// under way.
#[derive(Debug, Default)]
pub struct CoreStats {
    /// Turns of the poller.
    pub polls: Counter,
    /// Turns that found or submitted something.
    pub polls_useful: Counter,
    /// What the turns found.
    pub found: Counter,
    /// Requests handed to the host.
    pub submitted: Counter,
    /// Time in turns that were useful, the tasks run before the next turn included.
    pub busy_nanoseconds: Counter,
    /// Time in turns that were not.
    pub idle_nanoseconds: Counter,
    /// Time in which the poller slept.
    pub asleep_nanoseconds: Counter,
    /// How often it slept.
    pub sleeps: Counter,
    /// How often the second poll, after arming, found something and the sleep was called off.
    pub sleeps_averted: Counter,
    /// Sleeps ended by a task of this core, which brought a request or changed the host.
    pub wakes_by_task: Counter,
    /// Sleeps ended by the core's signal: an interrupt or another thread.
    pub wakes_by_signal: Counter,
    /// Sleeps ended by a deadline of the host.
    pub wakes_by_deadline: Counter,
    /// Wake-ups by the core's signal after which the first turn found nothing to do.
    pub wakes_spurious: Counter,
    /// From a wake-up by a task, or the deadline slept for, to the next turn. When an interrupt
    /// fired is known to the device alone: those wake-ups are counted, not timed.
    pub wake_latency: Histogram,
    /// Jobs run from the mailbox.
    pub mailbox_jobs: Counter,
    /// Requests at the gateway: waiting for the host or in it.
    pub requests: Gauge,
    /// Of these, how many wait because the host is full.
    pub requests_waiting: Gauge,
    /// Requests refused because the gateway was full.
    pub requests_refused: Counter,
    /// Buffers lent.
    pub buffers_lent: Gauge,
    /// How often a caller had to wait for a buffer.
    pub buffer_waits: Counter,
    /// Tasks that ended in a panic; the core went on.
    pub task_panics: Counter,
}
