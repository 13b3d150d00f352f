//! What other threads ask of a core.

use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::hosted::Hosted;
use crate::poller::Hosting;
use crate::stats::CoreStats;

/// How many jobs wait in a core's mailbox at most; who brings more waits or is refused.
pub const MAILBOX_JOBS_MAX: usize = 1024;

/// A task for the core, not `Send` once it is made there.
pub(crate) type LocalTask = Pin<Box<dyn Future<Output = ()>>>;

/// A job.
pub(crate) enum Job<H> {
    /// Run this on the host.
    Call(Box<dyn FnOnce(&mut H) + Send>),
    /// Make this task and run it.
    Spawn(Box<dyn FnOnce() -> LocalTask + Send>),
    /// Stop, with so much time for what is under way.
    Stop(Duration),
}

/// Runs jobs until one says stop, or nobody is left who could bring any. Returns the time left for
/// what is under way.
pub(crate) async fn run<H: Hosted>(
    mut jobs: mpsc::Receiver<Job<H>>,
    hosting: Rc<Hosting<H>>,
    stats: std::sync::Arc<CoreStats>,
) -> Duration {
    while let Some(job) = jobs.recv().await {
        stats.mailbox_jobs.increment();
        match job {
            Job::Call(action) => {
                action(&mut hosting.hosted.borrow_mut());
                hosting.desk.wake_poller();
            }
            Job::Spawn(make) => {
                let task = make();
                tokio::task::spawn_local(watched(task, std::sync::Arc::clone(&stats)));
            }
            Job::Stop(grace) => return grace,
        }
    }
    Duration::ZERO
}

/// Runs `task`, and counts and logs its panic: the runtime keeps the core alive but silent.
async fn watched(task: LocalTask, stats: std::sync::Arc<CoreStats>) {
    if let Err(error) = tokio::task::spawn_local(task).await
        && error.is_panic()
    {
        stats.task_panics.increment();
        let message = crate::exit::panic_message(&*error.into_panic());
        tracing::error!(message, "a task of the core panicked");
    }
}
