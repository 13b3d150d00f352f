//! The daemon over a real controller, driven by its command line as a person would.

use std::fs;
use std::io::ErrorKind;

use anyhow::{Context, Result, ensure};
use lode_api::client::VolumeName;
use lode_vfio::PciAddress;
use rustix::process::Signal;

use crate::kernel;
use crate::lodectl::{attempt, lodectl, succeeded};
use crate::pattern;
use crate::remote::Remote;
use crate::rig::bind;
use crate::service::Daemon;

/// Bind, serve, be killed, serve again, stop, give back: what was written is there, and only the
/// namespace that was named was touched.
pub(super) fn daemon() -> Result<String> {
    let address = address()?;
    let first = kernel::disk_path(address, 1)?;
    lodectl(&["device", "bind", &address.to_string()])?;
    lodectl(&["doctor", &address.to_string()])?;
    let device = device(address);
    let daemon = Daemon::start()?;
    lodectl(&["pool", "create", "tank", &device])?;
    let status = lodectl(&["pool", "status", "tank", "--json"])?;
    ensure!(status.contains("\"is_emulated\": false"), "{status}");
    lodectl(&["volume", "create", "disk", "--size", "32MiB"])?;
    write(0, 1)?;
    daemon.end(Signal::KILL)?;

    let daemon = Daemon::start()?;
    lodectl(&["pool", "import", &device])?;
    verify(0, 1).context("after the kill")?;
    write(MIB, 2)?;
    let status = daemon.end(Signal::TERM)?;
    ensure!(status.success(), "the daemon stopped with {status}");

    lodectl(&["device", "unbind", &address.to_string()])?;
    let untouched = read_disk(address, 1)?;
    ensure!(
        untouched.iter().all(|byte| *byte == 0),
        "{} was written to",
        first.display()
    );
    let used = read_disk(address, 2)?;
    ensure!(used.iter().any(|byte| *byte != 0), "no pool on its disk");

    lodectl(&["device", "bind", &address.to_string()])?;
    let daemon = Daemon::start()?;
    lodectl(&["pool", "import", &device])?;
    verify(0, 1)?;
    verify(MIB, 2)?;
    daemon.end(Signal::TERM)?;
    Ok("2 MiB read back after a kill, a clean stop and the kernel's driver in between".to_owned())
}

/// The kernel wants a controller back that the daemon has: the pool is exported, the daemon
/// lives, and the pool can be used again when the controller is back.
pub(super) fn removal() -> Result<String> {
    let address = address()?;
    lodectl(&["device", "bind", &address.to_string()])?;
    let device = device(address);
    let daemon = Daemon::start()?;
    lodectl(&["pool", "create", "tank", &device, "--overwrite"])?;
    lodectl(&["volume", "create", "disk", "--size", "32MiB"])?;
    write(0, 3)?;
    // Returns when the daemon has let go and the kernel's driver has the controller.
    lodectl(&["device", "unbind", &address.to_string()])?;
    let pools = lodectl(&["pool", "list", "--json"])?;
    ensure!(pools.trim() == "[]", "{pools}");
    let refused = attempt(&["volume", "read", "disk"], &[])?;
    ensure!(!refused.status.success(), "a volume without its pool");
    let refusal = String::from_utf8_lossy(&refused.stderr).trim().to_owned();

    lodectl(&["device", "bind", &address.to_string()])?;
    lodectl(&["pool", "import", &device])?;
    verify(0, 3)?;
    let status = daemon.end(Signal::TERM)?;
    ensure!(status.success(), "the daemon stopped with {status}");
    Ok(format!("meanwhile: {refusal}; afterwards all is there"))
}

/// Again and again: the daemon starts, finds what the one before it has written, writes and stops;
/// the kernel's driver finds a healthy controller and reads the pool's disk. The clients are in
/// this process: starting a command line takes longer than all that it asks for. A guest that runs
/// this several times goes on where it was.
pub(super) fn start_stop() -> Result<String> {
    let address = address()?;
    let before = rounds_before()?;
    for round in before + 1..=before + ROUNDS {
        serve_once(address, round).with_context(|| format!("round {round}"))?;
        let used = read_disk(address, 2).with_context(|| format!("round {round}"))?;
        ensure!(used.iter().any(|byte| *byte != 0), "no pool on its disk");
        fs::write(ROUNDS_DONE, round.to_string())?;
    }
    let all = before + ROUNDS;
    Ok(format!(
        "{all} rounds so far, each with the kernel's driver"
    ))
}

/// How many rounds this guest has behind it.
fn rounds_before() -> Result<u64> {
    match fs::read_to_string(ROUNDS_DONE) {
        Ok(text) => text.parse().context("a number of rounds"),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error).context("reading the number of rounds"),
    }
}

fn serve_once(address: PciAddress, round: u64) -> Result<()> {
    bind(address)?;
    let devices = [device(address)];
    let volume = VolumeName::new("tank", "disk");
    let daemon = Daemon::start()?;
    let remote = Remote::connect()?;
    if round == 1 {
        remote.create_pool("tank", &devices)?;
        remote.create_volume(&volume, 32 * MIB)?;
    } else {
        remote.import_pool(&devices)?;
        remote.verify(&volume, CHUNKS, round - 1)?;
    }
    remote.write(&volume, CHUNKS, round)?;
    let status = daemon.end(Signal::TERM)?;
    ensure!(status.success(), "the daemon stopped with {status}");
    Ok(())
}

/// The controller of the daemon's guest.
pub(super) fn address() -> Result<PciAddress> {
    "0000:00:13.0".parse().context("an address")
}

/// Its second namespace, as the configuration names it.
pub(super) fn device(address: PciAddress) -> String {
    format!("vfio:{address}?namespace=2")
}

fn content(round: u64) -> Vec<u8> {
    pattern::blocks(0, 256, round, 4096)
}

fn write(offset: u64, round: u64) -> Result<()> {
    let line = ["volume", "write", "disk", "--offset", &offset.to_string()];
    succeeded(&line, attempt(&line, &content(round))?)?;
    Ok(())
}

fn verify(offset: u64, round: u64) -> Result<()> {
    let offset = offset.to_string();
    let line = [
        "volume", "read", "disk", "--offset", &offset, "--length", "1MiB",
    ];
    let found = succeeded(&line, attempt(&line, &[])?)?;
    ensure!(
        found == content(round),
        "at {offset} is not what round {round} wrote"
    );
    Ok(())
}

fn read_disk(address: PciAddress, namespace: u32) -> Result<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let disk = kernel::open_disk(address, namespace)?;
    let mut found = vec![0; usize::try_from(MIB)?];
    disk.read_exact_at(&mut found, 0)?;
    Ok(found)
}

const MIB: u64 = 1 << 20;
/// What each round of [`start_stop`] writes.
const CHUNKS: u64 = 8;
/// With a hundred, QEMU crashes about once (see `carry_out` in `xtask/src/vm.rs`), and
/// all of them begin anew.
const ROUNDS: u64 = 25;
/// Where the number of rounds is kept that a guest has behind it.
const ROUNDS_DONE: &str = "/tmp/rounds";
