//! The driver against the emulated controller in memory, and a volume above it: what the volume
//! layer costs, as a ratio.

use lode_block::{BufferPool, BufferPoolSpec, Durability, Operation};
use lode_bus::{IovaSpace, PagePreference};
use lode_engine::{DataOperation, PoolIndex, Shard, device_spec};
use lode_extent::{ExistingPool, Pool, PoolSpec};
use lode_nvme::{Controller, NamespaceQueue};
use lode_nvme_emu::EmulatedController;
use lode_units::{Instant, MonotonicClock, SeededRandom};

use crate::load::{Load, Loop};
use crate::raw::{Raw, RawLoop, SPAN_BYTES, bring_up, controller_in_memory};
use crate::report::{Report, figure};
use crate::rounds::{interleave, ratios, spread};

type Queue = NamespaceQueue<EmulatedController>;

/// Both arms.
struct Arms<P> {
    raw: Raw<EmulatedController>,
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
    let mut raw = Raw::new(controller_in_memory()?, &space, clock)?;
    raw.fill()?;
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
                durability: Durability::None,
                block_bytes: 4096,
                span_bytes: SPAN_BYTES,
                depth,
                operations: OPERATIONS,
            };
            let bare = RawLoop {
                operation,
                depth,
                operations: OPERATIONS,
            };
            let pairs = interleave(
                &mut arms,
                rounds,
                |arms| arms.raw.run(bare),
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
    let (controller, queue) = bring_up(controller_in_memory()?, space, clock, &memories)?;
    let spec = PoolSpec {
        name: "bench".to_owned(),
        existing: ExistingPool::Refuse,
    };
    let pool = Pool::create(spec, &[device_spec(&queue)], &mut SeededRandom::new(1), 0)?;
    let index = shard.attach("bench", vec![("memory".to_owned(), queue)], pool);
    let load = Load::new(shard, buffers, |_now| {});
    Ok((load, controller, index))
}

const OPERATIONS: u64 = 400_000;
