//! Ctrl-C and SIGTERM as an error, so that what was begun is undone.

use std::future::Future;

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};

/// Runs `work` until it ends or a signal asks to stop.
pub(crate) async fn or_interrupted<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot watch signals")?;
    tokio::select! {
        outcome = work => outcome,
        _ = interrupt.recv() => bail!("interrupted"),
        _ = terminate.recv() => bail!("terminated"),
    }
}
