//! The driver over a vfio-user socket, with the emulated controller on a thread at its other end,
//! against the same controller called in place: what the second process costs or gives.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, anyhow};
use lode_block::Operation;
use lode_bus::IovaSpace;
use lode_nvme::QueueStats;
use lode_nvme_emu::{EmulatedController, EmulatorSpec, SignalPolicy};
use lode_units::MonotonicClock;
use lode_vfio_user::{DoorbellTransport, Patience, Server, VfioUserBus, VfioUserError};
use rustix::event::{EventfdFlags, eventfd};

use crate::raw::{Raw, RawLoop};
use crate::report::{Report, figure};
use crate::rounds::{interleave, ratios, spread};

/// Both arms.
struct Arms {
    near: Raw<EmulatedController>,
    far: Raw<VfioUserBus>,
}

/// 4 KiB random writes and reads at queue depths 32 and 1, with mapped doorbells and with messages.
pub(crate) fn run(report: &Report, rounds: usize) -> anyhow::Result<()> {
    report.note(
        "driver over a vfio-user socket against the same controller in place (two threads: the \
         far arm needs a second free core)",
    )?;
    for (name, transport) in [
        ("mapped", DoorbellTransport::Mapped),
        ("messages", DoorbellTransport::Messages),
    ] {
        let (served, socket) = Served::start(transport)?;
        let space = IovaSpace::new();
        let clock = MonotonicClock::new();
        let bus = VfioUserBus::attach("bench".to_owned(), socket, Patience::default(), clock)?;
        let mut arms = Arms {
            near: Raw::new(controller()?, &space, clock)?,
            far: Raw::new(bus, &space, clock)?,
        };
        // Writes first: what the reads find then is data for the most part.
        for (kind, operation) in [("write", Operation::Write), ("read", Operation::Read)] {
            for (depth, operations) in [(32, 100_000), (1, 10_000)] {
                let plan = RawLoop {
                    operation,
                    depth,
                    operations,
                };
                let id = format!("vfio_user.{name}.{kind}.qd{depth}");
                measure(report, &id, plan, rounds, &mut arms)?;
            }
        }
        drop(arms);
        served.end()?;
    }
    Ok(())
}

fn measure(
    report: &Report,
    id: &str,
    plan: RawLoop,
    rounds: usize,
    arms: &mut Arms,
) -> anyhow::Result<()> {
    let before = arms.far.stats();
    let pairs = interleave(
        arms,
        rounds,
        |arms| arms.near.run(plan),
        |arms| arms.far.run(plan),
    )?;
    let near = spread(pairs.iter().map(|(near, _)| near.rate() / 1e3).collect());
    let far = spread(pairs.iter().map(|(_, far)| far.rate() / 1e3).collect());
    let ratio = ratios(&pairs);
    report.line(
        id,
        &[
            figure("ratio", ratio.median),
            figure("low", ratio.low),
            figure("high", ratio.high),
            figure("near_thousand_per_s", near.median),
            figure("far_thousand_per_s", far.median),
            figure(
                "far_doorbells_each",
                doorbells_each(before, arms.far.stats()),
            ),
        ],
    )
}

/// Doorbell writes for each request between two looks at a queue.
#[expect(clippy::cast_precision_loss, reason = "a mean: 53 bits are plenty")]
fn doorbells_each(before: QueueStats, after: QueueStats) -> f64 {
    let rung = |stats: QueueStats| stats.submission_doorbells + stats.completion_doorbells;
    let requests = after.submitted - before.submitted;
    (rung(after) - rung(before)) as f64 / requests.max(1) as f64
}

fn controller() -> anyhow::Result<EmulatedController> {
    let mut spec: EmulatorSpec = "memory:1GiB?lba=4096".parse()?;
    spec.controller.signal_policy = SignalPolicy::Always;
    Ok(EmulatedController::open(&spec)?)
}

/// The thread of the far arm's controller.
struct Served {
    stop: OwnedFd,
    thread: std::thread::JoinHandle<Result<(), VfioUserError>>,
}

impl Served {
    fn start(transport: DoorbellTransport) -> anyhow::Result<(Self, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let heard = stop.try_clone()?;
        let controller = controller()?;
        let thread = std::thread::spawn(move || {
            Server::new(controller, transport, MonotonicClock::new())?.serve(theirs, heard.as_fd())
        });
        Ok((Self { stop, thread }, ours))
    }

    fn end(self) -> anyhow::Result<()> {
        rustix::io::write(&self.stop, &1_u64.to_ne_bytes())?;
        let ended = self
            .thread
            .join()
            .map_err(|_panic| anyhow!("the server panicked"))?;
        ended.context("serving")
    }
}
