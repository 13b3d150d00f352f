//! Whole ranges: export and import, against the same messages with nothing behind them.

use anyhow::ensure;
use bytes::Bytes;
use lode_api::Client;
use lode_api::client::{NewVolume, VolumeName};
use lode_api::v1::Durability;
use lode_units::{Clock, MonotonicClock};

use super::{Arm, Arms, Reached, SPAN_BYTES, volume};
use crate::report::{Report, figure};
use crate::rounds::{Sample, interleave, ratios, spread};

/// Fills the volume that is read. Before, everything else is written once: memory that nobody
/// has touched costs a page fault with the first write, which is not the server's cost.
pub(super) async fn prepare(client: &Client) -> anyhow::Result<()> {
    for name in [VolumeName::new("", "touched"), volume()] {
        let bytes = if name == volume() {
            SPAN_BYTES
        } else {
            TOUCHED_BYTES
        };
        client
            .create_volume(&NewVolume::new(name.clone(), bytes))
            .await?;
        write(client, &name, bytes).await?;
        if name != volume() {
            client.delete_volume(&name).await?;
        }
    }
    Ok(())
}

/// Export of a written volume and import into a new one.
pub(super) fn run(report: &Report, arms: &mut Arms, rounds: usize) -> anyhow::Result<()> {
    let exports = interleave(
        arms,
        rounds,
        |arms| arms.with(Arm::Echo, export),
        |arms| arms.with(Arm::Store, export),
    )?;
    let prefix = arms.question.prefix();
    line(report, &format!("{prefix}.bulk.export"), &exports)?;
    let imports = interleave(
        arms,
        rounds,
        |arms| {
            arms.with(Arm::Echo, |server| async move {
                write(&server.client, &imported(), SPAN_BYTES).await
            })
        },
        |arms| arms.with(Arm::Store, import),
    )?;
    line(report, &format!("{prefix}.bulk.import"), &imports)
}

fn line(report: &Report, id: &str, pairs: &[(Sample, Sample)]) -> anyhow::Result<()> {
    let gib_per_s = |sample: Sample| sample.rate() / GIB;
    let echo = spread(pairs.iter().map(|(echo, _)| gib_per_s(*echo)).collect());
    let store = spread(pairs.iter().map(|(_, store)| gib_per_s(*store)).collect());
    let ratio = ratios(pairs);
    report.line(
        id,
        &[
            figure("ratio", ratio.median),
            figure("low", ratio.low),
            figure("high", ratio.high),
            figure("echo_gib_per_s", echo.median),
            figure("store_gib_per_s", store.median),
        ],
    )
}

async fn export(Reached { client, .. }: Reached) -> anyhow::Result<Sample> {
    let clock = MonotonicClock::new();
    let start = clock.now();
    let mut chunks = client.read_stream(&volume(), 0, Some(SPAN_BYTES)).await?;
    let mut end_bytes = 0;
    while let Some(chunk) = chunks.next_chunk().await? {
        end_bytes = chunk.offset_bytes;
    }
    ensure!(end_bytes > 0, "nothing was exported");
    Ok(Sample {
        operations: SPAN_BYTES,
        elapsed: clock.now().saturating_duration_since(start),
    })
}

/// Imports into a volume that is made for it and deleted afterwards, neither of it measured.
async fn import(Reached { client, .. }: Reached) -> anyhow::Result<Sample> {
    let name = imported();
    client
        .create_volume(&NewVolume::new(name.clone(), SPAN_BYTES))
        .await?;
    let sample = write(&client, &name, SPAN_BYTES).await?;
    client.delete_volume(&name).await?;
    Ok(sample)
}

/// Writes `bytes` bytes and makes them durable.
async fn write(client: &Client, name: &VolumeName, bytes: u64) -> anyhow::Result<Sample> {
    let chunk = Bytes::from(vec![0x5a; CHUNK_BYTES]);
    let clock = MonotonicClock::new();
    let start = clock.now();
    let mut writer = client.write_stream(name, 0, Durability::Data).await?;
    for _ in 0..bytes / CHUNK_BYTES as u64 {
        writer.data(chunk.clone()).await?;
    }
    let summary = writer.finish().await?;
    ensure!(summary.data_bytes == bytes, "a part was not written");
    Ok(Sample {
        operations: bytes,
        elapsed: clock.now().saturating_duration_since(start),
    })
}

fn imported() -> VolumeName {
    VolumeName::new("", "imported")
}

/// What is written once before anything is measured.
const TOUCHED_BYTES: u64 = 1 << 30;
/// As long as `lodectl volume import` makes them.
const CHUNK_BYTES: usize = 1 << 20;
const GIB: f64 = 1_073_741_824.0;
