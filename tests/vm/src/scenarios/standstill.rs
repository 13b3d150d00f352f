//! A device that stands still, and all that follows from it, in one go. The host can limit the rate
//! of the disk behind it to next to nothing: commands that wait for that cannot be aborted, and
//! end when the controller is reset.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use bytes::Bytes;
use lode_api::client::{IoOptions, IoSession, VolumeName};
use lode_api::v1::Durability;
use rustix::process::Signal;
use tokio::time::timeout;

use super::hang::check_truth;
use crate::host;
use crate::kernel;
use crate::metrics::Metrics;
use crate::remote::{CHUNK_BYTES, Lost, Remote, content, join, lost_by};
use crate::rig::bind;
use crate::service::Daemon;

/// Reads and writes of several clients never complete: their deadlines pass, they are aborted,
/// which does not help, and the controller is reset. The device has let go of them only then, with
/// a last access to the memory of each: no buffer may have changed hands before, also not those of
/// a client that has left. The reads are repeated and right, a refused write has left the old or
/// the new content, every other one is there; and a pool on another controller is served all the
/// time.
pub(super) fn hang() -> Result<String> {
    bind(STILL.parse()?)?;
    bind(MOVING.parse()?)?;
    let daemon = Daemon::start()?;
    let remote = Remote::connect()?;
    remote.create_pool("still", &[format!("vfio:{STILL}?namespace=4")])?;
    remote.create_pool("moving", &[format!("vfio:{MOVING}?namespace=1")])?;
    for volume in [read(), written(), beside()] {
        remote.create_volume(&volume, CHUNKS * CHUNK_BYTES)?;
        remote.write(&volume, CHUNKS, 1)?;
    }
    let clients = Clients::default();
    let (counts, unread, rounds) = thread::scope(|scope| {
        let reader = scope.spawn(|| clients.read());
        let writer = scope.spawn(|| clients.write());
        let bystander = scope.spawn(|| clients.stand_by());
        let counts = stand_still(&clients);
        clients.is_over.store(true, Ordering::Relaxed);
        // What went wrong with a client says more than what was not counted because of it.
        let (unread, rounds) = (ended(reader)?, ended(writer)?);
        ended(bystander)?;
        anyhow::Ok((counts?, unread, rounds))
    })?;
    ensure!(unread.is_empty(), "reads were not repeated: {unread:?}");
    check_truth(&rounds.lost)?;
    rounds.check(&remote)?;
    remote.verify(&read(), CHUNKS, 1)?;
    remote.write(&read(), CHUNKS, 3)?;
    remote.verify(&read(), CHUNKS, 3)?;
    let blocked = kernel::blocked_accesses()?;
    ensure!(blocked.is_empty(), "stray accesses: {blocked:?}");
    let status = daemon.end(Signal::TERM)?;
    ensure!(status.success(), "the daemon stopped with {status}");
    Ok(format!(
        "{counts}; {} writes refused, no read",
        rounds.lost.len()
    ))
}

/// Stops the device, waits for what the daemon does about it, and until it works again; what was
/// counted meanwhile.
fn stand_still(clients: &Clients) -> Result<String> {
    clients.pass(&clients.reads, 1)?;
    clients.pass(&clients.writes, 1)?;
    host::monitor_quietly("qom-set -j /objects/limited limits {\"bps-total\":1}")?;
    let aborts = leave().and_then(|()| {
        let done = clients.done();
        clients.pass(&clients.others, 2)?;
        let aborts = Metrics::until("lodestore_nvme_aborts_total", STILL, |count| count >= 1.0)?;
        ensure!(clients.done() == done, "reads or writes go on");
        Ok(aborts)
    });
    // Whoever waits already does so for hours more; what comes after the reset need not wait.
    host::monitor_quietly("qom-set -j /objects/limited limits {\"bps-total\":0}")?;
    let aborts = aborts?;
    let resets = Metrics::until("lodestore_nvme_resets_total", STILL, |count| count >= 1.0)?;
    clients.pass(&clients.reads, 2)?;
    clients.pass(&clients.writes, 2)?;
    let timeouts = Metrics::read()?.expect("lodestore_nvme_timeouts_total", STILL)?;
    ensure!(timeouts >= LEFT, "only {timeouts} deadlines");
    Ok(format!(
        "{timeouts} deadlines, {aborts} aborts, {resets} resets"
    ))
}

/// A client that loses its patience: it leaves with its reads under way.
fn leave() -> Result<()> {
    let remote = Remote::connect()?;
    remote.run(async {
        let session = remote.client.open_io(&read(), IoOptions::default()).await?;
        let length = u32::try_from(CHUNK_BYTES)?;
        let reads = (0..CHUNKS).map(|chunk| session.read(chunk * CHUNK_BYTES, length));
        let ended = timeout(PATIENCE, join(reads.collect())).await;
        ensure!(ended.is_err(), "the device goes on: {ended:?}");
        Ok(())
    })
}

