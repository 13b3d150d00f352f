//! The driver against the emulated controller in memory, and a volume above it: what the volume
//! layer costs, as a ratio.

use std::time::Duration;

use anyhow::{Context, ensure};
use lode_block::{BlockDevice, BufferPool, BufferPoolSpec, Completion, Operation, Request, Tag};
use lode_bus::{Bus, DmaBuffer, DmaMemory, IovaSpace, PagePreference};
use lode_engine::{DataOperation, PoolIndex, Shard, device_spec};
use lode_extent::{ExistingPool, Pool, PoolSpec};
use lode_nvme::{Controller, ControllerOptions, NamespaceQueue, QueueOptions};
use lode_nvme_emu::{EmulatedController, EmulatorSpec};
use lode_units::{Clock, Instant, Lba, MonotonicClock, Random, SeededRandom};

use crate::load::{Load, Loop};
use crate::report::{Report, figure};
use crate::rounds::{Sample, interleave, ratios, spread};

type Queue = NamespaceQueue<EmulatedController>;

/// The bare queue of one controller under a closed loop.
struct Raw {
    queue: Queue,
    controller: Controller<EmulatedController>,
    buffers: BufferPool,
    clock: MonotonicClock,
}

/// Both arms.
struct Arms<P> {
    raw: Raw,
    volume: Load<Queue, P>,
}

/// 4 KiB random reads and writes at queue depths 1 and 32: the queue pair alone, and a thin
/// volume whose blocks are all allocated over another controller of the same kind.
pub(crate) fn run(report: &Report, rounds: usize) -> anyhow::Result<()> {
    report.note(
        "driver over the emulated controller in memory, on one core with it: raw queue, volume",
    )?;
    let space = IovaSpace::new();
    let clock = MonotonicClock::new();
    let raw = raw(&space, clock)?;
    let (mut volume, controller, pool) = pooled(&space, clock)?;
    volume.until_ready(pool)?;
    let handle = volume.full_volume("volume", SPAN_BYTES)?;
    let mut arms = Arms { raw, volume };
    for (name, operation) in [("read", Operation::Read), ("write", Operation::Write)] {
        for depth in [1, 32] {
            let plan = Loop {
                volume: handle,
                operation: match operation {
                    Operation::Read => DataOperation::Read,
                    _ => DataOperation::Write,
                },
                block_bytes: 4096,
                span_bytes: SPAN_BYTES,
                depth,
                operations: OPERATIONS,
            };
            let pairs = interleave(
                &mut arms,
                rounds,
                |arms| arms.raw.run(operation, depth),
                |arms| arms.volume.run(&plan),
            )?;
            let raw = spread(pairs.iter().map(|(raw, _)| raw.rate() / 1e3).collect());
            let above = spread(
                pairs
                    .iter()
                    .map(|(_, volume)| volume.rate() / 1e3)
                    .collect(),
            );
            let ratio = ratios(&pairs);
            report.line(
                &format!("volume.{name}.qd{depth}"),
                &[
                    figure("ratio", ratio.median),
                    figure("low", ratio.low),
                    figure("high", ratio.high),
                    figure("raw_thousand_per_s", raw.median),
                    figure("volume_thousand_per_s", above.median),
                ],
            )?;
        }
    }
    drop(controller);
    Ok(())
}

fn raw(space: &IovaSpace, clock: MonotonicClock) -> anyhow::Result<Raw> {
    let specs = [BufferPoolSpec {
        length_bytes: 4096,
        count: 64,
    }];
    let buffers = BufferPool::new(&specs, space, PagePreference::HugeIfReserved)?;
    let memories: Vec<_> = buffers.memories().cloned().collect();
    let (controller, queue) = bring_up(space, clock, &memories)?;
    let mut raw = Raw {
        queue,
        controller,
        buffers,
        clock,
    };
    raw.fill()?;
    Ok(raw)
}

type Pooled<P> = (Load<Queue, P>, Controller<EmulatedController>, PoolIndex);

