//! B0: 4 KiB random overwrites of a volume of 2 GiB that is fully written, queue depth 128, one
//! core.

use anyhow::{Context, ensure};
use lode_block::Durability;
use lode_engine::{Completion, DataOperation, Routing};
use lode_units::{Clock, Instant, MonotonicClock, Random, SeededRandom};

use super::worker::{Worker, pinned};
use super::{context_switches, per, ratio};
use crate::counting::allocations;
use crate::engine::Ground;
use crate::load::{Load, Loop};
use crate::null::NullDevice;
use crate::report::{Report, figure};
use crate::rounds::{Sample, interleave, ratios};

pub(super) fn run(report: &Report, rounds: usize) -> anyhow::Result<()> {
    report.note("B0: 4 KiB random overwrites of 2 GiB fully written, QD 128, one core")?;
    report.note("off: completed by a worker thread of the same processor; on: inline")?;
    pinned(|cpu| {
        let (mut load, index, volume) = Ground {
            span_bytes: SPAN_BYTES,
            ..Ground::default()
        }
        .make(|_| {})?;
        load.shard
            .devices_mut(index)
            .for_each(NullDevice::become_null);
        let plan = Loop {
            volume,
            operation: DataOperation::Write,
            durability: Durability::None,
            block_bytes: 4096,
            span_bytes: SPAN_BYTES,
            depth: DEPTH,
            operations: OPERATIONS,
        };
        let mut bench = Bench {
            load,
            plan,
            worker: Some(Worker::start(cpu, 2 * DEPTH)?),
            counts: [Counts::default(); 2],
        };
        let pairs = interleave(&mut bench, rounds, Bench::by_worker, Bench::inline)?;
        report.line("B0", &ratio(ratios(&pairs)))?;
        for (arm, counts) in ["off", "on"].into_iter().zip(bench.counts) {
            report.line(
                &format!("B0.{arm}"),
                &[
                    figure("switches_per_io", per(counts.switches, counts.operations)),
                    figure(
                        "allocations_per_io",
                        per(counts.allocations, counts.operations),
                    ),
                    figure("inline_share", per(counts.inline, counts.operations)),
                    figure("core_hops_per_io", per(counts.hops, counts.operations)),
                ],
            )?;
        }
        let on = bench.counts[1];
        ensure!(on.inline == on.operations, "the on arm completes inline");
        report.note("off: through this engine's own deferred stage; on: inline")?;
        let pairs = interleave(&mut bench, rounds, Bench::by_stage, Bench::inline)?;
        report.line("B0.stage", &ratio(ratios(&pairs)))?;
        report.note("negative control: inline against inline")?;
        let pairs = interleave(&mut bench, rounds, Bench::inline, Bench::inline)?;
        report.line("B0.control", &ratio(ratios(&pairs)))?;
        bench.worker.take().context("it was started")?.stop()
    })
}

struct Bench<P> {
    load: Load<NullDevice, P>,
    plan: Loop,
    worker: Option<Worker>,
    counts: [Counts; 2],
}

/// What an arm has done in all its rounds.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    operations: u64,
    switches: u64,
    allocations: u64,
    inline: u64,
    hops: u64,
}

impl<P: FnMut(Instant)> Bench<P> {
    fn inline(&mut self) -> anyhow::Result<Sample> {
        self.load.shard.set_routing(Routing::ByRule);
        let before = self.figures()?;
        let sample = self.load.run(&self.plan)?;
        self.account(1, &before, sample.operations)?;
        Ok(sample)
    }

    fn by_stage(&mut self) -> anyhow::Result<Sample> {
        self.load.shard.set_routing(Routing::AllDeferred);
        self.load.run(&self.plan)
    }

    /// The engine completes as ever; what it has completed goes through the worker.
    fn by_worker(&mut self) -> anyhow::Result<Sample> {
        self.load.shard.set_routing(Routing::ByRule);
        let before = self.figures()?;
        let worker = self.worker.take().context("it was started")?;
        let outcome = self.loop_through(&worker);
        self.worker = Some(worker);
        let sample = outcome?;
        self.account(0, &before, sample.operations)?;
        Ok(sample)
    }

    fn loop_through(&mut self, worker: &Worker) -> anyhow::Result<Sample> {
        let (plan, clock) = (self.plan, MonotonicClock::new());
        let mut random = SeededRandom::new(1);
        let blocks = plan.span_bytes / plan.block_bytes;
        let start = clock.now();
        let (mut submitted, mut completed) = (0, 0);
        for _ in 0..plan.depth {
            let buffer = self.load.buffers.take(usize::try_from(plan.block_bytes)?);
            self.load.submit(&plan, random.below(blocks), buffer)?;
            submitted += 1;
        }
        let mut done = Vec::with_capacity(4096);
        while completed < submitted {
            self.load.shard.poll(clock.now(), &mut done);
            let is_idle = done.is_empty();
            for completion in done.drain(..) {
                if let Completion::Data(ended) = completion {
                    worker
                        .submitted
                        .send(ended)
                        .context("the worker is there")?;
                }
            }
            // With nothing in the device there is nothing to poll for: the worker has it all.
            let mut next = match worker.ended.try_recv() {
                Err(_) if is_idle => Some(worker.ended.recv().context("the worker is there")?),
                other => other.ok(),
            };
            while let Some(ended) = next.take() {
                let ended = ended?;
                completed += 1;
                if submitted < plan.operations {
                    self.load
                        .submit(&plan, random.below(blocks), ended.buffer)?;
                    submitted += 1;
                } else if let Some(buffer) = ended.buffer {
                    self.load.buffers.give_back(buffer);
                }
                next = worker.ended.try_recv().ok();
            }
        }
        Ok(Sample {
            operations: submitted,
            elapsed: clock.now().saturating_duration_since(start),
        })
    }

    /// Context switches, allocations, inline completions, requests handed to another core.
    fn figures(&self) -> anyhow::Result<[u64; 4]> {
        let stats = self.load.shard.stats();
        Ok([
            context_switches()?.0,
            allocations(),
            stats.completions_inline.read(),
            stats.hand_offs.iter().map(lode_stats::Counter::read).sum(),
        ])
    }

    fn account(&mut self, arm: usize, before: &[u64; 4], operations: u64) -> anyhow::Result<()> {
        let after = self.figures()?;
        let counts = &mut self.counts[arm];
        counts.operations += operations;
        counts.switches += after[0] - before[0];
        counts.allocations += after[1] - before[1];
        counts.inline += after[2] - before[2];
        counts.hops += after[3] - before[3];
        Ok(())
    }
}

const SPAN_BYTES: u64 = 2 << 30;
const DEPTH: usize = 128;
const OPERATIONS: u64 = 500_000;
