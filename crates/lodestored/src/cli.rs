//! The command line.

use std::path::PathBuf;

use anyhow::bail;
use clap::Parser;

use crate::config::{Config, Cores, Listen, Poll};

/// The Lodestore storage daemon.
#[derive(Debug, Parser)]
#[command(name = "lodestored", version, about, long_about = None)]
pub(crate) struct Cli {
    /// The configuration file (TOML).
    #[arg(
        long,
        value_name = "FILE",
        env = "LODESTORED_CONFIG",
        conflicts_with = "dev"
    )]
    pub(crate) config: Option<PathBuf>,

    /// Run on an emulated NVMe drive in a file, with a pool "dev": nothing to configure.
    #[arg(long)]
    pub(crate) dev: bool,

    /// Where --dev keeps its drive.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "lodestore-dev",
        requires = "dev"
    )]
    pub(crate) data_dir: PathBuf,

    /// Check the configuration and exit: 0 when it is good.
    #[arg(long)]
    pub(crate) check_config: bool,

    /// Print the configuration with everything filled in, as TOML, and exit.
    #[arg(long)]
    pub(crate) print_config: bool,

    /// Listen for gRPC here instead of on the configured addresses; port 0 lets the system
    /// choose.
    #[arg(long, value_name = "ADDRESS", env = "LODESTORED_GRPC")]
    pub(crate) grpc: Option<Listen>,

    /// Serve /metrics, /healthz and /readyz here instead of on the configured address.
    #[arg(long, value_name = "ADDRESS", env = "LODESTORED_HTTP")]
    pub(crate) http: Option<Listen>,

    /// When the core sleeps, instead of what is configured.
    #[arg(long, value_name = "MODE", env = "LODESTORED_POLL")]
    pub(crate) poll: Option<Poll>,

    /// Run on so many cores, or on these processors, instead of what is configured: 2, or 0,1, or
    /// 4-7 (3-3 for one). Without either there is one core.
    #[arg(long, value_name = "CORES", env = "LODESTORED_CORES")]
    pub(crate) cores: Option<Cores>,

    /// Once everything serves, write the process id and the bound addresses to this file, as
    /// JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) ready_file: Option<PathBuf>,

    /// What to log, instead of what is configured: a level, or target=level,…
    #[arg(long, value_name = "FILTER", env = "LODESTORED_LOG")]
    pub(crate) log: Option<String>,
}

impl Cli {
    /// The configuration that the file, the environment and the flags make together.
    pub(crate) fn configuration(&self) -> anyhow::Result<Config> {
        let mut config = match (&self.config, self.dev) {
            (Some(path), _) => Config::read(path)?,
            (None, true) => Config::dev(&self.data_dir),
            (None, false) => bail!("nothing to run: give --config FILE, or --dev to try it out"),
        };
        if let Some(grpc) = self.grpc {
            config.server.grpc = vec![grpc];
        }
        if let Some(http) = self.http {
            config.server.http = http;
        }
        if let Some(poll) = self.poll {
            config.core.poll = poll;
        }
        if let Some(cores) = &self.cores {
            config.core.cores = cores.clone();
        }
        if let Some(filter) = &self.log {
            config.log.filter.clone_from(filter);
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_stand_above_the_file() {
        let arguments = [
            "lodestored",
            "--dev",
            "--grpc",
            "127.0.0.1:0",
            "--log",
            "debug",
            "--poll",
            "interrupt",
            "--cores",
            "0,1",
        ];
        let config = Cli::parse_from(arguments)
            .configuration()
            .expect("a configuration");
        assert_eq!(config.server.grpc, [Listen::loopback(0)]);
        assert_eq!(config.server.http, Listen::loopback(9464));
        assert_eq!(config.log.filter, "debug");
        assert_eq!(config.core.poll, Poll::Interrupt);
        assert_eq!(config.core.cores, Cores::Processors(vec![0, 1]));
    }

    #[test]
    fn running_needs_a_file_or_dev() {
        assert!(Cli::parse_from(["lodestored"]).configuration().is_err());
        assert!(Cli::try_parse_from(["lodestored", "--dev", "--config", "x"]).is_err());
    }
}
