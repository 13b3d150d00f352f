//! gRPC: what Lodestore costs on top of a bare echo that is tuned the same way.
//!
//! Both servers live in this process, each on a thread pinned to the first processor; only one
//! of them works at a time. The client runs on the second processor and is the same for both.
//!
//! Two questions are asked. How many requests a second: both servers poll while they work, as
//! they are meant to, and the clock on the wall tells. How much of a processor each request
//! takes: both servers sleep whenever they have nothing to do, and the time that their threads
//! ran tells; other work on the machine changes that much less.

mod bulk;
mod client;
mod echo;
mod store;
mod thread_time;
mod wire;

use std::time::Duration;

use anyhow::Context;
use lode_api::client::{Client, VolumeName};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};

use crate::report::{Report, figure};
use crate::rounds::{Sample, interleave, ratios, spread};
use client::{Asked, Asking, ask};
use echo::{Echo, Pace};
use store::Store;

/// The echo and Lodestore, and the client's runtime.
struct Arms {
    runtime: LocalRuntime,
    echo: Echo,
    over_echo: Reached,
    over_store: Reached,
    store: Store,
    question: Question,
}

/// A server as the client sees it.
#[derive(Clone, Debug)]
struct Reached {
    address: String,
    client: Client,
}

/// One of the two servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    Echo,
    Store,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Requests for each second of the clock.
    Rate,
    /// Requests for each second that the server's thread runs.
    ProcessorTime,
}

impl Question {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Rate => "grpc",
            Self::ProcessorTime => "grpc-cpu",
        }
    }
}

/// Reads of 4 KiB over the Io stream and by unary calls, then whole ranges as streams.
pub(crate) fn run(report: &Report, rounds: usize, question: Question) -> anyhow::Result<()> {
    let cpus = Cpus::of_this_machine();
    report.note(match question {
        Question::Rate => "gRPC over loopback, server and client on a core each: echo, Lodestore",
        Question::ProcessorTime => "the same for each second that the server's thread runs",
    })?;
    if cpus.client.is_none() {
        report.note("one processor only: server and client share it")?;
    }
    pin_this_thread(cpus.client)?;
    let mut arms = Arms::start(&cpus, question)?;
    for asked in [Asked::Wire, Asked::Session] {
        for depth in [1, 32, 128] {
            compare(report, &mut arms, rounds, asked, depth)?;
        }
    }
    compare(report, &mut arms, rounds, Asked::Unary, 32)?;
    bulk::run(report, &mut arms, rounds)?;
    arms.stop()
}

fn compare(
    report: &Report,
    arms: &mut Arms,
    rounds: usize,
    asked: Asked,
    depth: usize,
) -> anyhow::Result<()> {
    let asking = Asking { asked, depth };
    let pairs = interleave(
        arms,
        rounds,
        |arms| arms.with(Arm::Echo, |server| ask(server, asking)),
        |arms| arms.with(Arm::Store, |server| ask(server, asking)),
    )?;
    let name = match asked {
        Asked::Wire => "io",
        Asked::Session => "session",
        Asked::Unary => "unary",
    };
    let echo = spread(pairs.iter().map(|(echo, _)| echo.rate() / 1e3).collect());
    let store = spread(pairs.iter().map(|(_, store)| store.rate() / 1e3).collect());
    let ratio = ratios(&pairs);
    report.line(
        &format!("{}.{name}.read.qd{depth}", arms.question.prefix()),
        &[
            figure("ratio", ratio.median),
            figure("low", ratio.low),
            figure("high", ratio.high),
            figure("echo_thousand_per_s", echo.median),
            figure("store_thousand_per_s", store.median),
        ],
    )
}

impl Arms {
    fn start(cpus: &Cpus, question: Question) -> anyhow::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())?;
        let pace = match question {
            Question::Rate => Pace::Adaptive,
            Question::ProcessorTime => Pace::Sleeping,
        };
        let echo = Echo::start(cpus.server, pace)?;
        let store = Store::start(cpus.server, question)?;
        let (over_echo, over_store) = runtime.block_on(async {
            let over_echo = Reached::connect(format!("http://{}", echo.address())).await?;
            let over_store = Reached::connect(store.serve().await?).await?;
            bulk::prepare(&over_store.client).await?;
            anyhow::Ok((over_echo, over_store))
        })?;
        Ok(Self {
            runtime,
            echo,
            over_echo,
            over_store,
            store,
            question,
        })
    }

    /// Runs `measured` against `arm` as a task of the client's thread.
    fn with<F: Future<Output = anyhow::Result<Sample>> + 'static>(
        &self,
        arm: Arm,
        measured: impl FnOnce(Reached) -> F,
    ) -> anyhow::Result<Sample> {
        let (server, thread) = match arm {
            Arm::Echo => (&self.over_echo, self.echo.thread_id()),
            Arm::Store => (&self.over_store, self.store.thread_id()),
        };
        let measured = measured(server.clone());
        let before = thread_time::of(thread)?;
        let sample = self.runtime.block_on(async {
            // The root future of a runtime pays for each of its wake-ups; a task does not.
            tokio::task::spawn_local(measured).await
        });
        let ran = thread_time::of(thread)?.saturating_sub(before);
        let sample = sample.context("the client's task")??;
        Ok(match self.question {
            Question::Rate => sample,
            Question::ProcessorTime => Sample {
                elapsed: ran,
                ..sample
            },
        })
    }

    fn stop(self) -> anyhow::Result<()> {
        let Self {
            runtime,
            echo,
            store,
            ..
        } = self;
        runtime.block_on(store.stop(GRACE))?;
        drop(runtime);
        echo.stop()
    }
}

impl Reached {
    async fn connect(address: String) -> anyhow::Result<Self> {
        let client = Client::connect(&address).await?;
        Ok(Self { address, client })
    }
}

/// The volume that is read.
fn volume() -> VolumeName {
    VolumeName::new("", "read")
}

/// Where server and client run.
#[derive(Clone, Copy, Debug)]
struct Cpus {
    server: Option<usize>,
    client: Option<usize>,
}

impl Cpus {
    fn of_this_machine() -> Self {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        let is_shared = count < 2;
        Self {
            server: (!is_shared).then_some(0),
            client: (!is_shared).then_some(1),
        }
    }
}

/// Keeps the calling thread on one processor; `None` leaves it free.
fn pin_this_thread(cpu: Option<usize>) -> anyhow::Result<()> {
    if let Some(cpu) = cpu {
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        rustix::thread::sched_setaffinity(None, &set).context("pinning a thread")?;
    }
    Ok(())
}

const GRACE: Duration = Duration::from_secs(5);
/// What is read at random.
const SPAN_BYTES: u64 = 512 << 20;
