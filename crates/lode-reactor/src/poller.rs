//! The one task of a core that polls what the core hosts.
//!
//! ```text
//!           ┌──────── found something, or in flight, or within the idle budget ───┐
//!           ▼                                                                     │
//!        turn: feed the host, poll it, deliver ── nothing for the idle budget ──► arm, turn
//!           ▲                                                                     │ nothing
//!           └── disarm ◄── waker │ interrupt │ deadline ◄── pending in epoll ◄────┘
//! ```
//! `yield_now` between two turns is deferred by the runtime until it has looked at its sockets,
//! so that they are polled as busily as the device.

mod account;
mod sleep;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lode_engine::Completion;
use lode_units::{Clock, Instant};

use crate::gateway::Desk;
use crate::hosted::Hosted;
use crate::options::{CoreOptions, PollMode};
use crate::poller::account::Account;
use crate::poller::sleep::Sleeper;
use crate::signal::Signal;
use crate::stats::CoreStats;

/// The host and what its core's tasks share about it.
#[derive(Debug)]
pub(crate) struct Hosting<H> {
    pub(crate) hosted: RefCell<H>,
    pub(crate) desk: Rc<Desk>,
    /// Set by whoever may have changed the host's interrupt descriptors.
    pub(crate) interrupts_changed: std::cell::Cell<bool>,
}

/// The poller's own state.
pub(crate) struct Poller<H> {
    hosting: Rc<Hosting<H>>,
    options: CoreOptions,
    stats: Arc<CoreStats>,
    signal: Arc<Signal>,
    completions: Vec<Completion>,
    last_active: Instant,
    account: Account,
    sleeper: Sleeper,
}

impl<H: Hosted> Poller<H> {
    /// A poller for `hosting`; made inside the core's runtime.
    pub(crate) fn new(
        hosting: Rc<Hosting<H>>,
        options: CoreOptions,
        stats: Arc<CoreStats>,
        signal: Arc<Signal>,
    ) -> io::Result<Self> {
        let now = options.clock.now();
        Ok(Self {
            sleeper: Sleeper::new(Arc::clone(&signal))?,
            completions: Vec::with_capacity(COMPLETIONS_PER_TURN),
            last_active: now,
            account: Account::new(Arc::clone(&stats), now),
            hosting,
            options,
            stats,
            signal,
        })
    }

    /// Polls until the core ends.
    pub(crate) async fn run(mut self) {
        loop {
            let now = self.options.clock.now();
            let is_useful = self.turn(now);
            if is_useful || !self.may_sleep(now) {
                tokio::task::yield_now().await;
            } else {
                self.sleep(now).await;
            }
        }
    }

    /// One turn; whether it did anything.
    fn turn(&mut self, now: Instant) -> bool {
        let desk = &self.hosting.desk;
        let mut hosted = self.hosting.hosted.borrow_mut();
        let fed = desk.feed(&mut *hosted);
        let found = hosted.poll(now, &mut self.completions);
        drop(hosted);
        let is_useful = found + fed + self.completions.len() > 0;
        for completion in self.completions.drain(..) {
            desk.deliver(completion);
        }
        if is_useful {
            self.last_active = now;
        }
        self.stats.found.add(found as u64);
        self.stats.submitted.add(fed as u64);
        self.account.turn(now, is_useful);
        is_useful
    }

    /// Whether there is nothing to poll for.
    fn may_sleep(&self, now: Instant) -> bool {
        match self.options.poll {
            PollMode::Always => false,
            PollMode::Interrupt => true,
            PollMode::Adaptive => {
                self.hosting.hosted.borrow().in_flight() == 0
                    && !self.hosting.desk.has_waiting()
                    && now.saturating_duration_since(self.last_active) >= self.options.idle_budget
            }
        }
    }

    /// Arms, polls once more, and sleeps if that found nothing either.
    async fn sleep(&mut self, now: Instant) {
        if self.hosting.interrupts_changed.take() {
            let fds = self.hosting.hosted.borrow().interrupt_fds();
            self.sleeper.watch(&fds);
        }
        self.hosting.hosted.borrow_mut().arm();
        self.signal.arm();
        if self.turn(now) {
            self.stats.sleeps_averted.increment();
        } else {
            let deadline = self.hosting.hosted.borrow().next_deadline();
            self.sleep_until(deadline).await;
        }
        self.signal.disarm();
        self.hosting.hosted.borrow_mut().disarm();
    }

    async fn sleep_until(&mut self, deadline: Option<Instant>) {
        let clock = self.options.clock;
        let asleep_from = clock.now();
        let wait = deadline.map(|at| at.saturating_duration_since(asleep_from));
        if wait == Some(Duration::ZERO) {
            tokio::task::yield_now().await;
            return;
        }
        self.stats.sleeps.increment();
        let is_deadline = self.sleeper.sleep(&self.hosting.desk, wait).await;
        let now = clock.now();
        let woken_at = self.hosting.desk.clear_poller();
        let due = if is_deadline { deadline } else { woken_at };
        if let Some(due) = due {
            let latency = now.saturating_duration_since(due);
            self.stats.wake_latency.record(latency);
        }
        self.account.slept(asleep_from, now);
    }
}

/// How many completions the buffer between host and gateway is made for.
const COMPLETIONS_PER_TURN: usize = 4096;
