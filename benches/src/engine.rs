//! The engine over a null device: what classifier, extent map and routing cost for each request.

use lode_block::{BufferPool, BufferPoolSpec, Durability, WriteCache};
use lode_bus::{IovaSpace, PagePreference};
use lode_engine::{DataOperation, PoolIndex, Shard, VolumeHandle, device_spec};
use lode_extent::{ExistingPool, Pool, PoolSpec};
use lode_units::{Instant, SeededRandom};

use crate::counting::allocations;
use crate::load::{Load, Loop};
use crate::null::NullDevice;
use crate::report::{Report, figure};
use crate::rounds::spread;

/// 4 KiB random reads and overwrites of a volume of 1 GiB that is fully mapped, one core, at
/// queue depths 1 and 128.
pub(crate) fn run(report: &Report, rounds: usize) -> anyhow::Result<()> {
    report.note("engine over a null device: classifier, extent map, routing; no data moved")?;
    let (mut load, index, volume) = mapped_volume(|_| {})?;
    for (name, operation) in [
        ("read", DataOperation::Read),
        ("write", DataOperation::Write),
    ] {
        for depth in [1, 128] {
            let plan = Loop {
                volume,
                operation,
                block_bytes: 4096,
                span_bytes: SPAN_BYTES,
                durability: Durability::None,
                depth,
                operations: OPERATIONS,
            };
            load.run(&plan)?;
            let (mut each, mut counts) = (Vec::new(), (0, 0, 0));
            for _ in 0..rounds {
                let before = (allocations(), kicks(&mut load, index));
                let sample = load.run(&plan)?;
                each.push(sample.nanoseconds_each());
                counts.0 += allocations() - before.0;
                counts.1 += kicks(&mut load, index) - before.1;
                counts.2 += sample.operations;
            }
            let each = spread(each);
            report.line(
                &format!("engine.{name}.qd{depth}"),
                &[
                    figure("ns_per_io", each.median),
                    figure("low", each.low),
                    figure("high", each.high),
                    figure("million_per_s", 1e3 / each.median),
                    figure("allocations_per_io", per(counts.0, counts.2)),
                    figure("doorbells_per_io", per(counts.1, counts.2)),
                ],
            )?;
        }
    }
    Ok(())
}

/// A volume of 1 GiB, all of it mapped, over a device that has become null; `pump` is called
/// before each poll.
pub(crate) fn mapped_volume<P: FnMut(Instant)>(
    pump: P,
) -> anyhow::Result<(Load<NullDevice, P>, PoolIndex, VolumeHandle)> {
    let mut made = Ground::default().make(pump)?;
    let index = made.1;
    made.0
        .shard
        .devices_mut(index)
        .for_each(NullDevice::become_null);
    Ok(made)
}

/// What a volume that is all mapped lies on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ground {
    pub(crate) span_bytes: u64,
    pub(crate) write_cache: WriteCache,
    pub(crate) supports_write_through: bool,
}

impl Default for Ground {
    fn default() -> Self {
        Self {
            span_bytes: SPAN_BYTES,
            write_cache: WriteCache::None,
            supports_write_through: true,
        }
    }
}

impl Ground {
    /// The device: it keeps what the pool itself writes, and nothing of what clients do.
    pub(crate) fn device(&self) -> NullDevice {
        let cache = (self.write_cache, self.supports_write_through);
        NullDevice::new(4 << 30, 1024, cache)
    }

    /// A volume, all of it mapped.
    pub(crate) fn make<P: FnMut(Instant)>(
        &self,
        pump: P,
    ) -> anyhow::Result<(Load<NullDevice, P>, PoolIndex, VolumeHandle)> {
        let space = IovaSpace::new();
        let shard = Shard::new(&space, PagePreference::HugeIfReserved)?;
        let mut device = self.device();
        device.map(shard.memories().cloned().collect());
        let spec = PoolSpec {
            name: "bench".to_owned(),
            existing: ExistingPool::Refuse,
        };
        let pool = Pool::create(spec, &[device_spec(&device)], &mut SeededRandom::new(1), 0)?;
        let mut load = Load::new(shard, client_buffers(&space)?, pump);
        let index = load
            .shard
            .attach("bench", vec![("null".to_owned(), device)], pool);
        load.until_ready(index)?;
        let volume = load.full_volume("volume", self.span_bytes)?;
        Ok((load, index, volume))
    }
}

/// Buffers for one closed loop.
pub(crate) fn client_buffers(space: &IovaSpace) -> anyhow::Result<BufferPool> {
    let specs = [
        BufferPoolSpec {
            length_bytes: 4096,
            count: 256,
        },
        BufferPoolSpec {
            length_bytes: 1 << 20,
            count: 1,
        },
    ];
    Ok(BufferPool::new(
        &specs,
        space,
        PagePreference::HugeIfReserved,
    )?)
}

fn kicks<P: FnMut(Instant)>(load: &mut Load<NullDevice, P>, pool: PoolIndex) -> u64 {
    load.shard
        .devices_mut(pool)
        .map(|device| device.kicks)
        .sum()
}

#[expect(clippy::cast_precision_loss, reason = "a mean: 53 bits are plenty")]
fn per(count: u64, operations: u64) -> f64 {
    count as f64 / operations.max(1) as f64
}

pub(crate) const SPAN_BYTES: u64 = 1 << 30;
const OPERATIONS: u64 = 1_000_000;
