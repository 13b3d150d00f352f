//! A device is taken out under the daemon, with requests in flight, and put back.

use std::thread;

use anyhow::{Result, anyhow, ensure};
use bytes::Bytes;
use lode_api::client::{IoOptions, VolumeName};
use lode_api::v1::{Durability, ErrorReason};
use rustix::process::Signal;

use super::removal::{appeared, plug_in, vanished};
use crate::host;
use crate::metrics::Metrics;
use crate::remote::{CHUNK_BYTES, Remote, content, join, lost_by};
use crate::rig::bind;
use crate::service::Daemon;

/// Requests end with a clear error, the daemon lives, and when the device is back its pool can be
/// imported: everything that was acknowledged as durable is there.
pub(super) fn unplug() -> Result<String> {
    let address = appeared()?;
    bind(address)?;
    let daemon = Daemon::start()?;
    let remote = Remote::connect()?;
    remote.create_pool("tank", &[format!("vfio:{address}")])?;
    let volume = VolumeName::new("tank", "disk");
    remote.create_volume(&volume, CHUNKS * CHUNK_BYTES)?;
    remote.write(&volume, CHUNKS, 1)?;
    let name = volume.clone();
    let writer = thread::spawn(move || write_until_refused(&name));
    // It is writing when the device is asked for.
    let label = "volume=\"disk\",operation=\"write\"";
    let series = "lodestore_volume_operation_duration_seconds_count";
    Metrics::until(series, label, |count| count > BUSY)?;
    host::monitor_quietly("device_del removable")?;
    vanished(address)?;
    let (acknowledged, reason) = writer.join().map_err(|_| anyhow!("the writer"))??;
    ensure!(
        matches!(
            reason,
            ErrorReason::PoolNotReady
                | ErrorReason::PoolNotFound
                | ErrorReason::VolumeNotFound
                | ErrorReason::DeviceGone
        ),
        "the writer was refused with {reason:?}"
    );
    let pools = remote.run(remote.client.list_pools())?;
    ensure!(pools.is_empty(), "{pools:?}");

    plug_in()?;
    let back = appeared()?;
    bind(back)?;
    remote.import_pool(&[format!("vfio:{back}")])?;
    for (chunk, round) in (0..).zip(&acknowledged) {
        let read = remote.client.read(&volume, chunk * CHUNK_BYTES, 4096);
        let found = remote.run(read)?;
        // The next one was under way, and may have arrived.
        let is_there = found == content(chunk, *round) || found == content(chunk, round + 1);
        ensure!(is_there, "chunk {chunk} does not hold round {round}");
    }
    remote.write(&volume, CHUNKS, 1)?;
    remote.verify(&volume, CHUNKS, 1)?;
    let status = daemon.end(Signal::TERM)?;
    ensure!(status.success(), "the daemon stopped with {status}");
    Ok(format!(
        "refused with {reason:?} after {} durable writes; {back} came back with all of them",
        acknowledged.iter().sum::<u64>()
    ))
}

/// Writes one round after the other to every chunk at once until a write is refused. The last
/// acknowledged round of each chunk, and why the first refused write was.
fn write_until_refused(volume: &VolumeName) -> Result<(Vec<u64>, ErrorReason)> {
    let remote = Remote::connect()?;
    remote.run(async {
        let session = remote.client.open_io(volume, IoOptions::default()).await?;
        let mut acknowledged = vec![1; usize::try_from(CHUNKS)?];
        for round in 2..ROUNDS_MAX {
            let mut refused = None;
            let writes = (0..CHUNKS).map(|chunk| {
                let data = Bytes::from(content(chunk, round));
                session.write(chunk * CHUNK_BYTES, data, Durability::Data)
            });
            let ended = join(writes.collect()).await;
            for (last, ended) in acknowledged.iter_mut().zip(ended) {
                match ended {
                    Ok(_) => *last = round,
                    Err(error) => refused = refused.or(Some(lost_by(&error)?.reason)),
                }
            }
            if let Some(reason) = refused {
                return Ok((acknowledged, reason));
            }
        }
        Err(anyhow!("nobody took the device out"))
    })
}

const CHUNKS: u64 = 32;
/// More rounds than there is time for.
const ROUNDS_MAX: u64 = 1_000_000;
/// As many writes show that the writer is at work.
const BUSY: f64 = 256.0;
