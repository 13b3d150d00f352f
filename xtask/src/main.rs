//! The developer's commands, one place for what a person types and what CI runs.
//!
//! Owns: [`Task`], one variant for each command. `check` judges the source without running it,
//! `test` runs every test after installing the tools they need, `tidy` holds the house rules,
//! `bench` runs the benchmarks. Everything runs on the main thread and blocks.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a developer's command talks to the terminal"
)]

mod bench;
mod check;
mod demo;
mod layers;
mod process;
mod sim;
mod test;
mod tidy;
mod tools;
mod vm;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Lodestore's developer commands")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Format, clippy, documentation, house rules and the protocol lint; runs no test.
    Check,
    /// Install what the tests need, then run all of them.
    Test,
    /// The house rules alone.
    Tidy,
    /// Import a real file system, kill the daemon, recover, export, compare.
    Demo,
    /// Drive real VFIO in guests under emulation: everything, or the guests and scenarios named.
    VmTest {
        /// Guests or scenarios to run.
        names: Vec<String>,
        /// Boot this kernel (an ELF image with everything built in) instead of Debian's, and
        /// build with iommufd.
        #[arg(long, value_name = "PATH")]
        kernel: Option<PathBuf>,
    },
    /// Measure the driver in a guest against the kernel's own, and count its instructions.
    VmBench {
        /// One JSON object a line instead of text; what else is to say goes to standard error.
        #[arg(long)]
        json: bool,
    },
    /// Play seeds of the deterministic simulation: a range, or a single one again.
    Sim {
        /// For example 0..1000.
        #[arg(long)]
        seeds: String,
    },
    /// Run the benchmarks (release build), all or those named.
    Bench {
        /// Benchmarks to run; all of them when none is named.
        names: Vec<String>,
        /// One JSON object a line instead of text.
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let workspace = Workspace::load()?;
    match &arguments.task {
        Task::Check => check::run(&workspace),
        Task::Test => test::run(&workspace),
        Task::Tidy => tidy::run(&workspace),
        Task::Demo => demo::run(&workspace),
        Task::VmTest { names, kernel } => vm::run(&workspace, names, kernel.as_deref()),
        Task::VmBench { json } => vm::bench::run(&workspace, *json),
        Task::Sim { seeds } => sim::run(&workspace, seeds),
        Task::Bench { names, json } => bench::run(&workspace, names, *json),
    }
}
