//! `lodectl volume import`: a raw image into a volume.
//!
//! A thread reads the image and finds the zeros; the client sends data and the lengths of zero
//! runs; the server makes all of it durable before it answers. A volume that the import made is
//! removed when the import fails.

pub(crate) mod source;

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use lode_api::Client;
use lode_api::client::VolumeName;
use lode_api::v1::{Durability, Volume, WriteStreamResponse};
use lode_units::{Clock, MonotonicClock};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::cli::ImportArguments;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::progress;
use crate::size::Human;
use crate::volume::{durability_name, new_volume};
use source::{Run, Source, SourceError};

/// How many runs wait between the reading thread and the connection.
const QUEUE_LENGTH: usize = 4;

pub(crate) async fn run(
    client: &Client,
    output: &Output,
    arguments: &ImportArguments,
) -> Result<()> {
    let interrupt = Interrupt::watch()?;
    let clock = MonotonicClock::new();
    let started = clock.now();
    let mut source = Source::open(&arguments.file)?;
    let name = arguments.target.volume();
    let volume = if arguments.create {
        create(client, &mut source, arguments).await?
    } else {
        find(client, &mut source, &name).await?
    };
    let bar = progress::bar(output, source.filled_size_bytes(), "import")?;
    let outcome = interrupt.or(transfer(client, &name, source, &bar)).await;
    bar.finish_and_clear();
    let summary = match outcome {
        Ok(summary) => summary,
        Err(error) if arguments.create && !arguments.keep => {
            return Err(removed(client, &name, error).await);
        }
        Err(error) => return Err(error),
    };
    let elapsed = clock.now().saturating_duration_since(started);
    let view = ImportView::new(volume, &summary, elapsed.as_secs_f64());
    output.show(&view, ImportView::line)
}

async fn create(
    client: &Client,
    source: &mut Source,
    arguments: &ImportArguments,
) -> Result<Volume> {
    source.fill_up_to_blocks_of(arguments.options.block_size.0);
    let size = source.filled_size_bytes();
    let volume = new_volume(arguments.target.volume(), size, arguments.options)?;
    Ok(client.create_volume(&volume).await?)
}

async fn find(client: &Client, source: &mut Source, name: &VolumeName) -> Result<Volume> {
    let volume = client.volume(name).await?;
    source.fill_up_to_blocks_of(u64::from(volume.block_size_bytes));
    if source.filled_size_bytes() > volume.size_bytes {
        bail!(
            "the image has {} bytes and volume {:?} only {}: resize it first",
            source.size_bytes(),
            volume.name,
            volume.size_bytes
        );
    }
    Ok(volume)
}

/// Removes the half imported volume. The error says when that failed as well.
async fn removed(client: &Client, name: &VolumeName, error: anyhow::Error) -> anyhow::Error {
    match client.delete_volume(name).await {
        Ok(()) => error,
        Err(second) => error.context(format!(
            "volume {:?} is incomplete and could not be removed ({second})",
            name.volume
        )),
    }
}

async fn transfer(
    client: &Client,
    name: &VolumeName,
    mut source: Source,
    bar: &ProgressBar,
) -> Result<WriteStreamResponse> {
    let mut writer = client.write_stream(name, 0, Durability::Data).await?;
    let (sender, mut runs) = mpsc::channel(QUEUE_LENGTH);
    let reader = tokio::task::spawn_blocking(move || read(&mut source, &sender));
    while let Some(run) = runs.recv().await {
        match run {
            Run::Data(data) => {
                let length = data.len();
                writer.data(data).await?;
                bar.inc(u64::try_from(length)?);
            }
            Run::Zeroes(length) => {
                writer.zeroes(length).await?;
                bar.inc(length);
            }
        }
    }
    reader.await.context("the reading thread failed")??;
    Ok(writer.finish().await?)
}

/// Hands the runs of the image over until its end, or until nobody takes them any more.
fn read(source: &mut Source, runs: &mpsc::Sender<Run>) -> Result<(), SourceError> {
    while let Some(run) = source.next_run()? {
        if runs.blocking_send(run).is_err() {
            break;
        }
    }
    Ok(())
}

#[derive(Serialize)]
struct ImportView {
    pool: String,
    volume: String,
    size_bytes: u64,
    data_bytes: u64,
    hole_bytes: u64,
    durability: &'static str,
    seconds: f64,
    mib_per_second: f64,
}

impl ImportView {
    fn new(volume: Volume, summary: &WriteStreamResponse, seconds: f64) -> Self {
        let bytes = summary.data_bytes + summary.zeroes_bytes;
        Self {
            pool: volume.pool,
            volume: volume.name,
            size_bytes: volume.size_bytes,
            data_bytes: summary.data_bytes,
            hole_bytes: summary.zeroes_bytes,
            durability: durability_name(summary.durability()),
            seconds,
            mib_per_second: mib_per_second(bytes, seconds),
        }
    }

    fn line(&self) -> String {
        format!(
            "imported {} into {:?}: {} data, {} holes, {:.2} s, {:.1} MiB/s, durability {}",
            Human(self.data_bytes + self.hole_bytes),
            self.volume,
            Human(self.data_bytes),
            Human(self.hole_bytes),
            self.seconds,
            self.mib_per_second,
            self.durability
        )
    }
}

/// A rate for people. Exact up to 2^53 bytes.
#[expect(
    clippy::cast_precision_loss,
    reason = "a rate is shown with one decimal"
)]
pub(crate) fn mib_per_second(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / f64::from(1 << 20) / seconds.max(1e-9)
}
