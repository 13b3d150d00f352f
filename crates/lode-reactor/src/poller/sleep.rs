//! Waiting for whatever ends a sleep: a task of the core, its signal, a deadline.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Sleep;

use crate::gateway::Desk;
use crate::signal::Signal;

/// What ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WakeReason {
    /// A task of the core.
    Task,
    /// The core's signal: an interrupt or another thread.
    Signal,
    /// The deadline.
    Deadline,
}

/// The descriptor and the timer that a sleep waits on; kept between sleeps.
pub(super) struct Sleeper {
    signal: AsyncFd<Arc<Signal>>,
    timer: Pin<Box<Sleep>>,
}

impl Sleeper {
    pub(super) fn new(signal: Arc<Signal>) -> io::Result<Self> {
        Ok(Self {
            signal: register(signal)?,
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
        })
    }

    /// Forgets the signals that the runtime has seen so far.
    pub(super) fn forget(&self) {
        let _was_signalled = self.take_signal(&mut Context::from_waker(Waker::noop()));
    }

    /// Sleeps until something happens or `wait` is over; what it was. The signal's counter is not
    /// read: each write to it is an edge that epoll reports.
    pub(super) async fn sleep(&mut self, desk: &Desk, wait: Option<Duration>) -> WakeReason {
        if let Some(deadline) = wait.and_then(|wait| tokio::time::Instant::now().checked_add(wait))
        {
            self.timer.as_mut().reset(deadline);
        }
        let mut is_first = true;
        poll_fn(|context| {
            let is_signalled = self.take_signal(context);
            let is_woken = !std::mem::take(&mut is_first);
            let is_due = wait.is_some() && self.timer.as_mut().poll(context).is_ready();
            if is_signalled {
                return Poll::Ready(WakeReason::Signal);
            }
            if is_due {
                return Poll::Ready(WakeReason::Deadline);
            }
            if is_woken {
                return Poll::Ready(WakeReason::Task);
            }
            desk.set_poller(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Whether the runtime has seen a signal since this was asked last; the task is woken for the
    /// next one.
    fn take_signal(&self, context: &mut Context<'_>) -> bool {
        match self.signal.poll_read_ready(context) {
            Poll::Ready(Ok(mut guard)) => {
                guard.clear_ready();
                // Registers the waker for the next edge, which a ready result has not done.
                let _registered = self.signal.poll_read_ready(context).is_pending();
                true
            }
            // The runtime is going away; the poller with it.
            Poll::Ready(Err(_)) => true,
            Poll::Pending => false,
        }
    }
}

#[expect(
    deprecated,
    reason = "the successor is unsafe: it asks that the descriptor stays open, and the signal owns \
              its own"
)]
fn register(signal: Arc<Signal>) -> io::Result<AsyncFd<Arc<Signal>>> {
    AsyncFd::with_interest(signal, Interest::READABLE)
}
