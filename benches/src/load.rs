//! A closed loop of requests against a shard, inside the poller: routes are measured, not
//! scheduling luck.

use anyhow::{bail, ensure};
use lode_block::{BlockDevice, BufferPool, Durability};
use lode_bus::DmaBuffer;
use lode_engine::{
    Completion, ControlReply, ControlRequest, DataOperation, DataRequest, Shard, Token,
    VolumeHandle,
};
use lode_extent::{PoolState, SyncAttribute, VolumeLimits, VolumeSpec};
use lode_units::{BlockSize, Clock, MonotonicClock, Random, SeededRandom};

use crate::rounds::Sample;

/// Runs control requests and closed loops against one shard.
#[derive(Debug)]
pub(crate) struct Load<D, P> {
    pub(crate) shard: Shard<D>,
    pub(crate) buffers: BufferPool,
    /// Lets whatever stands behind the devices work; called before each poll.
    pub(crate) pump: P,
    pub(crate) clock: MonotonicClock,
    pub(crate) done: Vec<Completion>,
}

/// One closed loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loop {
    pub(crate) volume: VolumeHandle,
    pub(crate) operation: DataOperation,
    pub(crate) durability: Durability,
    pub(crate) block_bytes: u64,
    pub(crate) span_bytes: u64,
    pub(crate) depth: usize,
    pub(crate) operations: u64,
}

impl<D: BlockDevice, P: FnMut(lode_units::Instant)> Load<D, P> {
    pub(crate) fn new(shard: Shard<D>, buffers: BufferPool, pump: P) -> Self {
        let clock = MonotonicClock::new();
        Self {
            shard,
            buffers,
            pump,
            clock,
            done: Vec::with_capacity(4096),
        }
    }

    /// Polls until the only pool serves.
    pub(crate) fn until_ready(&mut self, pool: lode_engine::PoolIndex) -> anyhow::Result<()> {
        let deadline = self.clock.now() + std::time::Duration::from_secs(60);
        while self.shard.pool_state(pool) == Some(&PoolState::Starting) {
            ensure!(
                self.clock.now() < deadline,
                "the pool does not become ready"
            );
            self.poll();
        }
        match self.shard.pool_state(pool) {
            Some(PoolState::Ready) => Ok(()),
            other => bail!("the pool is {other:?}"),
        }
    }

    /// Makes a volume and writes all of it, so that every block is mapped.
    pub(crate) fn full_volume(&mut self, name: &str, bytes: u64) -> anyhow::Result<VolumeHandle> {
        let spec = VolumeSpec {
            name: name.to_owned(),
            size_bytes: bytes,
            block_size: BlockSize::B4096,
            sync: SyncAttribute::None,
            limits: VolumeLimits::default(),
            created_unix_seconds: 0,
        };
        let request = ControlRequest::CreateVolume {
            pool: String::new(),
            spec,
            request: None,
        };
        self.shard.control(Token(0), request);
        let volume = loop {
            self.poll();
            match self.done.pop() {
                Some(Completion::Control { result, .. }) => match (*result)? {
                    ControlReply::Volume(status) => break status.handle,
                    other => bail!("not a volume: {other:?}"),
                },
                Some(Completion::Data(done)) => bail!("unexpected {done:?}"),
                None => {}
            }
        };
        for offset_bytes in (0..bytes).step_by(1 << 20) {
            let buffer = self.buffers.take(1 << 20);
            let request = DataRequest {
                token: Token(0),
                volume,
                operation: DataOperation::Write,
                durability: Durability::None,
                offset_bytes,
                length_bytes: (bytes - offset_bytes).min(1 << 20),
                buffer,
            };
            self.finish(request)?;
        }
        self.finish(DataRequest {
            token: Token(0),
            volume,
            operation: DataOperation::Flush,
            durability: Durability::None,
            offset_bytes: 0,
            length_bytes: 0,
            buffer: None,
        })?;
        while self.shard.next_deadline().is_some() && self.shard.is_busy() {
            self.poll();
        }
        Ok(volume)
    }

    /// Keeps `depth` requests in flight until all operations are done.
    pub(crate) fn run(&mut self, plan: &Loop) -> anyhow::Result<Sample> {
        let mut random = SeededRandom::new(1);
        let blocks = plan.span_bytes / plan.block_bytes;
        let start = self.clock.now();
        let (mut submitted, mut completed) = (0, 0);
        for _ in 0..plan.depth {
            let buffer = self.buffers.take(usize::try_from(plan.block_bytes)?);
            self.submit(plan, random.below(blocks), buffer)?;
            submitted += 1;
        }
        let mut done = std::mem::take(&mut self.done);
        while completed < submitted {
            let now = self.clock.now();
            (self.pump)(now);
            self.shard.poll(now, &mut done);
            for completion in done.drain(..) {
                let Completion::Data(ended) = completion else {
                    continue;
                };
                ended.result?;
                completed += 1;
                if submitted < plan.operations {
                    self.submit(plan, random.below(blocks), ended.buffer)?;
                    submitted += 1;
                } else if let Some(buffer) = ended.buffer {
                    self.buffers.give_back(buffer);
                }
            }
        }
        self.done = done;
        let elapsed = self.clock.now().saturating_duration_since(start);
        Ok(Sample {
            operations: submitted,
            elapsed,
        })
    }

    /// Submits one request of a loop.
    pub(crate) fn submit(
        &mut self,
        plan: &Loop,
        block: u64,
        buffer: Option<DmaBuffer>,
    ) -> anyhow::Result<()> {
        self.shard
            .submit(request_of(plan, block, buffer))
            .map_err(|_| anyhow::anyhow!("no slot is free"))
    }

    fn finish(&mut self, request: DataRequest) -> anyhow::Result<()> {
        self.shard
            .submit(request)
            .map_err(|_| anyhow::anyhow!("no slot is free"))?;
        loop {
            self.poll();
            if let Some(Completion::Data(done)) = self.done.pop() {
                done.result?;
                if let Some(buffer) = done.buffer {
                    self.buffers.give_back(buffer);
                }
                return Ok(());
            }
        }
    }

    /// Polls once.
    pub(crate) fn poll(&mut self) {
        let now = self.clock.now();
        (self.pump)(now);
        self.shard.poll(now, &mut self.done);
    }
}

/// One request of a loop, for its block `block`.
pub(crate) const fn request_of(plan: &Loop, block: u64, buffer: Option<DmaBuffer>) -> DataRequest {
    DataRequest {
        token: Token(block),
        volume: plan.volume,
        operation: plan.operation,
        durability: plan.durability,
        offset_bytes: block * plan.block_bytes,
        length_bytes: plan.block_bytes,
        buffer,
    }
}
