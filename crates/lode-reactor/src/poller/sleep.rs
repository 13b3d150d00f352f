//! Waiting for whatever ends a sleep: a task of the core, an interrupt, a deadline.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Sleep;

use crate::gateway::Desk;
use crate::signal::Signal;

/// The descriptors and the timer that a sleep waits on; kept between sleeps.
pub(super) struct Sleeper {
    signal: AsyncFd<Arc<Signal>>,
    interrupts: Vec<AsyncFd<RawFd>>,
    timer: Pin<Box<Sleep>>,
}

impl Sleeper {
    pub(super) fn new(signal: Arc<Signal>) -> io::Result<Self> {
        Ok(Self {
            signal: register(signal)?,
            interrupts: Vec::new(),
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
        })
    }

    /// Waits on exactly `fds` from now on. What cannot be registered is logged and left out: its
    /// completions are then found by the next poll, not at once.
    pub(super) fn watch(&mut self, fds: &[RawFd]) {
        self.interrupts
            .retain(|watched| fds.contains(&watched.as_raw_fd()));
        for fd in fds {
            if self.interrupts.iter().any(|known| known.as_raw_fd() == *fd) {
                continue;
            }
            match register(*fd) {
                Ok(watched) => self.interrupts.push(watched),
                Err(error) => tracing::error!(fd, %error, "an interrupt cannot be waited for"),
            }
        }
    }

    /// Sleeps until something happens or `wait` is over; whether it was the latter. A descriptor's
    /// counter is not read: each write to it is an edge that epoll reports.
    pub(super) async fn sleep(&mut self, desk: &Desk, wait: Option<Duration>) -> bool {
        if let Some(deadline) = wait.and_then(|wait| tokio::time::Instant::now().checked_add(wait))
        {
            self.timer.as_mut().reset(deadline);
        }
        let mut is_first = true;
        poll_fn(|context| {
            let is_signalled = self.poll_descriptors(context);
            let is_woken = !std::mem::take(&mut is_first);
            let is_due = wait.is_some() && self.timer.as_mut().poll(context).is_ready();
            if is_due || is_signalled || is_woken {
                return Poll::Ready(is_due && !is_signalled);
            }
            desk.set_poller(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Looks at every descriptor, so that each keeps this task's waker.
    fn poll_descriptors(&self, context: &mut Context<'_>) -> bool {
        let mut is_signalled = is_ready(&self.signal, context);
        for interrupt in &self.interrupts {
            is_signalled |= is_ready(interrupt, context);
        }
        is_signalled
    }
}

#[expect(
    deprecated,
    reason = "the successor is unsafe: it asks that the descriptor stays open. A signal owns its \
              own, and `Hosted::interrupt_fds` demands it of the others; a closed one would be a \
              missed interrupt, not a memory error"
)]
fn register<T: AsRawFd>(descriptor: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}

fn is_ready<T: AsRawFd>(descriptor: &AsyncFd<T>, context: &mut Context<'_>) -> bool {
    match descriptor.poll_read_ready(context) {
        Poll::Ready(Ok(mut guard)) => {
            guard.clear_ready();
            // Registers the waker for the next edge, which a ready result has not done.
            let _registered = descriptor.poll_read_ready(context).is_pending();
            true
        }
        // The runtime is going away; the poller with it.
        Poll::Ready(Err(_)) => true,
        Poll::Pending => false,
    }
}
