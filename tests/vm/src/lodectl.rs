//! The daemon's command line, as a person would use it.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};

use crate::service::Daemon;

/// Runs `lodectl` to its good end; what it printed.
pub(crate) fn lodectl(line: &[&str]) -> Result<String> {
    let output = succeeded(line, attempt(line, &[])?)?;
    Ok(String::from_utf8_lossy(&output).into_owned())
}

/// What a command printed that must have ended well.
pub(crate) fn succeeded(line: &[&str], output: Output) -> Result<Vec<u8>> {
    ensure!(
        output.status.success(),
        "lodectl {}: {}{}",
        line.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output.stdout)
}

/// Runs `lodectl` with `input`, to whatever end.
pub(crate) fn attempt(line: &[&str], input: &[u8]) -> Result<Output> {
    let mut child = Command::new("/bin/lodectl")
        .args(["--address", Daemon::ADDRESS])
        .args(line)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting lodectl")?;
    let mut stdin = child.stdin.take().context("its input")?;
    stdin.write_all(input)?;
    drop(stdin);
    Ok(child.wait_with_output()?)
}
