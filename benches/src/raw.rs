//! A bare queue pair over the emulated controller in memory, under a closed loop.

use std::time::Duration;

use anyhow::{Context, ensure};
use lode_block::{BlockDevice, BufferPool, BufferPoolSpec, Completion, Operation, Request, Tag};
use lode_bus::{Bus, DmaBuffer, DmaMemory, IovaSpace, PagePreference};
use lode_nvme::{Controller, ControllerOptions, NamespaceQueue, QueueOptions, QueueStats};
use lode_nvme_emu::EmulatedController;
use lode_units::{Clock, Lba, MonotonicClock, Random, SeededRandom};

use crate::rounds::Sample;

/// A queue pair, its controller, and buffers for what is in flight.
pub(crate) struct Raw<B: Bus> {
    queue: NamespaceQueue<B>,
    controller: Controller<B>,
    buffers: BufferPool,
    clock: MonotonicClock,
}

/// One closed loop of 4 KiB requests at random places of the span.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawLoop {
    pub(crate) operation: Operation,
    pub(crate) depth: usize,
    pub(crate) operations: u64,
}

/// The emulated controller that raw queues are measured over.
pub(crate) fn controller_in_memory() -> anyhow::Result<EmulatedController> {
    Ok(EmulatedController::open(&"memory:1GiB?lba=4096".parse()?)?)
}

/// Brings the controller behind `bus` up, with `memories` in its reach, and opens a queue pair.
pub(crate) fn bring_up<B: Bus>(
    bus: B,
    space: &IovaSpace,
    clock: MonotonicClock,
    memories: &[DmaMemory],
) -> anyhow::Result<(Controller<B>, NamespaceQueue<B>)> {
    let mut controller = Controller::new(bus, ControllerOptions::default(), space)?;
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

impl<B: Bus> Raw<B> {
    /// A queue pair of the controller behind `bus`.
    pub(crate) fn new(bus: B, space: &IovaSpace, clock: MonotonicClock) -> anyhow::Result<Self> {
        let specs = [BufferPoolSpec {
            length_bytes: 4096,
            count: 64,
        }];
        let buffers = BufferPool::new(&specs, space, PagePreference::HugeIfReserved)?;
        let memories: Vec<_> = buffers.memories().cloned().collect();
        let (controller, queue) = bring_up(bus, space, clock, &memories)?;
        let mut raw = Self {
            queue,
            controller,
            buffers,
            clock,
        };
        raw.until_live();
        Ok(raw)
    }

    /// What the queue has counted.
    pub(crate) fn stats(&self) -> QueueStats {
        self.queue.stats()
    }

    fn until_live(&mut self) {
        let mut none = Vec::with_capacity(1);
        while !self.queue.is_live() && !self.queue.is_gone() {
            let now = self.clock.now();
            self.controller.poll(now);
            self.queue.poll(now, &mut none);
        }
    }

    /// Writes every block of the span once: memory that was never written reads from one page of
    /// zeros, faster than any data.
    pub(crate) fn fill(&mut self) -> anyhow::Result<()> {
        let buffer = self.buffers.take(4096).context("a buffer")?;
        let mut completions = Vec::with_capacity(128);
        for block in 0..SPAN_BYTES / 4096 {
            self.submit(Operation::Write, block, 0, &buffer)?;
            self.queue.kick();
            while self.queue.in_flight() > 0 {
                self.queue.poll(self.clock.now(), &mut completions);
            }
            completions.drain(..).try_for_each(|done| done.result)?;
        }
        self.buffers.give_back(buffer);
        Ok(())
    }

    /// Keeps the loop's depth in flight until all of its operations are done.
    pub(crate) fn run(&mut self, plan: RawLoop) -> anyhow::Result<Sample> {
        let mut random = SeededRandom::new(1);
        let blocks = SPAN_BYTES / 4096;
        let held: Vec<DmaBuffer> = (0..plan.depth)
            .map_while(|_| self.buffers.take(4096))
            .collect();
        ensure!(
            held.len() == plan.depth,
            "a buffer for each request in flight"
        );
        let mut completions: Vec<Completion> = Vec::with_capacity(128);
        let start = self.clock.now();
        let (mut submitted, mut completed) = (0, 0);
        for (index, buffer) in held.iter().enumerate() {
            self.submit(plan.operation, random.below(blocks), index, buffer)?;
            submitted += 1;
        }
        while completed < submitted {
            self.queue.kick();
            self.queue.poll(self.clock.now(), &mut completions);
            for done in completions.drain(..) {
                done.result?;
                completed += 1;
                if submitted < plan.operations {
                    let index = usize::try_from(done.tag.0)?;
                    self.submit(plan.operation, random.below(blocks), index, &held[index])?;
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

/// How much of the controller the loops go over.
pub(crate) const SPAN_BYTES: u64 = 512 << 20;
