//! Starting, stopping, dying, and doing without privilege.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use lode_bus::{Bus, IovaSpace, PagePreference};
use lode_nvme::{ControllerOptions, QueueOptions};
use lode_vfio::{PciAddress, VfioBus, VfioError};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::{plain, shadow};
use crate::kernel;
use crate::pattern;
use crate::rig::{Rig, bind};
use crate::user::{USER, give_nodes};

/// Twenty times: our driver writes, the kernel's driver reads that and writes, ours reads.
pub(super) fn start_stop() -> Result<String> {
    let address = shadow()?;
    for round in 1..=ROUNDS {
        alternate(address, round).with_context(|| format!("round {round}"))?;
    }
    Ok(format!("{ROUNDS} rounds, each with both drivers"))
}

fn alternate(address: PciAddress, round: u64) -> Result<()> {
    let mut rig = Rig::start(address)?;
    let mut queue = rig.queue(1, QueueOptions::default())?;
    if round > 1 {
        rig.verify(&mut queue, (8, 8), round + 999)?;
    }
    rig.write(&mut queue, (0, 8), round)??;
    drop(queue);
    rig.close()?;
    let disk = kernel::open_disk(address, 1)?;
    let mut found = vec![0; 4096];
    disk.read_exact_at(&mut found, 0)?;
    ensure!(
        found == pattern::blocks(0, 8, round, 512),
        "the kernel reads something else"
    );
    disk.write_all_at(&pattern::blocks(8, 8, round + 1000, 512), 4096)?;
    disk.sync_all()?;
    Ok(())
}

/// A process that is killed in the middle of its writes leaves a controller that the next one
/// can use at once, and nothing that it was told is written is lost.
pub(super) fn killed() -> Result<String> {
    bind(shadow()?)?;
    let mut written = 0;
    for _ in 0..KILLS {
        let mut child = part("write-for-ever").stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("output")?;
        let mut lines = BufReader::new(output).lines();
        for _ in 0..LINES_BEFORE_KILL {
            let line = lines.next().context("the writer ended by itself")??;
            written = line.parse().with_context(|| line.clone())?;
        }
        child.kill()?;
        let status = child.wait()?;
        ensure!(!status.success(), "it was killed: {status}");
        let mut rig = Rig::open(shadow()?, ControllerOptions::default())?;
        let mut queue = rig.queue(1, QueueOptions::default())?;
        let found = rig.read(&mut queue, (100, 8))??;
        let held = (written..written + WRITES_AHEAD_MAX)
            .any(|round| found == pattern::blocks(100, 8, round, 512));
        ensure!(held, "round {written} was acknowledged and is not there");
        drop(queue);
        rig.close()?;
    }
    Ok(format!(
        "{KILLS} kills, the last after {written} acknowledged writes"
    ))
}

/// The process that is killed: says after each write which round has been acknowledged.
pub(super) fn write_for_ever() -> Result<String> {
    let mut rig = Rig::open(shadow()?, ControllerOptions::default())?;
    let mut queue = rig.queue(1, QueueOptions::default())?;
    for round in 1..WRITES_AHEAD_MAX {
        rig.write(&mut queue, (100, 8), round)??;
        rig.flush(&mut queue)??;
        println!("{round}");
    }
    bail!("nobody killed it")
}

/// The driver as an unprivileged user who owns the device nodes; and what that user is told when
/// too little memory may be locked.
pub(super) fn unprivileged() -> Result<String> {
    let address = plain()?;
    bind(address)?;
    let refused = as_user("read-as-user")?;
    ensure!(
        refused.contains("no permission"),
        "before the nodes were given: {refused}"
    );
    let _nodes = give_nodes(address)?;
    let worked = as_user("read-as-user")?;
    ensure!(worked.contains("done"), "with the nodes: {worked}");
    let locked = as_user("lock-too-much")?;
    ensure!(locked.contains("done"), "with little memory: {locked}");
    Ok(locked.replace("done ", "").trim().to_owned())
}

/// Runs a part as the unprivileged user; its output and errors.
fn as_user(name: &str) -> Result<String> {
    let output = part(name).uid(USER).gid(USER).output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Brings a controller up and reads with it.
pub(super) fn read_as_user() -> Result<String> {
    ensure!(!rustix::process::geteuid().is_root(), "root");
    let mut rig = Rig::open(plain()?, ControllerOptions::default())?;
    let mut queue = rig.queue(1, QueueOptions::default())?;
    rig.write(&mut queue, (200, 8), 5)??;
    rig.verify(&mut queue, (200, 8), 5)?;
    drop(queue);
    rig.close()?;
    Ok("an unprivileged user drove the controller".to_owned())
}

/// Maps more than may be locked.
pub(super) fn lock_too_much() -> Result<String> {
    let limit = Some(256 << 10);
    let lowered = Rlimit {
        current: limit,
        maximum: limit,
    };
    setrlimit(Resource::Memlock, lowered)?;
    let bus = VfioBus::open(plain()?)?;
    let space = IovaSpace::new();
    let small = space.allocate(64 << 10, PagePreference::Ordinary)?;
    bus.map(&small).context("what fits")?;
    let large = space.allocate(1 << 20, PagePreference::Ordinary)?;
    let Err(error) = bus.map(&large) else {
        bail!("more was locked than may be");
    };
    let source = std::error::Error::source(&error).context("a reason")?;
    let text = source.to_string();
    let expected = VfioError::MemoryLock {
        needed_bytes: (1 << 20) + (64 << 10),
        limit_bytes: 256 << 10,
    };
    ensure!(text == expected.to_string(), "{text}");
    bus.unmap(&small)?;
    Ok(text)
}

/// A reset of the whole function, after which the controller comes up again.
pub(super) fn function_reset() -> Result<String> {
    bind(plain()?)?;
    let mut rig = Rig::open(plain()?, ControllerOptions::default())?;
    let mut queue = rig.queue(1, QueueOptions::default())?;
    rig.write(&mut queue, (300, 8), 9)??;
    rig.flush(&mut queue)??;
    rig.controller.bus().reset_function().context("the reset")?;
    rig.event("recovery", |event| {
        matches!(event, lode_nvme::ControllerEvent::Recovered)
    })?;
    rig.verify(&mut queue, (300, 8), 9)?;
    let stats = rig.controller.stats();
    drop(queue);
    rig.close()?;
    Ok(format!(
        "noticed and mended with {} controller resets",
        stats.resets_completed
    ))
}

fn part(name: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["part", name]).stdin(Stdio::null());
    command
}

/// The daemon does it as well, in another scenario.
const ROUNDS: u64 = 20;
const KILLS: usize = 5;
const LINES_BEFORE_KILL: usize = 20;
/// More writes than one process makes before it is killed.
const WRITES_AHEAD_MAX: u64 = 100_000;
