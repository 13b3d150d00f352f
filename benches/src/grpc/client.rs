//! The client: a closed loop of 4 KiB random reads.

use std::rc::Rc;
use std::time::Duration;

use anyhow::ensure;
use lode_api::Client;
use lode_api::client::{IoOptions, IoSession, Wait};
use lode_units::{Clock, Instant, MonotonicClock, Random, SeededRandom};
use tokio::task::spawn_local;

use super::{Reached, SPAN_BYTES, volume, wire};
use crate::rounds::Sample;

/// How the reads are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Over one Io stream, by the client library.
    Session,
    /// Over one Io stream, by the leanest client there can be.
    Wire,
    /// Each by a call of its own.
    Unary,
}

/// One closed loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking {
    pub(super) asked: Asked,
    /// Requests in flight.
    pub(super) depth: usize,
}

/// Keeps as many reads in flight as asked for a while. Opening the stream is not measured.
pub(super) async fn ask(server: Reached, asking: Asking) -> anyhow::Result<Sample> {
    match asking.asked {
        Asked::Session => {
            let options = IoOptions {
                credits: 0,
                wait: Wait::BusyPoll,
            };
            let session = Rc::new(server.client.open_io(&volume(), options).await?);
            let sample = measure(asking.depth, &session, stream_reads).await?;
            if let Ok(session) = Rc::try_unwrap(session) {
                session.close().await;
            }
            Ok(sample)
        }
        Asked::Wire => wire::read(server.address, asking.depth).await,
        Asked::Unary => measure(asking.depth, &Rc::new(server.client), unary_reads).await,
    }
}

async fn measure<T: 'static, F: Future<Output = anyhow::Result<u64>> + 'static>(
    depth: usize,
    target: &Rc<T>,
    reads: impl Fn(Rc<T>, SeededRandom, While) -> F,
) -> anyhow::Result<Sample> {
    let measuring = While::begin();
    let readers: Vec<_> = (0..depth)
        .map(|index| {
            let random = SeededRandom::new(index as u64 + 1);
            spawn_local(reads(Rc::clone(target), random, measuring))
        })
        .collect();
    let mut operations = 0;
    for reader in readers {
        operations += reader.await??;
    }
    Ok(measuring.sample(operations))
}

/// The time for which is measured. A sample has a length in time: on a busy machine a number of
/// requests could take for ever.
#[derive(Clone, Copy, Debug)]
pub(super) struct While {
    clock: MonotonicClock,
    start: Instant,
}

impl While {
    pub(super) fn begin() -> Self {
        let clock = MonotonicClock::new();
        let start = clock.now();
        Self { clock, start }
    }

    pub(super) fn goes_on(&self) -> bool {
        self.elapsed() < SAMPLE
    }

    pub(super) fn sample(&self, operations: u64) -> Sample {
        Sample {
            operations,
            elapsed: self.elapsed(),
        }
    }

    fn elapsed(&self) -> Duration {
        self.clock.now().saturating_duration_since(self.start)
    }
}

async fn stream_reads(
    session: Rc<IoSession>,
    mut random: SeededRandom,
    measuring: While,
) -> anyhow::Result<u64> {
    let mut operations = 0;
    while measuring.goes_on() {
        let data = session.read(offset_bytes(&mut random), READ_BYTES).await?;
        ensure!(!data.is_empty(), "a read without data");
        operations += 1;
    }
    Ok(operations)
}

async fn unary_reads(
    client: Rc<Client>,
    mut random: SeededRandom,
    measuring: While,
) -> anyhow::Result<u64> {
    let volume = volume();
    let mut operations = 0;
    while measuring.goes_on() {
        let data = client
            .read(&volume, offset_bytes(&mut random), READ_BYTES)
            .await?;
        ensure!(!data.is_empty(), "a read without data");
        operations += 1;
    }
    Ok(operations)
}

pub(super) fn offset_bytes(random: &mut SeededRandom) -> u64 {
    random.below(SPAN_BYTES / u64::from(READ_BYTES)) * u64::from(READ_BYTES)
}

pub(super) const READ_BYTES: u32 = 4096;
const SAMPLE: Duration = Duration::from_millis(300);