/// What the clients share: how often each has gone over its volume, and whether that is enough.
#[derive(Default)]
struct Clients {
    reads: AtomicU64,
    writes: AtomicU64,
    others: AtomicU64,
    is_over: AtomicBool,
}

impl Clients {
    /// How often reads and writes have gone over their volumes.
    fn done(&self) -> [u64; 2] {
        [&self.reads, &self.writes].map(|counter| counter.load(Ordering::Relaxed))
    }

    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    /// Waits until one of them has gone over its volume `count` times more.
    fn pass(&self, counter: &AtomicU64, count: u64) -> Result<()> {
        let wanted = counter.load(Ordering::Relaxed) + count;
        for _ in 0..2 * kernel::WAIT_STEPS {
            if counter.load(Ordering::Relaxed) >= wanted {
                return Ok(());
            }
            kernel::pause();
        }
        Err(anyhow!("a client does not get on"))
    }

    /// Reads and compares; whatever could not be read.
    fn read(&self) -> Result<Vec<Lost>> {
        let remote = Remote::connect()?;
        let mut lost = Vec::new();
        while self.goes_on() {
            lost.extend(remote.verify_all(&read(), CHUNKS, 1)?);
            self.reads.fetch_add(1, Ordering::Relaxed);
        }
        Ok(lost)
    }

    /// Writes, each time something else.
    fn write(&self) -> Result<Rounds> {
        let remote = Remote::connect()?;
        remote.run(async {
            let session = remote
                .client
                .open_io(&written(), IoOptions::default())
                .await?;
            let mut rounds = Rounds::new();
            while self.goes_on() {
                rounds.next(&session).await?;
                self.writes.fetch_add(1, Ordering::Relaxed);
            }
            Ok(rounds)
        })
    }

    /// Writes and reads on the other controller, where nothing may be lost.
    fn stand_by(&self) -> Result<()> {
        let remote = Remote::connect()?;
        for round in 2.. {
            if !self.goes_on() {
                break;
            }
            remote.write(&beside(), CHUNKS, round)?;
            remote.verify(&beside(), CHUNKS, round)?;
            self.others.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// What a writer knows of its volume.
struct Rounds {
    /// The last round that was written, or tried.
    last: u64,
    /// The last one of each chunk that was acknowledged.
    acknowledged: Vec<u64>,
    lost: Vec<Lost>,
}

impl Rounds {
    fn new() -> Self {
        Self {
            last: 1,
            acknowledged: (0..CHUNKS).map(|_| 1).collect(),
            lost: Vec::new(),
        }
    }

    /// Writes every chunk, all at a time.
    async fn next(&mut self, session: &IoSession) -> Result<()> {
        self.last += 1;
        let writes = (0..CHUNKS).map(|chunk| {
            let data = Bytes::from(content(chunk, self.last));
            session.write(chunk * CHUNK_BYTES, data, Durability::Data)
        });
        let ended = join(writes.collect()).await;
        for (acknowledged, ended) in self.acknowledged.iter_mut().zip(ended) {
            match ended {
                Ok(_) => *acknowledged = self.last,
                Err(error) => self.lost.push(lost_by(&error)?),
            }
        }
        Ok(())
    }

    /// Fails unless each chunk holds its last acknowledged round, or one that was refused later.
    fn check(&self, remote: &Remote) -> Result<()> {
        let volume = written();
        for (chunk, acknowledged) in (0..).zip(&self.acknowledged) {
            let read = remote.client.read(&volume, chunk * CHUNK_BYTES, 4096);
            let found = remote.run(read)?;
            let is_there = (*acknowledged..=self.last).any(|round| found == content(chunk, round));
            ensure!(is_there, "chunk {chunk} does not hold round {acknowledged}");
        }
        Ok(())
    }
}

fn ended<T>(client: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    client
        .join()
        .map_err(|_| anyhow!("a client panicked"))?
        .context("a client")
}

fn read() -> VolumeName {
    VolumeName::new("still", "read")
}

fn written() -> VolumeName {
    VolumeName::new("still", "written")
}

fn beside() -> VolumeName {
    VolumeName::new("moving", "beside")
}

/// The controller whose fourth namespace can be made to stand still.
const STILL: &str = "0000:00:12.0";
/// Another one, whose first namespace is sound.
const MOVING: &str = "0000:00:14.0";
const CHUNKS: u64 = 32;
/// As many requests as the client that leaves has at the device at least: one may still be let in.
const LEFT: f64 = 31.0;
/// Much less than a command's deadline.
const PATIENCE: Duration = Duration::from_secs(2);
