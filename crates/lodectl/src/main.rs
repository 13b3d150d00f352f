//! `lodectl`: the command line of Lodestore.
//!
//! Parses the arguments, runs one command over the client library on one thread (or on this
//! machine, for those about its controllers), and turns the outcome into an exit code: 0 done, 1
//! failed (one line on standard error), 2 wrong usage. A reader of standard output that goes away
//! ends the command quietly.

mod bench;
mod cli;
mod device;
mod doctor;
mod emulate;
mod export;
mod import;
mod info;
mod interrupt;
mod output;
mod pool;
mod progress;
mod raw;
mod size;
mod top;
mod volume;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser};
use lode_api::client::{Client, ClientError};

use cli::{Cli, Command};
use output::{Format, Output, OutputClosed};

/// How long the program waits for its threads before it ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    lode_api::heap::keep_freed();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return explain(&error),
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<OutputClosed>() => ExitCode::SUCCESS,
        Err(error) => {
            complain(&one_line(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    if let Command::Completions { shell } = cli.command {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "lodectl", &mut script);
        return output::write_all(&script);
    }
    let output = Output::new(if cli.json { Format::Json } else { cli.output });
    match cli.command {
        Command::Doctor(arguments) => return doctor::run(&output, arguments),
        Command::Device(command) => return device::run(&output, command),
        Command::Emulate(arguments) => return emulate::run(&output, &arguments),
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let outcome = runtime.block_on(dispatch(cli, &output));
    // Threads get the time to remove what they have begun; one that is stuck in reading a file
    // does not hold the program up for longer.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    outcome
}

async fn dispatch(cli: Cli, output: &Output) -> Result<()> {
    let client = Client::connect(&cli.address).await?;
    match cli.command {
        Command::Info => info::show(&client, output).await,
        Command::Pool(command) => pool::run(&client, output, command).await,
        Command::Volume(command) => volume::run(&client, output, command).await,
        Command::Top(arguments) => top::run(&client, output, arguments).await,
        Command::Bench(arguments) => bench::run(&client, output, &arguments).await,
        Command::Completions { .. }
        | Command::Doctor(_)
        | Command::Device(_)
        | Command::Emulate(_) => {
            unreachable!("these need no server")
        }
    }
}

/// Shows a usage error, or the help that was asked for.
fn explain(error: &clap::Error) -> ExitCode {
    let code = u8::try_from(error.exit_code()).unwrap_or(2);
    match error.print() {
        Ok(()) => ExitCode::from(code),
        Err(_) => ExitCode::SUCCESS,
    }
}

fn complain(line: &str) {
    // When standard error is gone as well, the exit code is all that is left to say.
    let _unsaid = writeln!(std::io::stderr().lock(), "lodectl: {line}");
}

/// The error and its causes, each said once.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        let text = text.replace('\n', " ");
        if line.contains(&text) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&text);
    }
    if let Some(ClientError::Connect { .. }) = error.downcast_ref() {
        line.push_str(" (UNAVAILABLE)");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_that_says_each_cause_once() {
        let cause = anyhow::anyhow!("disk full").context("cannot write: disk full");
        assert_eq!(
            one_line(&cause.context("export\nfailed")),
            "export failed: cannot write: disk full"
        );
    }
}
