//! Benchmarks: every line is a figure of this run on this machine. Ratios are of arms that ran
//! interleaved; absolute times are for orientation.

#![expect(unsafe_code, reason = "the counting allocator, see counting.rs")]

mod apart;
mod counting;
mod driver;
mod engine;
mod grpc;
mod instructions;
mod load;
mod null;
mod raw;
mod report;
mod rounds;
mod routing;
mod vfio_user;

use clap::{Parser, ValueEnum};

use counting::Counting;
use grpc::Question;
use instructions::Counted;
use report::{Form, Report};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs benchmarks and prints a line for each figure.
#[derive(Debug, Parser)]
struct Cli {
    /// Which; all of them when none is named.
    benches: Vec<Bench>,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
    /// Rounds of each measurement; the median is reported.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Runs one loop and nothing else: what `instructions` counts.
    #[arg(long, hide = true, value_name = "SUBJECT:OPERATION:DEPTH:OPERATIONS")]
    counted: Option<Counted>,
}

/// The benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Bench {
    /// The engine over a null device.
    Engine,
    /// The driver against the emulated controller, and a volume above it.
    Driver,
    /// What the inline route is worth, and what a second core adds.
    Routing,
    /// The driver over a vfio-user socket against the same in one process.
    VfioUser,
    /// Instructions of the driver and of the engine for each request, counted by valgrind.
    Instructions,
    /// The server against a bare gRPC echo that is tuned the same way.
    Grpc,
    /// The same for each second that the server's thread runs: less disturbed by other work.
    GrpcCpu,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    // As the programs do.
    lode_api::heap::keep_freed();
    if let Some(counted) = cli.counted {
        return counted.run();
    }
    let report = Report::new(if cli.json { Form::Json } else { Form::Text });
    let all = Bench::value_variants();
    let chosen = if cli.benches.is_empty() {
        all
    } else {
        &cli.benches
    };
    for bench in chosen {
        match bench {
            Bench::Engine => engine::run(&report, cli.rounds.max(1))?,
            Bench::Driver => driver::run(&report, cli.rounds.max(1))?,
            Bench::Routing => routing::run(&report, cli.rounds.max(1))?,
            Bench::VfioUser => vfio_user::run(&report, cli.rounds.max(1))?,
            Bench::Instructions => instructions::run(&report)?,
            Bench::Grpc => grpc::run(&report, cli.rounds.max(1), Question::Rate)?,
            Bench::GrpcCpu => {
                grpc::run(&report, cli.rounds.max(1), Question::ProcessorTime)?;
            }
        }
    }
    Ok(())
}
