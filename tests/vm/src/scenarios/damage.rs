//! Media that fail under the daemon. The namespaces of this controller are ways to one disk, each
//! with another part of it bad (see `xtask/src/vm/guests.rs`): the pool is made through the sound
//! one.

use anyhow::{Result, ensure};
use lode_api::client::VolumeName;
use lode_api::v1::{Durability, ErrorReason, PoolState};
use rustix::process::Signal;

use crate::lodectl::lodectl;
use crate::metrics::Metrics;
use crate::remote::{CHUNK_BYTES, Lost, Remote, content};
use crate::service::Daemon;

/// A block of data that cannot be read, then one that cannot be written: the client is told
/// exactly which, every other one is served, and a metric counts them.
pub(super) fn data() -> Result<String> {
    let daemon = start()?;
    let remote = Remote::connect()?;
    remote.create_pool("tank", &[device(SOUND)])?;
    let volume = volume();
    remote.create_volume(&volume, CHUNKS * CHUNK_BYTES)?;
    remote.write(&volume, CHUNKS, 1)?;
    remote.export_pool("tank")?;

    remote.import_pool(&[device(BAD_READ)])?;
    let unread = only(&remote.verify_all(&volume, CHUNKS, 1)?, 0x281)?;
    let other = VolumeName::new("tank", "other");
    remote.create_volume(&other, CHUNKS * CHUNK_BYTES)?;
    remote.write(&other, 32, 7)?;
    remote.verify(&other, 32, 7)?;
    counted(BAD_READ, "read")?;
    let status = lodectl(&["pool", "status", "tank"])?;
    ensure!(status.contains("ready"), "{status}");
    remote.export_pool("tank")?;

    remote.import_pool(&[device(BAD_WRITE)])?;
    let unwritten = only(&remote.write_all(&volume, CHUNKS, 2)?, 0x280)?;
    ensure!(
        unwritten.range == unread.range,
        "one bad block, two places: {unread:?} {unwritten:?}"
    );
    counted(BAD_WRITE, "write")?;
    remote.export_pool("tank")?;

    remote.import_pool(&[device(SOUND)])?;
    let bad = unread.range.0 / CHUNK_BYTES;
    for chunk in 0..CHUNKS {
        let found = remote.run(remote.client.read(&volume, chunk * CHUNK_BYTES, 4096))?;
        let round = if chunk == bad { 1 } else { 2 };
        ensure!(found == content(chunk, round), "chunk {chunk}");
    }
    stop(daemon)?;
    Ok(format!(
        "block {bad} of {CHUNKS}: reads {unread:?}, writes {:?}",
        unwritten.status
    ))
}

/// Both first copies of the superblock cannot be read or written: the pool serves on the others
/// and says so.
pub(super) fn superblock() -> Result<String> {
    let daemon = start()?;
    let remote = Remote::connect()?;
    remote.create_pool("tank", &[device(SOUND)])?;
    let volume = volume();
    remote.create_volume(&volume, CHUNKS * CHUNK_BYTES)?;
    remote.write(&volume, 64, 3)?;
    remote.export_pool("tank")?;

    let pool = remote.import_pool(&[device(BAD_SUPERBLOCK)])?;
    ensure!(pool.superblock_copies_failed >= 2, "{pool:?}");
    remote.verify(&volume, 64, 3)?;
    remote.write(&volume, 64, 4)?;
    let counted = Metrics::until(
        "lodestore_pool_superblock_copies_failed_total",
        "tank",
        |count| count >= 2.0,
    )?;
    let status = lodectl(&["pool", "status", "tank"])?;
    ensure!(status.contains("other copies served"), "{status}");
    remote.export_pool("tank")?;

    let pool = remote.import_pool(&[device(SOUND)])?;
    ensure!(pool.superblock_copies_failed == 0, "{pool:?}");
    remote.verify(&volume, 64, 4)?;
    stop(daemon)?;
    Ok(format!("{counted} accesses to copies failed, all is there"))
}

/// A block of the journal cannot be written. It has no copy: what needs it is not acknowledged,
/// the pool turns read-only and says so, and nothing that was acknowledged is lost.
pub(super) fn journal() -> Result<String> {
    let daemon = start()?;
    let remote = Remote::connect()?;
    remote.create_pool("tank", &[device(SOUND)])?;
    let volume = volume();
    remote.create_volume(&volume, COMMITS * CHUNK_BYTES)?;
    remote.export_pool("tank")?;

    remote.import_pool(&[device(BAD_JOURNAL)])?;
    let mut acknowledged = 0;
    let refused = loop {
        ensure!(acknowledged < COMMITS, "the bad block was never written");
        let data = content(acknowledged, 5).into();
        let place = acknowledged * CHUNK_BYTES;
        let write = remote.client.write(&volume, place, data, Durability::Data);
        match remote.run(write) {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
    };
    remote.verify(&volume, acknowledged, 5)?;
    let pool = remote.run(remote.client.pool("tank"))?;
    ensure!(pool.state() == PoolState::Failed, "{pool:?}");
    let status = lodectl(&["pool", "status", "tank"])?;
    ensure!(status.contains("failed: "), "{status}");
    Metrics::until("lodestore_pool_ready", "tank", |ready| ready == 0.0)?;
    remote.export_pool("tank")?;

    remote.import_pool(&[device(SOUND)])?;
    remote.verify(&volume, acknowledged, 5)?;
    remote.write(&volume, CHUNKS, 6)?;
    stop(daemon)?;
    Ok(format!(
        "after {acknowledged} writes {refused} ({}); then all of them are there",
        pool.failure
    ))
}

fn start() -> Result<Daemon> {
    // Its namespaces cannot all be read, and what cannot be read counts as in use.
    lodectl(&["device", "bind", ADDRESS, "--even-in-use"])?;
    Daemon::start()
}

fn stop(daemon: Daemon) -> Result<()> {
    let status = daemon.end(Signal::TERM)?;
    ensure!(status.success(), "the daemon stopped with {status}");
    Ok(())
}

/// The one chunk that was lost.
fn only(lost: &[Lost], status: u32) -> Result<Lost> {
    let [one] = lost else {
        anyhow::bail!("not one lost chunk: {lost:?}");
    };
    let is_exact = one.reason == ErrorReason::MediaError
        && one.range.1 == CHUNK_BYTES
        && one.status.map(|found| found & 0x7FF) == Some(status);
    ensure!(is_exact, "{one:?}");
    Ok(one.clone())
}

/// Waits until the metrics show failures of the media by `operation` under this namespace.
fn counted(namespace: u32, operation: &str) -> Result<()> {
    let labels = format!("device=\"{}\",operation=\"{operation}\"", device(namespace));
    Metrics::until("lodestore_nvme_media_failures_total", &labels, |count| {
        count >= 1.0
    })?;
    Ok(())
}

fn volume() -> VolumeName {
    VolumeName::new("tank", "disk")
}

fn device(namespace: u32) -> String {
    format!("vfio:{ADDRESS}?namespace={namespace}")
}

const ADDRESS: &str = "0000:00:14.0";
const SOUND: u32 = 1;
const BAD_READ: u32 = 2;
const BAD_WRITE: u32 = 3;
const BAD_SUPERBLOCK: u32 = 4;
const BAD_JOURNAL: u32 = 5;
/// Enough of them that the bad block of data is one.
const CHUNKS: u64 = 128;
/// Enough of them that the journal comes to its bad block, a commit each.
const COMMITS: u64 = 320;
