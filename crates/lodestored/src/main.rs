//! `lodestored`: the daemon. Puts the parts together and names what stands behind their seams.
//!
//! A thread for each core polls devices and serves clients; this one opens devices, serves HTTP and
//! listens for signals.

mod any_bus;
mod cli;
mod config;
mod cores;
mod daemon;
mod device_name;
mod drive;
mod logging;
mod manager;
mod node;
mod notify;
mod pools;
mod registry;
mod welcome;

use std::process::ExitCode;

use clap::Parser;

use cli::Cli;

fn main() -> ExitCode {
    lode_api::heap::keep_freed();
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            logging::last_words(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    let config = cli.configuration()?;
    let problems = config.problems();
    if !problems.is_empty() {
        let lines: Vec<_> = problems
            .iter()
            .map(|problem| format!("  {problem}"))
            .collect();
        anyhow::bail!("the configuration cannot be used:\n{}", lines.join("\n"));
    }
    if cli.print_config {
        return logging::print(&config.to_toml()?);
    }
    if cli.check_config {
        return logging::print("the configuration is good\n");
    }
    logging::start(&config.log)?;
    if cli.dev {
        std::fs::create_dir_all(&cli.data_dir)
            .map_err(|error| anyhow::anyhow!("cannot make {}: {error}", cli.data_dir.display()))?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(daemon::run(cli, &config))
}
