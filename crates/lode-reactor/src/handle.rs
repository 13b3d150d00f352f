//! A core as other threads see it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lode_units::CoreId;
use tokio::sync::{mpsc, oneshot, watch};

use crate::exit::CoreExit;
use crate::hosted::Hosted;
use crate::mailbox::{Job, MAILBOX_JOBS_MAX};
use crate::signal::Signal;
use crate::stats::CoreStats;

/// A core as other threads see it. Clones speak to the same core.
#[derive(Debug)]
pub struct CoreHandle<H> {
    pub(crate) core: CoreId,
    pub(crate) jobs: mpsc::Sender<Job<H>>,
    pub(crate) exit: watch::Receiver<Option<CoreExit>>,
    pub(crate) stats: Arc<CoreStats>,
    pub(crate) signal: Arc<Signal>,
    pub(crate) connections: Arc<AtomicUsize>,
}

/// Why a core did not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The core has ended; [`CoreHandle::exited`] says how.
    #[error("core {core} has ended")]
    Gone {
        /// Which.
        core: CoreId,
    },
    /// The core's mailbox is full; try again later.
    #[error("the mailbox of core {core} is full")]
    MailboxFull {
        /// Which.
        core: CoreId,
    },
}

impl<H> Clone for CoreHandle<H> {
    fn clone(&self) -> Self {
        Self {
            core: self.core,
            jobs: self.jobs.clone(),
            exit: self.exit.clone(),
            stats: Arc::clone(&self.stats),
            signal: Arc::clone(&self.signal),
            connections: Arc::clone(&self.connections),
        }
    }
}

impl<H: Hosted> CoreHandle<H> {
    /// Which core it is.
    #[must_use]
    pub const fn core(&self) -> CoreId {
        self.core
    }

    /// The core's account.
    #[must_use]
    pub const fn stats(&self) -> &Arc<CoreStats> {
        &self.stats
    }

    /// The core's doorbell.
    #[must_use]
    pub const fn signal(&self) -> &Arc<Signal> {
        &self.signal
    }

    /// Jobs that wait in the mailbox.
    #[must_use]
    pub fn mailbox_depth(&self) -> usize {
        MAILBOX_JOBS_MAX.saturating_sub(self.jobs.capacity())
    }

    /// Connections that were handed to the core and have not ended.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Runs `action` on the core's host and returns what it returns; waits for room in the
    /// mailbox. `action` must not block.
    ///
    /// # Errors
    /// [`CallError::Gone`] when the core ended before or while `action` ran.
    pub async fn call<R: Send + 'static>(
        &self,
        action: impl FnOnce(&mut H) -> R + Send + 'static,
    ) -> Result<R, CallError> {
        let gone = CallError::Gone { core: self.core };
        let (job, answer) = call_job(action);
        self.jobs.send(job).await.map_err(|_| gone)?;
        answer.await.map_err(|_| gone)
    }

    /// As [`CoreHandle::call`], without waiting for room: the job is in the mailbox when this
    /// returns.
    ///
    /// # Errors
    /// [`CallError::MailboxFull`] and, here or from the future, [`CallError::Gone`].
    pub fn try_call<R: Send + 'static, A: FnOnce(&mut H) -> R + Send + 'static>(
        &self,
        action: A,
    ) -> Result<impl Future<Output = Result<R, CallError>> + Send + use<R, A, H>, CallError> {
        let core = self.core;
        let (job, answer) = call_job(action);
        self.jobs.try_send(job).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => CallError::MailboxFull { core },
            mpsc::error::TrySendError::Closed(_) => CallError::Gone { core },
        })?;
        Ok(async move { answer.await.map_err(|_| CallError::Gone { core }) })
    }

    /// Makes a task on the core and runs it there until it ends or the core does. Waits for room
    /// in the mailbox, not for the task. A panic of the task is logged and counted.
    ///
    /// # Errors
    /// [`CallError::Gone`] when the core has ended.
    pub async fn spawn_local<F: Future<Output = ()> + 'static>(
        &self,
        make: impl FnOnce() -> F + Send + 'static,
    ) -> Result<(), CallError> {
        let job = Job::Spawn(Box::new(move || Box::pin(make())));
        let gone = CallError::Gone { core: self.core };
        self.jobs.send(job).await.map_err(|_| gone)
    }

    /// Stops the core: it takes no more requests, gives those under way `grace` to end, and drops
    /// its tasks and its host. Returns how it ended, also when it had ended before.
    pub async fn shutdown(&self, grace: Duration) -> CoreExit {
        // A closed mailbox means that the core has ended or is ending: its exit tells.
        let _sent = self.jobs.send(Job::Stop(grace)).await;
        self.exited().await
    }

    /// Waits until the core has ended and returns how.
    ///
    /// # Panics
    /// Never: the core's thread tells its exit on every path.
    pub async fn exited(&self) -> CoreExit {
        let mut exit = self.exit.clone();
        let exit = exit.wait_for(Option::is_some).await;
        let exit = exit.expect("the core's thread tells its exit before it ends");
        exit.clone().expect("waited for")
    }
}

fn call_job<H, R: Send + 'static>(
    action: impl FnOnce(&mut H) -> R + Send + 'static,
) -> (Job<H>, oneshot::Receiver<R>) {
    let (sender, answer) = oneshot::channel();
    let job = Job::Call(Box::new(move |hosted| {
        // A caller that has gone away does not want the result.
        let _unwanted = sender.send(action(hosted));
    }));
    (job, answer)
}
