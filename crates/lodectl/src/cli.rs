//! The arguments.

mod volume;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use lode_vfio::PciAddress;

use crate::output::Format;
use crate::size::Size;

pub(crate) use volume::{
    ExportArguments, ImportArguments, Level, LimitOptions, ReadArguments, VolumeCommand,
    VolumeOptions, WriteArguments,
};

/// Manages a Lodestore server: pools, volumes, images, measurements.
///
/// Sizes are whole numbers with an optional unit: K, M, G, T, P and KiB ... PiB are powers of
/// 1024; KB ... PB are powers of 1000.
///
/// Exit codes: 0 done, 1 failed, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "lodectl", version, max_term_width = 100)]
pub(crate) struct Cli {
    /// The server: http://HOST:PORT or unix:PATH
    #[arg(
        long,
        global = true,
        env = "LODESTORE_ADDRESS",
        default_value = "http://127.0.0.1:7070"
    )]
    pub(crate) address: String,
    /// How results are written
    #[arg(long, global = true, value_enum, default_value_t)]
    pub(crate) output: Format,
    /// The same as --output json
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what the server is and what it accepts
    Info,
    /// Pools: what volumes take their space from
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Volumes and their data
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Say what this machine lacks for a real controller, and the command that mends it
    ///
    /// Needs no server and no privilege. Exit code 1 when something is missing.
    Doctor(DoctorArguments),
    /// Controllers of this machine: see them, hand them to the daemon, give them back
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Serve an emulated NVMe controller to another program, over a vfio-user socket
    ///
    /// Whatever drives NVMe over vfio-user can use it: `lodestored` as vfio-user:PATH, a virtual
    /// machine, another driver that is to be measured. One client at a time. Needs no server and
    /// ends with SIGTERM or Ctrl-C.
    Emulate(EmulateArguments),
    /// Watch cores, volumes and routes of completions at work
    Top(TopArguments),
    /// Measure a volume: rate and latency of one kind of request
    Bench(BenchArguments),
    /// Write a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// What the doctor looks at.
#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// The controllers in question (0000:01:00.0); all when none is named
    pub(crate) controllers: Vec<PciAddress>,
    /// How much memory the daemon locks for each controller
    #[arg(long, value_name = "SIZE", default_value = "128MiB")]
    pub(crate) memory: Size,
}

/// A controller to be served.
#[derive(Debug, Args)]
pub(crate) struct EmulateArguments {
    /// What it keeps its blocks in: file:PATH or memory:SIZE, with the options of a device
    pub(crate) device: String,
    /// The socket to serve it at
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: PathBuf,
    /// How doorbells come
    #[arg(long, value_enum, default_value_t)]
    pub(crate) doorbells: DoorbellChoice,
}

/// How doorbells come from the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DoorbellChoice {
    /// In shared memory, which is polled: fast; idle it wakes sixty times a second
    #[default]
    Mapped,
    /// As messages: slower; idle it sleeps
    Messages,
}

/// What to do with the controllers of this machine. Needs no server.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum DeviceCommand {
    /// List the NVMe controllers with their drivers and what they are used for
    ///
    /// Those on this machine's PCI buses. One that another process serves is no part of the
    /// machine: it is named by its socket, vfio-user:/PATH.
    List,
    /// Take a controller from the kernel's driver, for the daemon to use (needs root)
    Bind {
        /// The controller: 0000:01:00.0
        controller: PciAddress,
        /// Also when it is mounted or holds data, which may be lost
        #[arg(long)]
        even_in_use: bool,
    },
    /// Give a controller back to the kernel's driver (needs root)
    Unbind {
        /// The controller: 0000:01:00.0
        controller: PciAddress,
    },
}

/// How to watch.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct TopArguments {
    /// How long to gather for each view: 100ms to 1min
    #[arg(long, value_parser = humantime::parse_duration, default_value = "1s")]
    pub(crate) interval: Duration,
    /// Show one interval and end
    #[arg(long)]
    pub(crate) once: bool,
}

/// What to do with pools.
#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// List all pools
    List,
    /// Show one pool with its space and devices
    Status {
        /// The pool; not needed when there is only one
        name: Option<String>,
    },
    /// Make a pool on devices, destroying what they hold
    Create {
        /// The new pool's name
        name: String,
        /// The devices: file:PATH, memory:SIZE, vfio:ADDRESS, vfio-user:/PATH
        #[arg(required = true)]
        devices: Vec<String>,
        /// Also when a device holds a pool already
        #[arg(long)]
        overwrite: bool,
    },
    /// Take the pool that devices hold into use
    Import {
        /// All devices of the pool, in any order
        #[arg(required = true)]
        devices: Vec<String>,
    },
    /// Write back a pool and let go of its devices
    Export {
        /// The pool
        name: String,
    },
}

/// A measurement.
#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    /// The volume; writes destroy its data
    #[arg(long)]
    pub(crate) volume: String,
    /// Its pool; not needed when there is only one
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) pool: String,
    /// The kind of request
    #[arg(long, value_enum, default_value_t = Pattern::RandomRead)]
    pub(crate) rw: Pattern,
    /// The length of each request
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    pub(crate) block_size: Size,
    /// How many requests are in flight
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) depth: u32,
    /// How long to measure: 10s, 2min, ...
    #[arg(long, value_parser = humantime::parse_duration, default_value = "10s")]
    pub(crate) runtime: Duration,
    /// How many requests to measure at most
    #[arg(long)]
    pub(crate) ops: Option<u64>,
    /// The durability of each write
    #[arg(long, value_enum, default_value_t)]
    pub(crate) durability: Level,
    /// Keep the processor busy while waiting: lower latency
    #[arg(long)]
    pub(crate) busy_poll: bool,
    /// Where the sequence of random offsets starts
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pattern {
    /// Read in ascending order
    Read,
    /// Write in ascending order
    Write,
    /// Read at random offsets
    #[value(name = "randread")]
    RandomRead,
    /// Write at random offsets
    #[value(name = "randwrite")]
    RandomWrite,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_of_the_arguments_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn keeping_a_volume_makes_sense_only_when_it_is_created() {
        let line = "lodectl volume import image disk --keep";
        assert!(Cli::try_parse_from(line.split(' ')).is_err());
        let line = "lodectl volume import image disk --create --keep";
        assert!(Cli::try_parse_from(line.split(' ')).is_ok());
    }
}
