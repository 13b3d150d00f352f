//! Completion in a worker: the route that a direct write took before it could complete inline. Each
//! completion is put on the queue of a thread of the same processor, which ends the request and
//! hands its slot back.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use anyhow::Context;
use lode_engine::DataCompletion;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A worker on one processor.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) submitted: SyncSender<DataCompletion>,
    pub(super) ended: Receiver<anyhow::Result<DataCompletion>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a worker on processor `cpu` with room for `depth` completions.
    pub(super) fn start(cpu: usize, depth: usize) -> anyhow::Result<Self> {
        let (submitted, queue) = sync_channel::<DataCompletion>(depth);
        let (done, ended) = sync_channel(depth);
        let thread = std::thread::Builder::new()
            .name("worker".to_owned())
            .spawn(move || {
                let pinned = pin(cpu);
                for completion in queue {
                    let outcome = match (&pinned, &completion.result) {
                        (Ok(()), Ok(_)) => Ok(completion),
                        (Ok(()), Err(error)) => Err(error.clone().into()),
                        (Err(error), _) => Err(anyhow::anyhow!("{error}")),
                    };
                    if done.send(outcome).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self {
            submitted,
            ended,
            thread: Some(thread),
        })
    }

    /// Ends the worker.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        let thread = self.thread.take().context("it was started")?;
        drop(self.submitted);
        thread
            .join()
            .map_err(|_| anyhow::anyhow!("the worker panicked"))
    }
}

/// Pins the calling thread to one processor.
pub(super) fn pin(cpu: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Runs `action` pinned to the first processor that this thread may use; says which.
pub(super) fn pinned<R>(action: impl FnOnce(usize) -> anyhow::Result<R>) -> anyhow::Result<R> {
    let before = sched_getaffinity(None)?;
    let cpu = processors(&before).next().context("a processor")?;
    pin(cpu)?;
    let outcome = action(cpu);
    sched_setaffinity(None, &before)?;
    outcome
}

/// The processors of a set.
pub(super) fn processors(set: &CpuSet) -> impl Iterator<Item = usize> {
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu))
}
