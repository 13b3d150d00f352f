//! The progress bar of long transfers.

use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::output::Output;

/// How often a bar that does not move is redrawn.
const TICK: Duration = Duration::from_millis(250);

/// A bar over `length_bytes` on standard error; hidden unless a person is looking.
pub(crate) fn bar(output: &Output, length_bytes: u64, verb: &'static str) -> Result<ProgressBar> {
    if !output.shows_progress() {
        return Ok(ProgressBar::hidden());
    }
    let style = ProgressStyle::with_template(
        "{prefix} [{bar:30}] {percent:>3}% {binary_bytes}/{binary_total_bytes} \
         {binary_bytes_per_sec} {eta}",
    )?;
    let bar = ProgressBar::new(length_bytes)
        .with_style(style.progress_chars("=> "))
        .with_prefix(verb);
    bar.enable_steady_tick(TICK);
    Ok(bar)
}