fn pooled(
    space: &IovaSpace,
    clock: MonotonicClock,
) -> anyhow::Result<Pooled<impl FnMut(Instant) + use<>>> {
    let mut shard = Shard::new(space, PagePreference::HugeIfReserved)?;
    let specs = [
        BufferPoolSpec {
            length_bytes: 4096,
            count: 64,
        },
        BufferPoolSpec {
            length_bytes: 1 << 20,
            count: 1,
        },
    ];
    let buffers = BufferPool::new(&specs, space, PagePreference::HugeIfReserved)?;
    let memories: Vec<_> = shard
        .memories()
        .chain(buffers.memories())
        .cloned()
        .collect();
    let (controller, queue) = bring_up(space, clock, &memories)?;
    let spec = PoolSpec {
        name: "bench".to_owned(),
        existing: ExistingPool::Refuse,
    };
    let pool = Pool::create(spec, &[device_spec(&queue)], &mut SeededRandom::new(1), 0)?;
    let index = shard.attach("bench", vec![("memory".to_owned(), queue)], pool);
    let bus = controller.bus().clone();
    let load = Load::new(shard, buffers, move |now| {
        bus.advance(now);
    });
    Ok((load, controller, index))
}

fn bring_up(
    space: &IovaSpace,
    clock: MonotonicClock,
    memories: &[DmaMemory],
) -> anyhow::Result<(Controller<EmulatedController>, Queue)> {
    let spec: EmulatorSpec = "memory:1GiB?lba=4096".parse()?;
    let mut controller = Controller::new(
        EmulatedController::open(&spec)?,
        ControllerOptions::default(),
        space,
    )?;
    controller.bring_up(&clock)?;
    for memory in memories {
        controller.map_memory(memory)?;
    }
    let namespace = controller
        .namespaces()
        .first()
        .map(|namespace| namespace.id);
    let namespace = namespace.ok_or_else(|| anyhow::anyhow!("no namespace"))?;
    let queue = controller.open_queue(namespace, QueueOptions::default(), space)?;
    controller.settle(&clock)?;
    Ok((controller, queue))
}

impl Raw {
    /// Writes every block of the span once: memory that was never written reads from one page of
    /// zeros, faster than any data.
    fn fill(&mut self) -> anyhow::Result<()> {
        let buffer = self.buffers.take(4096).context("a buffer")?;
        let mut completions = Vec::with_capacity(128);
        for block in 0..SPAN_BYTES / 4096 {
            self.submit(Operation::Write, block, 0, &buffer)?;
            self.queue.kick();
            while self.queue.in_flight() > 0 {
                let now = self.clock.now();
                self.controller.bus().advance(now);
                self.queue.poll(now, &mut completions);
            }
            completions.drain(..).try_for_each(|done| done.result)?;
        }
        self.buffers.give_back(buffer);
        Ok(())
    }

    fn run(&mut self, operation: Operation, depth: usize) -> anyhow::Result<Sample> {
        let mut random = SeededRandom::new(1);
        let blocks = SPAN_BYTES / 4096;
        let held: Vec<DmaBuffer> = (0..depth).map_while(|_| self.buffers.take(4096)).collect();
        ensure!(held.len() == depth, "a buffer for each request in flight");
        let mut completions: Vec<Completion> = Vec::with_capacity(128);
        let start = self.clock.now();
        let (mut submitted, mut completed) = (0, 0);
        for (index, buffer) in held.iter().enumerate() {
            self.submit(operation, random.below(blocks), index, buffer)?;
            submitted += 1;
        }
        while completed < submitted {
            self.queue.kick();
            let now = self.clock.now();
            self.controller.bus().advance(now);
            self.queue.poll(now, &mut completions);
            for done in completions.drain(..) {
                done.result?;
                completed += 1;
                if submitted < OPERATIONS {
                    let index = usize::try_from(done.tag.0)?;
                    self.submit(operation, random.below(blocks), index, &held[index])?;
                    submitted += 1;
                }
            }
        }
        let elapsed: Duration = self.clock.now().saturating_duration_since(start);
        held.into_iter()
            .for_each(|buffer| self.buffers.give_back(buffer));
        Ok(Sample {
            operations: submitted,
            elapsed,
        })
    }

    fn submit(
        &mut self,
        operation: Operation,
        block: u64,
        index: usize,
        buffer: &DmaBuffer,
    ) -> anyhow::Result<()> {
        let request = Request {
            tag: Tag(index as u64),
            operation,
            lba: Lba::new(block),
            block_count: 1,
            data: buffer.span(),
        };
        self.queue
            .submit(request)
            .map_err(|rejected| anyhow::anyhow!("{:?}", rejected.reason))
    }
}

const SPAN_BYTES: u64 = 512 << 20;
const OPERATIONS: u64 = 400_000;
