//! `lodectl volume export`: a volume into a raw image.
//!
//! The image is made beside its final place under another name, made durable, and then renamed:
//! an image that is there is whole. Zeros that the server tells of stay holes.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{self, IsTerminal};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use lode_api::Client;
use lode_api::client::{Chunk, ChunkContent, VolumeName};
use lode_units::{Clock, MonotonicClock};
use serde::Serialize;
use tempfile::NamedTempFile;
use tokio::sync::mpsc;

use crate::cli::ExportArguments;
use crate::import::mib_per_second;
use crate::interrupt::Interrupt;
use crate::output::{self, Output};
use crate::progress;
use crate::size::Human;

/// How many chunks wait between the connection and the writing thread.
const QUEUE_LENGTH: usize = 4;

pub(crate) async fn run(
    client: &Client,
    output: &Output,
    arguments: &ExportArguments,
) -> Result<()> {
    let name = &arguments.target.volume();
    let file = arguments.file.as_path();
    let interrupt = Interrupt::watch()?;
    let clock = MonotonicClock::new();
    let started = clock.now();
    let volume = client.volume(name).await?;
    let is_stdout = file == Path::new("-");
    let sink = if is_stdout {
        Sink::stdout()?
    } else {
        Sink::file(file, arguments.force, volume.size_bytes)?
    };
    let bar = progress::bar(output, volume.size_bytes, "export")?;
    let outcome = interrupt
        .or(transfer(client, name, volume.size_bytes, sink, &bar))
        .await;
    bar.finish_and_clear();
    let data_bytes = outcome?;
    if is_stdout {
        return Ok(());
    }
    let seconds = clock.now().saturating_duration_since(started).as_secs_f64();
    let view = ExportView {
        pool: volume.pool,
        volume: volume.name,
        size_bytes: volume.size_bytes,
        data_bytes,
        hole_bytes: volume.size_bytes - data_bytes,
        seconds,
        mib_per_second: mib_per_second(volume.size_bytes, seconds),
    };
    output.show(&view, ExportView::line)
}

/// Moves the whole volume. How much of it was data.
async fn transfer(
    client: &Client,
    name: &VolumeName,
    size_bytes: u64,
    sink: Sink,
    bar: &ProgressBar,
) -> Result<u64> {
    let mut reader = client.read_stream(name, 0, Some(size_bytes)).await?;
    let (sender, chunks) = mpsc::channel(QUEUE_LENGTH);
    let writer = tokio::task::spawn_blocking(move || write(sink, chunks));
    let mut data_bytes = 0;
    while let Some(chunk) = reader.next_chunk().await? {
        let length = match &chunk.content {
            ChunkContent::Data(data) => u64::try_from(data.len())?,
            ChunkContent::Zeroes(length) => *length,
        };
        if matches!(chunk.content, ChunkContent::Data(_)) {
            data_bytes += length;
        }
        if sender.send(Step::Chunk(chunk)).await.is_err() {
            break;
        }
        bar.inc(length);
    }
    // A writer that has ended before says why below.
    let _ended = sender.send(Step::Finish).await;
    drop(sender);
    writer.await.context("the writing thread failed")??;
    Ok(data_bytes)
}

/// What the writing thread is to do.
enum Step {
    Chunk(Chunk),
    /// All chunks were handed over: without this word the image is thrown away.
    Finish,
}

fn write(mut sink: Sink, mut steps: mpsc::Receiver<Step>) -> Result<()> {
    while let Some(step) = steps.blocking_recv() {
        match step {
            Step::Chunk(chunk) => sink.put(&chunk)?,
            Step::Finish => return sink.finish(),
        }
    }
    bail!("the export was given up")
}

/// Where the image goes.
enum Sink {
    Stdout,
    File {
        image: NamedTempFile,
        target: PathBuf,
        force: bool,
    },
}

impl Sink {
    fn stdout() -> Result<Self> {
        if io::stdout().is_terminal() {
            bail!("standard output is a terminal: an image does not belong there");
        }
        Ok(Self::Stdout)
    }

    fn file(target: &Path, force: bool, size_bytes: u64) -> Result<Self> {
        match std::fs::symlink_metadata(target) {
            Ok(there) if !there.is_file() => bail!("{} is not a regular file", target.display()),
            Ok(_) if !force => bail!("{} is there; --force replaces it", target.display()),
            _ => {}
        }
        let Some(name) = target.file_name() else {
            bail!("{} names no file", target.display());
        };
        let mut prefix = OsString::from(".");
        prefix.push(name);
        prefix.push(".");
        let image = tempfile::Builder::new()
            .prefix(&prefix)
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder_of(target))
            .with_context(|| format!("cannot write beside {}", target.display()))?;
        let sized = image.as_file().set_len(size_bytes);
        sized.with_context(|| format!("cannot make {} so large", target.display()))?;
        Ok(Self::File {
            image,
            target: target.to_owned(),
            force,
        })
    }

    fn put(&mut self, chunk: &Chunk) -> Result<()> {
        match (self, &chunk.content) {
            (Self::Stdout, ChunkContent::Data(data)) => output::write_all(data),
            (Self::Stdout, ChunkContent::Zeroes(length)) => output::write_zeroes(*length),
            (Self::File { image, target, .. }, ChunkContent::Data(data)) => {
                let written = image.as_file().write_all_at(data, chunk.offset_bytes);
                written.with_context(|| format!("cannot write {}", target.display()))
            }
            (Self::File { .. }, ChunkContent::Zeroes(_)) => Ok(()),
        }
    }

    fn finish(self) -> Result<()> {
        let Self::File {
            image,
            target,
            force,
        } = self
        else {
            return Ok(());
        };
        let failed = || format!("cannot write {}", target.display());
        image.as_file().sync_all().with_context(failed)?;
        let persisted = if force {
            image.persist(&target)
        } else {
            image.persist_noclobber(&target)
        };
        persisted
            .map_err(|error| error.error)
            .with_context(failed)?;
        let folder = File::open(folder_of(&target)).with_context(failed)?;
        folder.sync_all().with_context(failed)
    }
}

/// The folder that holds a file.
fn folder_of(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

#[derive(Serialize)]
struct ExportView {
    pool: String,
    volume: String,
    size_bytes: u64,
    data_bytes: u64,
    hole_bytes: u64,
    seconds: f64,
    mib_per_second: f64,
}

impl ExportView {
    fn line(&self) -> String {
        format!(
            "exported {} of {:?}: {} data, {} holes, {:.2} s, {:.1} MiB/s",
            Human(self.size_bytes),
            self.volume,
            Human(self.data_bytes),
            Human(self.hole_bytes),
            self.seconds,
            self.mib_per_second
        )
    }
}
