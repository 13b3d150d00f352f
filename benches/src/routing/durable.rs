//! B0d: the same with durability *Data*: a write and a flush behind it, against writes that are
//! forced to the media and complete inline.

use lode_block::{Durability, WriteCache};
use lode_engine::{DataOperation, PoolIndex, VolumeHandle};
use lode_units::Instant;

use super::worker::pinned;
use super::{per, ratio};
use crate::engine::{Ground, SPAN_BYTES};
use crate::load::{Load, Loop};
use crate::null::NullDevice;
use crate::report::{Report, figure};
use crate::rounds::{Sample, interleave, ratios};

pub(super) fn run(report: &Report, rounds: usize) -> anyhow::Result<()> {
    report.note("B0d: the same with durability Data; off: write, then flush; on: write through")?;
    pinned(|_| {
        for depth in [1, 128] {
            let mut arms = [Arm::new(false)?, Arm::new(true)?];
            let pairs = interleave(
                &mut arms,
                rounds,
                |arms| arms[0].run(depth),
                |arms| arms[1].run(depth),
            )?;
            report.line(&format!("B0d.qd{depth}"), &ratio(ratios(&pairs)))?;
            for (name, arm) in ["off", "on"].into_iter().zip(&arms) {
                let stats = arm.load.shard.stats();
                let writes = stats.write_commands.read() - arm.writes_before;
                let forced = stats.write_through_commands.read();
                let flushes = stats.flushes.read() - arm.flushes_before;
                report.line(
                    &format!("B0d.qd{depth}.{name}"),
                    &[
                        figure("flushes_per_write", per(flushes, writes)),
                        figure("write_through_per_write", per(forced, writes)),
                    ],
                )?;
            }
        }
        Ok(())
    })
}

/// One device with a volatile write cache, and a volume on it.
struct Arm<P> {
    load: Load<NullDevice, P>,
    volume: VolumeHandle,
    writes_before: u64,
    flushes_before: u64,
}

impl Arm<fn(Instant)> {
    fn new(supports_write_through: bool) -> anyhow::Result<Self> {
        let ground = Ground {
            write_cache: WriteCache::Volatile,
            supports_write_through,
            ..Ground::default()
        };
        let pump: fn(Instant) = |_| {};
        let (mut load, index, volume): (_, PoolIndex, _) = ground.make(pump)?;
        load.shard
            .devices_mut(index)
            .for_each(NullDevice::become_null);
        let stats = load.shard.stats();
        Ok(Self {
            writes_before: stats.write_commands.read(),
            flushes_before: stats.flushes.read(),
            load,
            volume,
        })
    }

    fn run(&mut self, depth: usize) -> anyhow::Result<Sample> {
        self.load.run(&Loop {
            volume: self.volume,
            operation: DataOperation::Write,
            durability: Durability::Data,
            block_bytes: 4096,
            span_bytes: SPAN_BYTES,
            depth,
            operations: OPERATIONS,
        })
    }
}

const OPERATIONS: u64 = 200_000;
