//! The one task of a core that polls what the core hosts.
//!
//! ```text
//!           ┌──── found something, or within the idle budget, or must not sleep ──┐
//!           ▼                                                                     │
//!        turn: feed the host, poll it, deliver ── nothing for the idle budget ──► arm, turn
//!           ▲                                                                     │ nothing
//!           └── disarm ◄─── task │ signal │ deadline ◄──── pending in epoll ◄─────┘
//! ```
//! `yield_now` between two turns is deferred by the runtime until it has looked at its sockets,
//! so that they are polled as busily as the device.

mod account;
mod budget;
mod sleep;
mod steps;

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
use crate::poller::budget::Budget;
use crate::poller::sleep::{Sleeper, WakeReason};
use crate::poller::steps::{FALLING_ASLEEP, Step};
use crate::signal::Signal;
use crate::stats::CoreStats;

/// The host and what its core's tasks share about it.
#[derive(Debug)]
pub(crate) struct Hosting<H> {
    pub(crate) hosted: RefCell<H>,
    pub(crate) desk: Rc<Desk>,
}

/// The poller's own state.
pub(crate) struct Poller<H> {
    hosting: Rc<Hosting<H>>,
    options: CoreOptions,
    stats: Arc<CoreStats>,
    signal: Arc<Signal>,
    completions: Vec<Completion>,
    last_active: Instant,
    budget: Budget,
    account: Account,
    sleeper: Sleeper,
    /// What ended the sleep before the present turn.
    woken_by: Option<WakeReason>,
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
            budget: Budget::new(options.idle_budget),
            account: Account::new(Arc::clone(&stats), now),
            woken_by: None,
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
            if self.woken_by.take() == Some(WakeReason::Signal) && !is_useful {
                self.stats.wakes_spurious.increment();
            }
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
        let is_over = match self.options.poll {
            PollMode::Always => false,
            PollMode::Interrupt => true,
            PollMode::Adaptive => {
                now.saturating_duration_since(self.last_active) >= self.budget.present()
            }
        };
        is_over && !self.hosting.hosted.borrow().needs_polling() && !self.hosting.desk.needs_turns()
    }

    /// Falls asleep, unless the last look finds something; returns when awake again.
    async fn sleep(&mut self, now: Instant) {
        for step in FALLING_ASLEEP {
            match step {
                Step::Forget => self.sleeper.forget(),
                Step::Acknowledge => self.hosting.hosted.borrow_mut().acknowledge(),
                Step::Arm => {
                    self.hosting.hosted.borrow_mut().arm();
                    self.signal.arm();
                }
                Step::Look => {
                    if self.turn(now) {
                        self.stats.sleeps_averted.increment();
                        break;
                    }
                }
                Step::Sleep => {
                    let deadline = self.hosting.hosted.borrow().next_deadline();
                    self.sleep_until(deadline).await;
                }
            }
        }
        self.signal.disarm();
        self.hosting.hosted.borrow_mut().disarm();
    }

    async fn sleep_until(&mut self, deadline: Option<Instant>) {
        let clock = self.options.clock;
        let asleep_from = clock.now();
        let wait = deadline.map(|at| at.saturating_duration_since(asleep_from));
        if wait.is_some_and(|wait| self.is_too_short(wait)) {
            tokio::task::yield_now().await;
            return;
        }
        self.stats.sleeps.increment();
        let reason = self.sleeper.sleep(&self.hosting.desk, wait).await;
        let now = clock.now();
        self.note_wake(reason, deadline, now);
        self.budget
            .slept(now.saturating_duration_since(asleep_from));
        self.account.slept(asleep_from, now);
    }

    /// Whether a wait is not to be slept through: the runtime's timer would make it much longer.
    fn is_too_short(&self, wait: Duration) -> bool {
        match self.options.poll {
            PollMode::Always | PollMode::Adaptive => wait < TIMER_STEP,
            PollMode::Interrupt => wait.is_zero(),
        }
    }

    /// Counts why a sleep has ended, and times it where the moment is known.
    fn note_wake(&mut self, reason: WakeReason, deadline: Option<Instant>, now: Instant) {
        let woken_at = self.hosting.desk.clear_poller();
        let (counter, due) = match reason {
            WakeReason::Task => (&self.stats.wakes_by_task, woken_at),
            WakeReason::Signal => (&self.stats.wakes_by_signal, woken_at),
            WakeReason::Deadline => (&self.stats.wakes_by_deadline, deadline),
        };
        counter.increment();
        if let Some(due) = due {
            let latency = now.saturating_duration_since(due);
            self.stats.wake_latency.record(latency);
        }
        self.woken_by = Some(reason);
    }
}

/// How many completions the buffer between host and gateway is made for.
const COMPLETIONS_PER_TURN: usize = 4096;
/// To what the runtime rounds deadlines up.
const TIMER_STEP: Duration = Duration::from_millis(1);
