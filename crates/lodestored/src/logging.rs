//! What the daemon says: events on standard error, answers on standard output.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;

use crate::config::{Log, LogFormat};

/// Begins to log.
pub(crate) fn start(log: &Log) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&log.filter)
        .map_err(|error| anyhow::anyhow!("log.filter {:?}: {error}", log.filter))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr);
    match log.format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}

/// Answers on standard output.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Says why the daemon ends, with all causes on one line.
pub(crate) fn last_words(error: &anyhow::Error) {
    // When standard error is closed there is nobody to tell.
    let _unheard = writeln!(io::stderr().lock(), "lodestored: {error:#}");
}
