//! A gRPC client of the daemon, on a runtime of the scenario's own.

use std::cell::Cell;
use std::task::Poll;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use lode_api::Client;
use lode_api::client::{ClientError, IoOptions, IoSession, NewVolume, Overwrite, VolumeName};
use lode_api::v1::{Durability, ErrorReason, Pool};
use tokio::runtime::Runtime;

use crate::pattern;
use crate::service::Daemon;

/// A client that is connected.
pub(crate) struct Remote {
    runtime: Runtime,
    pub(crate) client: Client,
}

/// A part of a volume that could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) reason: ErrorReason,
    /// The range that the server named: offset and length in bytes.
    pub(crate) range: (u64, u64),
    pub(crate) status: Option<u32>,
}

impl Remote {
    /// Connects to the daemon.
    pub(crate) fn connect() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let client = runtime
            .block_on(Client::connect(Daemon::ADDRESS))
            .context("connecting to the daemon")?;
        Ok(Self { runtime, client })
    }

    /// Runs `work` to its end.
    pub(crate) fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Makes a pool, whatever its devices hold.
    pub(crate) fn create_pool(&self, name: &str, devices: &[String]) -> Result<Pool> {
        let made = self.client.create_pool(name, devices, Overwrite::Allowed);
        self.run(made).with_context(|| format!("creating {name}"))
    }

    /// Takes the pool on `devices` into use.
    pub(crate) fn import_pool(&self, devices: &[String]) -> Result<Pool> {
        let imported = self.run(self.client.import_pool(devices));
        imported.with_context(|| format!("importing {devices:?}"))
    }

    /// Lets go of a pool.
    pub(crate) fn export_pool(&self, name: &str) -> Result<()> {
        let exported = self.run(self.client.export_pool(name));
        exported.with_context(|| format!("exporting {name}"))
    }

    /// Makes a volume.
    pub(crate) fn create_volume(&self, name: &VolumeName, size_bytes: u64) -> Result<()> {
        let volume = NewVolume::new(name.clone(), size_bytes);
        let made = self.run(self.client.create_volume(&volume));
        made.with_context(|| format!("creating {name:?}"))?;
        Ok(())
    }

    /// Fills the mebibytes of a volume up to `mebibytes`, each with its number.
    pub(crate) fn fill(&self, name: &VolumeName, mebibytes: u8) -> Result<()> {
        for number in 0..mebibytes {
            let data = Bytes::from(vec![number; MIB]);
            let place = u64::from(number) * MIB as u64;
            let written = self.client.write(name, place, data, Durability::Data);
            self.run(written)?;
        }
        Ok(())
    }

    /// Fails unless the mebibytes of a volume hold what [`Remote::fill`] wrote.
    pub(crate) fn check_filled(&self, name: &VolumeName, mebibytes: u8) -> Result<()> {
        for number in 0..mebibytes {
            let place = u64::from(number) * MIB as u64;
            let length = u32::try_from(MIB)?;
            let found = self.run(self.client.read(name, place, length))?;
            ensure!(
                found.iter().all(|byte| *byte == number),
                "mebibyte {number} of {name:?} holds something else"
            );
        }
        Ok(())
    }

    /// Writes the pattern of `round` to the first `chunks` of a volume, many at a time; those
    /// that failed.
    pub(crate) fn write_all(
        &self,
        name: &VolumeName,
        chunks: u64,
        round: u64,
    ) -> Result<Vec<Lost>> {
        self.on_each(name, chunks, &async |session, chunk| {
            let data = Bytes::from(content(chunk, round));
            let written = session.write(chunk * CHUNK_BYTES, data, Durability::Data);
            written.await.map(|_| ())
        })
    }

    /// Reads the first `chunks` of a volume, many at a time, and compares them with the pattern
    /// of `round`; those that could not be read.
    pub(crate) fn verify_all(
        &self,
        name: &VolumeName,
        chunks: u64,
        round: u64,
    ) -> Result<Vec<Lost>> {
        let wrong = Cell::new(None);
        let lost = self.on_each(name, chunks, &async |session, chunk| {
            let length = u32::try_from(CHUNK_BYTES).unwrap_or(u32::MAX);
            let found = session.read(chunk * CHUNK_BYTES, length).await?;
            if found != content(chunk, round) {
                wrong.set(Some(chunk));
            }
            Ok(())
        })?;
        ensure!(
            wrong.get().is_none(),
            "chunk {:?} of {name:?} does not hold what round {round} wrote",
            wrong.get()
        );
        Ok(lost)
    }

    /// Writes, and fails when anything was not written.
    pub(crate) fn write(&self, name: &VolumeName, chunks: u64, round: u64) -> Result<()> {
        let lost = self.write_all(name, chunks, round)?;
        ensure!(lost.is_empty(), "not written: {lost:?}");
        Ok(())
    }

    /// Reads and compares, and fails when anything could not be read.
    pub(crate) fn verify(&self, name: &VolumeName, chunks: u64, round: u64) -> Result<()> {
        let lost = self.verify_all(name, chunks, round)?;
        ensure!(lost.is_empty(), "not read: {lost:?}");
        Ok(())
    }

    /// Does `work` with each of the first `chunks`, many at a time; those that failed.
    fn on_each<W>(&self, name: &VolumeName, chunks: u64, work: &W) -> Result<Vec<Lost>>
    where
        W: AsyncFn(&IoSession, u64) -> Result<(), ClientError>,
    {
        self.run(async {
            let session = self.client.open_io(name, IoOptions::default()).await?;
            let mut lost = Vec::new();
            for first in (0..chunks).step_by(IN_FLIGHT) {
                let last = chunks.min(first + IN_FLIGHT as u64);
                let running = (first..last).map(|chunk| work(&session, chunk)).collect();
                for error in join(running)
                    .await
                    .iter()
                    .filter_map(|end| end.as_ref().err())
                {
                    lost.push(lost_by(error)?);
                }
            }
            Ok(lost)
        })
    }
}

/// The outcomes of `running`, all of which make progress together.
pub(crate) async fn join<T>(running: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut running: Vec<_> = running.into_iter().map(Box::pin).collect();
    let mut ended: Vec<Option<T>> = running.iter().map(|_| None).collect();
    std::future::poll_fn(move |context| {
        for (future, slot) in running.iter_mut().zip(&mut ended) {
            if slot.is_none()
                && let Poll::Ready(outcome) = future.as_mut().poll(context)
            {
                *slot = Some(outcome);
            }
        }
        if ended.iter().any(Option::is_none) {
            return Poll::Pending;
        }
        Poll::Ready(ended.drain(..).flatten().collect())
    })
    .await
}

/// What a failed request said was lost.
pub(crate) fn lost_by(error: &ClientError) -> Result<Lost> {
    let Some(detail) = error.failure().and_then(|failure| failure.detail.as_ref()) else {
        bail!("an error without detail: {error}");
    };
    Ok(Lost {
        reason: error.reason(),
        range: (
            detail.offset_bytes.unwrap_or(u64::MAX),
            detail.length_bytes.unwrap_or(0),
        ),
        status: detail.device_status,
    })
}

/// The content of a chunk.
pub(crate) fn content(chunk: u64, round: u64) -> Vec<u8> {
    pattern::blocks(chunk, 1, round, 4096)
}

/// The bytes of a chunk: one block of a volume.
pub(crate) const CHUNK_BYTES: u64 = 4096;
const IN_FLIGHT: usize = 32;
const MIB: usize = 1 << 20;
