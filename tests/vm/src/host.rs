//! A scenario's line to the host: standard output and input, which process 1 passes on.
//!
//! One word, then text, a line each. `monitor COMMAND` asks for a command of the machine's
//! monitor and is answered with one line; `figure NAME KEY=VALUE …` is a benchmark's;
//! `done TEXT` ends a scenario well.

use std::io::{BufRead, Write};

use anyhow::{Context, Result, ensure};

/// Runs `command` on the machine's monitor and returns its answer, lines joined by spaces.
/// Blocks until the host has answered.
pub(crate) fn monitor(command: &str) -> Result<String> {
    println!("monitor {command}");
    std::io::stdout().flush()?;
    let mut answer = String::new();
    let length = std::io::stdin().lock().read_line(&mut answer)?;
    ensure!(length > 0, "the host did not answer to {command}");
    let text = answer.strip_prefix("answer").context("an answer")?.trim();
    Ok(text.to_owned())
}

/// [`monitor`] for commands that answer only when something is wrong.
pub(crate) fn monitor_quietly(command: &str) -> Result<()> {
    let answer = monitor(command)?;
    ensure!(answer.is_empty(), "{command}: {answer}");
    Ok(())
}

/// Tells the host a figure: its name, then `key=value` pairs.
pub(crate) fn figure(text: &str) {
    println!("figure {text}");
}

/// Ends the scenario well.
pub(crate) fn finish(finding: &str) {
    println!("done {finding}");
}
