//! Commands that do not complete, and a controller that is reset, under the daemon.

use std::fs;
use std::thread;

use anyhow::{Result, anyhow, ensure};
use lode_api::client::VolumeName;
use lode_api::v1::ErrorReason;
use rustix::process::Signal;

use crate::host;
use crate::kernel;
use crate::metrics::Metrics;
use crate::remote::{CHUNK_BYTES, Lost, Remote};
use crate::rig::bind;
use crate::service::Daemon;

/// A read does not complete: its deadline passes and it is aborted, each counted; the client is
/// told the truth about it, and everything else is served meanwhile.
pub(super) fn abort() -> Result<String> {
    let (daemon, remote) = start()?;
    let volume = volume();
    host::monitor_quietly("qemu-io -d hang \"break read_aio A\"")?;
    let name = volume.clone();
    let reader = thread::spawn(move || Remote::connect()?.verify_all(&name, 1, 1));
    let aborts = Metrics::until("lodestore_nvme_aborts_total", ADDRESS, |count| count >= 1.0);
    // Also when it did not come. The emulated device cannot be reset while its read hangs; a
    // whole device that hangs is another scenario.
    host::monitor_quietly("qemu-io -d hang \"resume A\"")?;
    let aborts = aborts?;
    let unread = reader.join().map_err(|_| anyhow!("the reader"))??;
    check_truth(&unread)?;
    let timeouts = Metrics::until("lodestore_nvme_timeouts_total", ADDRESS, |count| {
        count >= 1.0
    })?;
    finish(daemon, &remote)?;
    Ok(format!(
        "{timeouts} deadlines, {aborts} aborts; the client was told {unread:?}"
    ))
}

/// The controller is reset behind the daemon's back with reads and writes in flight: the reads
/// are repeated and right, what was written is there, and nothing arrives where it may not.
pub(super) fn reset() -> Result<String> {
    let (daemon, remote) = start()?;
    let volume = volume();
    let other = VolumeName::new("tank", "other");
    remote.create_volume(&other, CHUNKS * CHUNK_BYTES)?;
    let reader =
        thread::spawn(move || again_and_again(|remote| remote.verify_all(&volume, CHUNKS, 1)));
    let name = other.clone();
    let writer =
        thread::spawn(move || again_and_again(|remote| remote.write_all(&name, CHUNKS, 2)));
    for count in 1..=RESETS {
        fs::write(format!("/sys/bus/pci/devices/{ADDRESS}/reset"), "1")?;
        let wanted = f64::from(count);
        Metrics::until("lodestore_nvme_resets_total", ADDRESS, |count| {
            count >= wanted
        })?;
        Metrics::until("lodestore_pool_ready", "tank", |ready| ready == 1.0)?;
    }
    let unread = reader.join().map_err(|_| anyhow!("the reader"))??;
    let unwritten = writer.join().map_err(|_| anyhow!("the writer"))??;
    ensure!(unread.is_empty(), "reads were not repeated: {unread:?}");
    check_truth(&unwritten)?;
    if unwritten.is_empty() {
        remote.verify(&other, CHUNKS, 2)?;
    }
    finish(daemon, &remote)?;
    Ok(format!(
        "{RESETS} resets under load; {} writes refused, no read",
        unwritten.len()
    ))
}

/// Does `work` as often as resets take; everything that was lost.
fn again_and_again(work: impl Fn(&Remote) -> Result<Vec<Lost>>) -> Result<Vec<Lost>> {
    let remote = Remote::connect()?;
    let mut lost = Vec::new();
    for _ in 0..PASSES {
        lost.extend(work(&remote)?);
    }
    Ok(lost)
}

/// A daemon with a pool and a volume that holds round 1.
fn start() -> Result<(Daemon, Remote)> {
    bind(ADDRESS.parse()?)?;
    let daemon = Daemon::start()?;
    let remote = Remote::connect()?;
    remote.create_pool("tank", &[format!("vfio:{ADDRESS}?namespace=3")])?;
    let volume = volume();
    remote.create_volume(&volume, CHUNKS * CHUNK_BYTES)?;
    remote.write(&volume, CHUNKS, 1)?;
    Ok((daemon, remote))
}

/// The pool works as before, and the IOMMU has seen nothing.
fn finish(daemon: Daemon, remote: &Remote) -> Result<()> {
    let volume = volume();
    remote.verify(&volume, CHUNKS, 1)?;
    remote.write(&volume, CHUNKS, 3)?;
    remote.verify(&volume, CHUNKS, 3)?;
    let blocked = kernel::blocked_accesses()?;
    ensure!(blocked.is_empty(), "stray accesses: {blocked:?}");
    let status = daemon.end(Signal::TERM)?;
    ensure!(status.success(), "the daemon stopped with {status}");
    Ok(())
}

/// Whatever was lost was lost to the reset or to its deadline, and the client was told so.
pub(super) fn check_truth(lost: &[Lost]) -> Result<()> {
    let is_true = |lost: &Lost| {
        matches!(
            lost.reason,
            ErrorReason::DeviceReset | ErrorReason::DeviceTimeout
        )
    };
    ensure!(lost.iter().all(is_true), "{lost:?}");
    Ok(())
}

fn volume() -> VolumeName {
    VolumeName::new("tank", "disk")
}

const ADDRESS: &str = "0000:00:12.0";
const CHUNKS: u64 = 64;
const RESETS: u32 = 3;
/// More than there is time for between the first reset and the last.
const PASSES: usize = 40;
