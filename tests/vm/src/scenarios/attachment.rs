//! A namespace that is taken from the controller under the daemon, and given back.

use anyhow::{Result, bail, ensure};
use lode_api::client::VolumeName;
use lode_api::v1::ErrorReason;
use rustix::process::Signal;

use crate::kernel;
use crate::lodectl::lodectl;
use crate::metrics::Metrics;
use crate::passthrough::{Attachment, change_attachment};
use crate::remote::{CHUNK_BYTES, Lost, Remote};
use crate::rig::bind;
use crate::service::Daemon;

/// Another controller of the subsystem detaches a namespace with a pool: the event is counted,
/// metrics and status say that the device is gone, and its requests are refused with that, while
/// the pool on the other namespace is served. When the namespace is back, so is the device; a pool
/// that could not write its metadata meanwhile says so, and is whole once it is imported anew.
pub(super) fn attachment() -> Result<String> {
    // The emulated subsystem looks only whether the controller that takes the command has the
    // namespace: that one is concerned as well, and comes last.
    let both = [
        kernel::controller_id(OURS.parse()?)?,
        kernel::controller_id(THEIRS.parse()?)?,
    ];
    let change = |change| change_attachment(THEIRS.parse()?, change, 1, &both);
    bind(OURS.parse()?)?;
    let daemon = Daemon::start()?;
    let remote = Remote::connect()?;
    for (pool, namespace) in [("taken", 1), ("left", 2)] {
        remote.create_pool(pool, &[device(namespace)])?;
        remote.create_volume(&volume(pool), CHUNKS * CHUNK_BYTES)?;
        remote.write(&volume(pool), CHUNKS, 1)?;
    }
    let events = "lodestore_nvme_async_events_total";
    let before = Metrics::read()?.expect(events, OURS)?;

    change(Attachment::Detach)?;
    // Whether the daemon knows it already or not.
    gone(&remote.verify_all(&volume("taken"), CHUNKS, 1)?, CHUNKS)?;
    until_attached(0.0)?;
    let raised = Metrics::read()?.expect(events, OURS)? - before;
    ensure!(raised >= 1.0, "{raised} events");
    let status = lodectl(&["pool", "status", "taken"])?;
    ensure!(status.contains("gone"), "{status}");
    let status = lodectl(&["pool", "status", "left"])?;
    ensure!(!status.contains("gone"), "{status}");
    gone(&remote.write_all(&volume("taken"), CHUNKS, 2)?, CHUNKS)?;
    remote.write(&volume("left"), CHUNKS, 2)?;
    remote.verify(&volume("left"), CHUNKS, 2)?;

    change(Attachment::Attach)?;
    until_attached(1.0)?;
    let status = lodectl(&["pool", "status", "taken"])?;
    ensure!(!status.contains("gone"), "{status}");
    remote.verify(&volume("taken"), CHUNKS, 1)?;
    remote.write(&volume("taken"), CHUNKS, 3)?;

    change(Attachment::Detach)?;
    // What the pool itself has to write cannot be written.
    let new = VolumeName::new("taken", "new");
    let Err(refusal) = remote.create_volume(&new, CHUNKS * CHUNK_BYTES) else {
        bail!("a volume without a device for it");
    };
    let status = lodectl(&["pool", "status", "taken"])?;
    ensure!(status.contains("failed: "), "{status}");
    change(Attachment::Attach)?;
    until_attached(1.0)?;
    remote.export_pool("taken")?;
    remote.import_pool(&[device(1)])?;
    remote.verify(&volume("taken"), CHUNKS, 3)?;
    remote.create_volume(&new, CHUNKS * CHUNK_BYTES)?;
    remote.write(&new, CHUNKS, 4)?;
    remote.verify(&new, CHUNKS, 4)?;
    remote.verify(&volume("left"), CHUNKS, 2)?;
    let status = daemon.end(Signal::TERM)?;
    ensure!(status.success(), "the daemon stopped with {status}");
    Ok(format!(
        "{raised} event for the first change; a new volume meanwhile: {refusal:#}"
    ))
}

/// Every chunk was refused because its device is gone.
fn gone(lost: &[Lost], chunks: u64) -> Result<()> {
    let is_gone = |lost: &Lost| lost.reason == ErrorReason::DeviceGone;
    ensure!(
        lost.len() as u64 == chunks && lost.iter().all(is_gone),
        "{} of {chunks}: {lost:?}",
        lost.len()
    );
    Ok(())
}

fn until_attached(wanted: f64) -> Result<()> {
    let label = format!("device=\"{}\"", device(1));
    let series = "lodestore_nvme_namespace_attached";
    Metrics::until(series, &label, |attached| attached == wanted)?;
    Ok(())
}

fn volume(pool: &str) -> VolumeName {
    VolumeName::new(pool, "disk")
}

fn device(namespace: u32) -> String {
    format!("vfio:{OURS}?namespace={namespace}")
}

/// The controller that the daemon has.
const OURS: &str = "0000:00:15.0";
/// Another one of the same subsystem, which the kernel's driver keeps.
const THEIRS: &str = "0000:00:16.0";
const CHUNKS: u64 = 32;
