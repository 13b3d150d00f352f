//! Running other programs: each is shown before it runs and named when it fails.

use std::io::Write;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Shows and runs `command`, its output going to the terminal. Blocks until it ends.
///
/// # Errors
/// When it cannot be started or does not succeed.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    eprintln!("+ {shown}");
    let status = command
        .status()
        .with_context(|| format!("could not start `{shown}`"))?;
    ensure!(status.success(), "`{shown}` failed: {status}");
    Ok(())
}

/// Runs `command` and returns its standard output. Blocks until it ends.
///
/// # Errors
/// When it cannot be started, does not succeed, or prints something that is not UTF-8.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let shown = shown(command);
    let output = command
        .output()
        .with_context(|| format!("could not start `{shown}`"))?;
    ensure!(
        output.status.success(),
        "`{shown}` failed: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).with_context(|| format!("output of `{shown}`"))
}

/// Runs `command`, whose input and output must be pipes, with `input`, and returns its output,
/// whether it succeeded or not. Blocks until it ends.
///
/// # Errors
/// When it cannot be started or its output not read.
pub(crate) fn feed(command: &mut Command, input: &[u8]) -> Result<Vec<u8>> {
    let mut child = command.spawn()?;
    let mut pipe = child.stdin.take().context("a pipe to write to")?;
    // It may stop reading before the end; what it made of the beginning is what counts.
    let output = std::thread::scope(|scope| {
        scope.spawn(move || pipe.write_all(input).is_ok());
        child.wait_with_output()
    })?;
    Ok(output.stdout)
}

/// Whether `program` can be started and succeeds; its output is dropped.
pub(crate) fn succeeds(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .output()
        .is_ok_and(|output| output.status.success())
}

fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy()];
    words.extend(
        command
            .get_args()
            .map(|argument| argument.to_string_lossy()),
    );
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_program_is_named_with_its_arguments() {
        let error = run(Command::new("false").arg("--why")).expect_err("false never succeeds");
        assert!(error.to_string().contains("`false --why` failed"));
    }

    #[test]
    fn a_missing_program_does_not_succeed() {
        assert!(!succeeds("lodestore-no-such-program", &["--version"]));
        assert!(!succeeds("false", &[]));
        assert!(succeeds("true", &[]));
    }
}
