//! StatsService: what the server is doing, interval by interval.
//!
//! A watcher keeps the counters as it read them last and tells the difference; who does not watch
//! costs nothing. The counters are the cores' own, read from whatever core the watcher's
//! connection is on, as a scrape reads them.

mod difference;
mod reading;

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use lode_api::v1::stats_service_server::StatsService;
use lode_api::v1::{WatchStatsRequest, WatchStatsResponse};
use lode_engine::ShardStats;
use lode_units::{Clock, Instant};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tonic::{Request, Response, Status};

use crate::http::CoreProbe;
use crate::server::Shared;

use reading::Reading;

/// The cores that can be watched.
#[derive(Default)]
pub(crate) struct Watched {
    cores: Mutex<Vec<Arc<WatchedCore>>>,
}

struct WatchedCore {
    probe: Box<dyn CoreProbe>,
    shard: Arc<ShardStats>,
}

/// Tells what cores and volumes do.
#[derive(Clone, Debug)]
pub(crate) struct Stats {
    shared: Arc<Shared>,
    watched: Arc<Watched>,
    stopping: watch::Receiver<bool>,
}

/// One watcher.
struct Watcher {
    stats: Stats,
    ticks: Interval,
    before: Reading,
    at: Instant,
}

impl fmt::Debug for Watched {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Watched").finish_non_exhaustive()
    }
}

impl Watched {
    pub(crate) fn add(&self, core: impl CoreProbe + 'static, shard: Arc<ShardStats>) {
        let probe = Box::new(core);
        let core = Arc::new(WatchedCore { probe, shard });
        self.cores
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(core);
    }

    fn read(&self) -> Reading {
        let cores = self
            .cores
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let figures = cores
            .iter()
            .map(|core| (core.probe.core(), core.probe.stats(), &*core.shard));
        Reading::of(figures)
    }
}

impl Stats {
    pub(crate) const fn new(
        shared: Arc<Shared>,
        watched: Arc<Watched>,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        Self {
            shared,
            watched,
            stopping,
        }
    }
}

#[tonic::async_trait]
impl StatsService for Stats {
    type WatchStatsStream =
        Pin<Box<dyn Stream<Item = Result<WatchStatsResponse, Status>> + Send + 'static>>;

    async fn watch_stats(
        &self,
        request: Request<WatchStatsRequest>,
    ) -> Result<Response<Self::WatchStatsStream>, Status> {
        let mut ticks = interval(interval_of(request.get_ref().interval_ms));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick comes at once.
        ticks.tick().await;
        let watcher = Watcher {
            before: self.watched.read(),
            at: self.shared.clock.now(),
            stats: self.clone(),
            ticks,
        };
        let stream = unfold(watcher, async |mut watcher| {
            let figures = watcher.next().await?;
            Some((Ok(figures), watcher))
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

impl Watcher {
    /// The figures of the next interval; `None` when the server stops.
    async fn next(&mut self) -> Option<WatchStatsResponse> {
        let stopping = &mut self.stats.stopping;
        tokio::select! {
            _tick = self.ticks.tick() => {}
            _stopped = stopping.wait_for(|is_stopping| *is_stopping) => return None,
        }
        let now = self.stats.shared.clock.now();
        let reading = self.stats.watched.read();
        let passed = now.saturating_duration_since(self.at);
        let figures = reading.since(&self.before, passed);
        self.before = reading;
        self.at = now;
        Some(figures)
    }
}

/// The interval that a request asks for, moved to the nearest bound.
fn interval_of(interval_ms: u32) -> Duration {
    let interval_ms = match interval_ms {
        0 => 1000,
        asked => asked.clamp(100, 60_000),
    };
    Duration::from_millis(interval_ms.into())
}
