//! `lodectl bench`: rate and latency of one kind of request over an Io stream.
//!
//! As many tasks as requests in flight, each asking again as soon as it is answered. Everything
//! runs on one thread, so the client costs one core at most; its share is part of the latency.

mod report;

use std::cell::Cell;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use bytes::{Bytes, BytesMut};
use hdrhistogram::Histogram;
use lode_api::Client;
use lode_api::client::{ClientError, IoOptions, IoSession, VolumeName, Wait};
use lode_api::v1::Durability;
use lode_units::{Clock, Instant, MonotonicClock, Random, SeededRandom};
use tokio::task::LocalSet;

use crate::cli::{BenchArguments, Pattern};
use crate::output::Output;
use report::Report;

/// The longest latency that is told apart from longer ones, in nanoseconds: a minute.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

pub(crate) async fn run(
    client: &Client,
    output: &Output,
    arguments: &BenchArguments,
) -> Result<()> {
    let name = VolumeName::new(arguments.pool.clone(), arguments.volume.clone());
    let options = IoOptions {
        credits: arguments.depth,
        wait: if arguments.busy_poll {
            Wait::BusyPoll
        } else {
            Wait::Sleep
        },
    };
    let session = client.open_io(&name, options).await?;
    if session.credits() < arguments.depth {
        bail!(
            "the server grants {} requests in flight, not {}",
            session.credits(),
            arguments.depth
        );
    }
    let load = Rc::new(Load::new(session, arguments)?);
    let tasks = LocalSet::new();
    let workers: Vec<_> = (0..u64::from(arguments.depth))
        .map(|index| tasks.spawn_local(Rc::clone(&load).work(index)))
        .collect();
    tasks.await;
    let mut latencies = histogram()?;
    for worker in workers {
        latencies.add(worker.await.context("a task failed")??)?;
    }
    let elapsed = load.last.get().saturating_duration_since(load.started);
    let report = Report::new(arguments, &latencies, elapsed.as_secs_f64());
    output.show(&report, Report::lines)
}

/// What the tasks share.
struct Load {
    session: IoSession,
    pattern: Pattern,
    length_bytes: u32,
    durability: Durability,
    data: Bytes,
    seed: u64,
    places: u64,
    clock: MonotonicClock,
    started: Instant,
    ends: Instant,
    /// When the latest answer came.
    last: Cell<Instant>,
    /// Requests begun so far.
    begun: Cell<u64>,
    ops_max: u64,
}

impl Load {
    fn new(session: IoSession, arguments: &BenchArguments) -> Result<Self> {
        let Ok(length_bytes) = u32::try_from(arguments.block_size.0) else {
            bail!("--block-size is beyond the server's limit");
        };
        let places = session
            .size_bytes()
            .checked_div(u64::from(length_bytes))
            .unwrap_or(0);
        if places == 0 {
            bail!("--block-size has to be from 1 up to the volume's size");
        }
        let clock = MonotonicClock::new();
        let started = clock.now();
        Ok(Self {
            session,
            pattern: arguments.rw,
            length_bytes,
            durability: arguments.durability.into(),
            data: noise(length_bytes, arguments.seed),
            seed: arguments.seed,
            places,
            clock,
            started,
            ends: started + arguments.runtime,
            last: Cell::new(started),
            begun: Cell::new(0),
            ops_max: arguments.ops.unwrap_or(u64::MAX),
        })
    }

    /// Asks again and again; the latencies in nanoseconds. The first error ends every task.
    async fn work(self: Rc<Self>, index: u64) -> Result<Histogram<u64>> {
        let mut random = SeededRandom::new(self.seed.wrapping_add(index));
        let mut latencies = histogram()?;
        let mut now = self.clock.now();
        while now < self.ends {
            let Some(place) = self.next_place(&mut random) else {
                break;
            };
            if let Err(error) = self.request(place * u64::from(self.length_bytes)).await {
                self.begun.set(self.ops_max);
                return Err(error.into());
            }
            let answered = self.clock.now();
            let latency = answered.saturating_duration_since(now);
            latencies.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
            now = answered;
            self.last.set(self.last.get().max(now));
        }
        Ok(latencies)
    }

    fn next_place(&self, random: &mut SeededRandom) -> Option<u64> {
        let begun = self.begun.get();
        if begun >= self.ops_max {
            return None;
        }
        self.begun.set(begun + 1);
        Some(match self.pattern {
            Pattern::Read | Pattern::Write => begun % self.places,
            Pattern::RandomRead | Pattern::RandomWrite => random.below(self.places),
        })
    }

    async fn request(&self, offset_bytes: u64) -> Result<(), ClientError> {
        match self.pattern {
            Pattern::Read | Pattern::RandomRead => {
                self.session.read(offset_bytes, self.length_bytes).await?;
            }
            Pattern::Write | Pattern::RandomWrite => {
                let data = self.data.clone();
                self.session
                    .write(offset_bytes, data, self.durability)
                    .await?;
            }
        }
        Ok(())
    }
}

/// Data that do not compress and are not zero.
fn noise(length_bytes: u32, seed: u64) -> Bytes {
    let length = usize::try_from(length_bytes).expect("32 bits fit a usize");
    let mut random = SeededRandom::new(seed);
    let mut data = BytesMut::with_capacity(length + 8);
    while data.len() < length {
        data.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    data.truncate(length);
    data.freeze()
}

fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).context("the bounds of the histogram")
}
