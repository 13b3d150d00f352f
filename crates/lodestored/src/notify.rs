//! Tells others that the daemon is ready, alive or stopping: the service manager, and whoever
//! waits for the ready file.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use sd_notify::NotifyState;

/// Where the daemon came to listen.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) grpc: Vec<SocketAddr>,
    pub(crate) http: SocketAddr,
}

/// Writes the ready file, whole or not at all.
pub(crate) fn write_ready_file(path: &Path, bound: &Bound) -> anyhow::Result<()> {
    let text = serde_json::json!({
        "pid": std::process::id(),
        "grpc": bound.grpc,
        "http": bound.http,
    });
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let unfinished = Path::new(&name);
    std::fs::write(unfinished, format!("{text}\n"))
        .and_then(|()| std::fs::rename(unfinished, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Tells the service manager that the daemon serves.
pub(crate) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// Tells the service manager that the daemon is stopping.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Tells the service manager that the daemon is alive.
pub(crate) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// How often the service manager wants to hear that the daemon is alive, if it does.
pub(crate) fn watchdog_interval() -> Option<Duration> {
    let mut limit_us = 0;
    let is_watched = sd_notify::watchdog_enabled(false, &mut limit_us);
    is_watched.then(|| Duration::from_micros(limit_us) / 2)
}

fn tell(states: &[NotifyState<'_>]) {
    // Without a service manager there is nobody to tell.
    let told: io::Result<()> = sd_notify::notify(false, states);
    if let Err(error) = told {
        tracing::debug!(%error, "the service manager was not told");
    }
}
