//! The daemon over several namespaces and controllers at once.

use anyhow::{Context, Result, ensure};
use lode_api::client::VolumeName;
use lode_api::v1::WriteCache;
use lode_nvme::{ControllerOptions, WriteCachePolicy};
use lode_vfio::PciAddress;
use rustix::process::Signal;

use super::{plain, shadow};
use crate::metrics::Metrics;
use crate::remote::Remote;
use crate::rig::{Rig, bind};
use crate::service::Daemon;

/// Six namespaces of two block sizes on two controllers, with and without shadow doorbells, in
/// three pools; one of them spans both controllers. All of it survives a kill, and pools come and
/// go beside others on the same controller.
pub(super) fn namespaces() -> Result<String> {
    let (plain, shadow) = (plain()?, shadow()?);
    bind(plain)?;
    bind(shadow)?;
    let pools = [
        ("sizes", [device(plain, 1), device(plain, 2)]),
        ("across", [device(plain, 4), device(shadow, 1)]),
        ("rest", [device(plain, 5), device(plain, 3)]),
    ];
    let daemon = Daemon::start()?;
    let remote = Remote::connect()?;
    for (round, (pool, devices)) in (1..).zip(&pools) {
        remote.create_pool(pool, devices)?;
        let volume = VolumeName::new(*pool, "disk");
        remote.create_volume(&volume, VOLUME_BYTES)?;
        remote.write(&volume, CHUNKS, round)?;
    }
    let spanning = VolumeName::new("across", "large");
    remote.create_volume(&spanning, VOLUME_BYTES)?;
    remote.fill(&spanning, BEYOND_FIRST)?;
    let metrics = Metrics::read()?;
    for device in &pools[1].1 {
        let label = format!("device=\"{device}\"");
        let commands = Metrics::until("lodestore_nvme_commands_total", &label, |count| {
            count > 20.0
        });
        commands.with_context(|| format!("{device} took no part"))?;
    }
    for (address, expected) in [(plain, 0.0), (shadow, 1.0)] {
        let label = address.to_string();
        let uses = metrics.expect("lodestore_nvme_shadow_doorbells", &label)?;
        ensure!(uses == expected, "{address}: shadow doorbells {uses}");
    }
    daemon.end(Signal::KILL)?;

    let daemon = Daemon::start()?;
    let remote = Remote::connect()?;
    for (round, (pool, devices)) in (1..).zip(&pools) {
        remote.import_pool(devices)?;
        remote.verify(&VolumeName::new(*pool, "disk"), CHUNKS, round)?;
    }
    remote.check_filled(&spanning, BEYOND_FIRST)?;
    // Two of its controller's namespaces stay in use.
    remote.export_pool("rest")?;
    remote.verify(&VolumeName::new("sizes", "disk"), CHUNKS, 1)?;
    let [first, second] = pools[2].1.clone();
    remote.import_pool(&[second, first])?;
    remote.verify(&VolumeName::new("rest", "disk"), CHUNKS, 3)?;
    let status = daemon.end(Signal::TERM)?;
    ensure!(status.success(), "the daemon stopped with {status}");
    Ok(format!(
        "6 namespaces, 2 controllers, 3 pools; {BEYOND_FIRST} MiB across both controllers"
    ))
}

/// A volatile cache that is switched off and on again: the daemon says which, and forces durable
/// writes to the media exactly where there is one.
pub(super) fn write_cache() -> Result<String> {
    let address = plain()?;
    bind(address)?;
    let mut findings = Vec::new();
    for (policy, expected) in [
        (WriteCachePolicy::Disable, WriteCache::Disabled),
        (WriteCachePolicy::Enable, WriteCache::Volatile),
        (WriteCachePolicy::Disable, WriteCache::Disabled),
        (WriteCachePolicy::Enable, WriteCache::Volatile),
    ] {
        let options = ControllerOptions {
            write_cache: policy,
            ..ControllerOptions::default()
        };
        Rig::open(address, options)?.close()?;
        let forced = durable_overwrites(address, expected)?;
        findings.push(format!("{policy:?}: {forced} writes of {CHUNKS} forced"));
    }
    Ok(findings.join(", "))
}

/// How many of [`CHUNKS`] durable overwrites were forced to the media by themselves.
fn durable_overwrites(address: PciAddress, expected: WriteCache) -> Result<f64> {
    let daemon = Daemon::start()?;
    let remote = Remote::connect()?;
    let pool = remote.create_pool("cached", &[device(address, 2)])?;
    let told = pool.devices.first().context("a device")?;
    ensure!(told.write_cache() == expected, "{told:?}");
    let volume = VolumeName::new("cached", "disk");
    remote.create_volume(&volume, VOLUME_BYTES)?;
    remote.write(&volume, CHUNKS, 1)?;
    let before = Metrics::read()?.expect("lodestore_fua_writes_total", "")?;
    remote.write(&volume, CHUNKS, 2)?;
    let forced = Metrics::read()?.expect("lodestore_fua_writes_total", "")? - before;
    let is_right = match expected {
        WriteCache::Volatile => forced > 0.0,
        _ => forced == 0.0,
    };
    ensure!(is_right, "{expected:?}: {forced} writes were forced");
    remote.verify(&volume, CHUNKS, 2)?;
    let status = daemon.end(Signal::TERM)?;
    ensure!(status.success(), "the daemon stopped with {status}");
    Ok(forced)
}

fn device(address: PciAddress, namespace: u32) -> String {
    format!("vfio:{address}?namespace={namespace}")
}

const CHUNKS: u64 = 64;
const VOLUME_BYTES: u64 = 64 << 20;
/// More mebibytes than the first device of the pool across both controllers has.
const BEYOND_FIRST: u8 = 40;
