//! The daemon's poll modes on a real controller: what each costs when idle, what interrupts it
//! takes under load, and that none of them loses a request.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use lode_api::client::{Client, IoOptions, IoSession, VolumeName};
use lode_api::v1::Durability;
use lode_units::{Clock, MonotonicClock, Random, SeededRandom};
use lode_vfio::PciAddress;
use rustix::process::Signal;

use super::daemon::{address, device};
use crate::kernel;
use crate::lodectl::lodectl;
use crate::service::Daemon;

/// Idle time of the two modes that sleep; then load in all three.
pub(super) fn sleep() -> Result<String> {
    let address = address()?;
    lodectl(&["device", "bind", &address.to_string()])?;
    let daemon = Daemon::start()?;
    lodectl(&["pool", "create", "tank", &device(address), "--overwrite"])?;
    lodectl(&["volume", "create", "disk", "--size", "32MiB"])?;
    daemon.end(Signal::TERM)?;
    let mut findings = Vec::new();
    for mode in ["adaptive", "interrupt", "always"] {
        let finding = in_mode(address, mode).with_context(|| format!("poll = {mode}"))?;
        findings.push(format!("{mode}: {finding}"));
    }
    Ok(findings.join("; "))
}

/// One daemon in one mode.
fn in_mode(address: PciAddress, mode: &str) -> Result<String> {
    let daemon = Daemon::start_with(&["--poll", mode])?;
    lodectl(&["pool", "import", &device(address)])?;
    let idle = match mode {
        "always" => String::new(),
        _ => format!("{} idle, ", idle_share(&daemon)?),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let load = async {
        let client = Client::connect(Daemon::ADDRESS).await?;
        let volume = VolumeName::new("tank", "disk");
        let session = client.open_io(&volume, IoOptions::default()).await?;
        let before = interrupts(address)?;
        alone(&session).await.context("one at a time")?;
        let between = interrupts(address)?;
        together(session).await.context("many at once")?;
        Ok::<_, anyhow::Error>((between - before, interrupts(address)? - between))
    };
    let bounded = async { tokio::time::timeout(PATIENCE, load).await };
    let (gaps, burst) = runtime.block_on(bounded)??;
    match mode {
        "always" => ensure!(gaps + burst == 0, "{gaps} + {burst} interrupts"),
        // A request with nothing before or after it sleeps for its one command.
        "interrupt" => ensure!(gaps >= ALONE, "{gaps} interrupts for {ALONE} requests"),
        // Those of a burst cost interrupts until they are seen to be of no use.
        _ => ensure!(
            burst < TOGETHER / 2,
            "{burst} interrupts in a burst of {TOGETHER}"
        ),
    }
    let status = daemon.end(Signal::TERM)?;
    ensure!(status.success(), "the daemon stopped with {status}");
    Ok(format!(
        "{idle}{gaps} interrupts for {ALONE} requests with gaps, {burst} for {TOGETHER} in a burst"
    ))
}

/// How much of a processor the daemon uses while nothing asks it for anything; an error when it
/// is too much. What disturbs an emulated processor only adds to it: the first of a few periods
/// that stays below the bound counts.
fn idle_share(daemon: &Daemon) -> Result<String> {
    let mut share = 1.0;
    for _ in 0..IDLE_PERIODS {
        let clock = MonotonicClock::new();
        // What the last command began comes to its end first.
        pause_until(&clock, SETTLING);
        let (from, before) = (clock.now(), daemon.processor_time()?);
        pause_until(&clock, SETTLING + IDLE);
        let passed = clock.now().saturating_duration_since(from);
        let used = daemon.processor_time()? - before;
        share = used.as_secs_f64() / passed.as_secs_f64();
        if share < IDLE_SHARE_MAX {
            break;
        }
    }
    let percent = 100.0 * share;
    ensure!(share < IDLE_SHARE_MAX, "{percent:.1} % used while idle");
    Ok(format!("{percent:.1} %"))
}

fn pause_until(clock: &MonotonicClock, moment: Duration) {
    let origin = lode_units::Instant::ZERO;
    while clock.now().saturating_duration_since(origin) < moment {
        kernel::pause();
    }
}

/// Requests of which each waits for the one before and for a random time: writes, and reads that
/// look for what was written.
async fn alone(session: &IoSession) -> Result<()> {
    let mut random = SeededRandom::new(3);
    let mut expected = [None; BLOCKS];
    for _ in 0..ALONE {
        tokio::time::sleep(Duration::from_micros(random.below(3000))).await;
        let block = random.below(BLOCKS as u64);
        let slot = &mut expected[usize::try_from(block)?];
        let offset = block * BLOCK_BYTES;
        match *slot {
            Some(value) if random.below(2) == 0 => {
                let found = session.read(offset, BLOCK_LENGTH).await?;
                let is_whole = found.iter().all(|byte| *byte == value);
                ensure!(is_whole, "block {block} does not hold {value}");
            }
            _ => {
                let value = u8::try_from(random.below(256))?;
                let data = Bytes::from(vec![value; usize::try_from(BLOCK_LENGTH)?]);
                session.write(offset, data, Durability::None).await?;
                *slot = Some(value);
            }
        }
    }
    Ok(())
}

/// Reads without gaps, many in flight.
async fn together(session: IoSession) -> Result<()> {
    let session = Arc::new(session);
    let mut readers = tokio::task::JoinSet::new();
    for reader in 0..READERS {
        let session = Arc::clone(&session);
        readers.spawn(async move {
            for round in 0..TOGETHER / READERS {
                let block = (reader * 7 + round) % BLOCKS as u64;
                session.read(block * BLOCK_BYTES, BLOCK_LENGTH).await?;
            }
            Ok::<_, anyhow::Error>(())
        });
    }
    while let Some(ended) = readers.join_next().await {
        ended??;
    }
    Ok(())
}

/// How often the vectors of a controller have fired, on all processors.
fn interrupts(address: PciAddress) -> Result<u64> {
    let directory = format!("/sys/bus/pci/devices/{address}/msi_irqs");
    let Ok(entries) = std::fs::read_dir(directory) else {
        // It has no vector enabled.
        return Ok(0);
    };
    let numbers: Vec<_> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    let table = std::fs::read_to_string("/proc/interrupts")?;
    let lines = table.lines().filter_map(|line| line.split_once(':'));
    let counts = lines
        .filter(|(number, _)| numbers.iter().any(|known| known == number.trim()))
        .flat_map(|(_, counts)| {
            counts
                .split_whitespace()
                .map_while(|word| word.parse::<u64>().ok())
        });
    Ok(counts.sum())
}

const BLOCKS: usize = 64;
const BLOCK_LENGTH: u32 = 4096;
const BLOCK_BYTES: u64 = 4096;
/// Requests with gaps.
const ALONE: u64 = 500;
/// In how many periods the daemon may show that it sleeps.
const IDLE_PERIODS: u32 = 3;
/// Requests in a burst, over so many tasks.
const TOGETHER: u64 = 3200;
const READERS: u64 = 32;
const SETTLING: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(10);
const IDLE_SHARE_MAX: f64 = 0.02;
/// What is not over by then is lost.
const PATIENCE: Duration = Duration::from_secs(60);
