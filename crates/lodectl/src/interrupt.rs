//! Ctrl-C and SIGTERM as an error, so that what was begun is undone.

use std::future::Future;

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Watches for signals that ask to stop, from its making on: one that came before the work is
/// not lost.
#[derive(Debug)]
pub(crate) struct Interrupt {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupt {
    pub(crate) fn watch() -> Result<Self> {
        let watch = |kind| signal(kind).context("cannot watch signals");
        Ok(Self {
            interrupt: watch(SignalKind::interrupt())?,
            terminate: watch(SignalKind::terminate())?,
        })
    }

    /// Runs `work` until it ends or a signal asks to stop.
    pub(crate) async fn or<T>(mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            outcome = work => outcome,
            _ = self.interrupt.recv() => bail!("interrupted"),
            _ = self.terminate.recv() => bail!("terminated"),
        }
    }

    /// Waits until a signal asks to stop.
    pub(crate) async fn arrived(mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
