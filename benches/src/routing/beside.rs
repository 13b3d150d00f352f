//! Overwrites beside a writer that allocates, on one core: the latency of the overwrites when they
//! complete inline, and when they go through the deferred stage with the rest.

use std::time::Duration;

use anyhow::Context;
use lode_block::Durability;
use lode_bus::DmaBuffer;
use lode_engine::{
    Completion, DataCompletion, DataOperation, DataRequest, Routing, Token, VolumeHandle,
};
use lode_units::{Clock, Instant, Random, SeededRandom};

use super::worker::pinned;
use crate::engine::{Ground, SPAN_BYTES};
use crate::load::{Load, Loop, request_of};
use crate::null::NullDevice;
use crate::report::{Report, figure};
use crate::rounds::spread;

pub(super) fn run(report: &Report, rounds: usize) -> anyhow::Result<()> {
    report.note(
        "beside: overwrites at QD 8 beside an allocating writer at QD 32 that asks for durability",
    )?;
    report
        .note("off: all completions deferred; on: by rule; p99 of the overwrites, off over on")?;
    pinned(|_| {
        let pump: fn(Instant) = |_| {};
        let (mut load, _, volume) = Ground::default().make(pump)?;
        let fresh = load.full_volume("fresh", SPAN_BYTES)?;
        let mut bench = Beside {
            load,
            volume,
            fresh,
        };
        let mut ratios = Vec::new();
        let mut last = [0.0; 2];
        for round in 0..=rounds {
            let mut arms = [Routing::AllDeferred, Routing::ByRule];
            if round % 2 == 1 {
                arms.reverse();
            }
            for arm in arms {
                let position = usize::from(arm == Routing::ByRule);
                last[position] = bench.round(arm)?;
            }
            if round > 0 {
                ratios.push(last[0] / last[1]);
            }
        }
        let spread = spread(ratios);
        let mut figures = super::ratio(spread).to_vec();
        figures.push(figure("p99_off_microseconds", last[0]));
        figures.push(figure("p99_on_microseconds", last[1]));
        report.line("beside.p99", &figures)
    })
}

struct Beside {
    load: Load<NullDevice, fn(Instant)>,
    volume: VolumeHandle,
    fresh: VolumeHandle,
}

impl Beside {
    /// One round: the 99th percentile of the overwrites in microseconds.
    fn round(&mut self, routing: Routing) -> anyhow::Result<f64> {
        self.load.shard.set_routing(routing);
        self.empty()?;
        let mut round = Round {
            bench: self,
            random: SeededRandom::new(1),
            started: [Instant::ZERO; OVERWRITES_AT_ONCE],
            latencies: Vec::with_capacity(usize::try_from(OVERWRITES)?),
            next_fresh: 0,
            under_way: 0,
        };
        for slot in 0..OVERWRITES_AT_ONCE {
            let buffer = round.bench.load.buffers.take(4096);
            round.overwrite(slot, buffer)?;
        }
        for _ in 0..ALLOCATIONS_AT_ONCE {
            let buffer = round.bench.load.buffers.take(4096);
            round.allocate(buffer)?;
        }
        let mut done = Vec::with_capacity(4096);
        while round.under_way > 0 {
            let now = round.bench.load.clock.now();
            round.bench.load.shard.poll(now, &mut done);
            for completion in done.drain(..) {
                if let Completion::Data(ended) = completion {
                    round.go_on(ended)?;
                }
            }
        }
        round.latencies.sort_unstable();
        let at = round.latencies.len() * 99 / 100;
        let p99 = round.latencies.get(at).context("some overwrites ended")?;
        Ok(p99.as_secs_f64() * 1e6)
    }

    /// Gives all blocks of the fresh volume back.
    fn empty(&mut self) -> anyhow::Result<()> {
        self.load.run(&Loop {
            operation: DataOperation::Discard,
            block_bytes: SPAN_BYTES,
            ..Self::plan(self.fresh, Durability::Data)
        })?;
        Ok(())
    }

    const fn plan(volume: VolumeHandle, durability: Durability) -> Loop {
        Loop {
            volume,
            operation: DataOperation::Write,
            durability,
            block_bytes: 4096,
            span_bytes: SPAN_BYTES,
            depth: 1,
            operations: 1,
        }
    }
}

/// A round under way.
struct Round<'bench> {
    bench: &'bench mut Beside,
    random: SeededRandom,
    /// When the overwrite in each slot was submitted.
    started: [Instant; OVERWRITES_AT_ONCE],
    latencies: Vec<Duration>,
    next_fresh: u64,
    under_way: usize,
}

impl Round<'_> {
    fn overwrite(&mut self, slot: usize, buffer: Option<DmaBuffer>) -> anyhow::Result<()> {
        self.started[slot] = self.bench.load.clock.now();
        let plan = Beside::plan(self.bench.volume, Durability::None);
        let block = self.random.below(SPAN_BYTES / 4096);
        self.send(&plan, block, slot as u64, buffer)
    }

    fn allocate(&mut self, buffer: Option<DmaBuffer>) -> anyhow::Result<()> {
        let plan = Beside::plan(self.bench.fresh, Durability::Data);
        self.next_fresh += 1;
        self.send(&plan, self.next_fresh - 1, WRITER, buffer)
    }

    fn send(
        &mut self,
        plan: &Loop,
        block: u64,
        token: u64,
        buffer: Option<DmaBuffer>,
    ) -> anyhow::Result<()> {
        let request = DataRequest {
            token: Token(token),
            ..request_of(plan, block, buffer)
        };
        self.under_way += 1;
        let refused = self.bench.load.shard.submit(request);
        refused.map_err(|_| anyhow::anyhow!("no slot is free"))
    }

    /// Accounts for a request that ended, and submits the next of its kind.
    fn go_on(&mut self, ended: DataCompletion) -> anyhow::Result<()> {
        ended.result?;
        self.under_way -= 1;
        let is_over =
            self.latencies.len() as u64 >= OVERWRITES || self.next_fresh >= SPAN_BYTES / 4096;
        let slot = usize::try_from(ended.token.0).ok();
        let slot = slot.filter(|slot| *slot < OVERWRITES_AT_ONCE);
        if let Some(slot) = slot {
            let now = self.bench.load.clock.now();
            let latency = now.saturating_duration_since(self.started[slot]);
            self.latencies.push(latency);
        }
        match (is_over, slot, ended.buffer) {
            (true, _, Some(buffer)) => {
                self.bench.load.buffers.give_back(buffer);
                Ok(())
            }
            (true, _, None) => Ok(()),
            (false, Some(slot), buffer) => self.overwrite(slot, buffer),
            (false, None, buffer) => self.allocate(buffer),
        }
    }
}

/// The token of all allocating writes.
const WRITER: u64 = u64::MAX;
const OVERWRITES_AT_ONCE: usize = 8;
const ALLOCATIONS_AT_ONCE: usize = 32;
const OVERWRITES: u64 = 100_000;
