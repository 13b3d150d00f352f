//! The gRPC server: services, their routes, and the HTTP/2 connections that carry them.

use std::sync::Arc;
use std::time::Duration;

use hyper::rt::Executor;
use hyper::server::conn::http2::Builder;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use lode_api::FILE_DESCRIPTOR_SET;
use lode_api::v1::info_service_server::InfoServiceServer;
use lode_api::v1::pool_service_server::PoolServiceServer;
use lode_api::v1::stats_service_server::StatsServiceServer;
use lode_api::v1::volume_service_server::VolumeServiceServer;
use lode_engine::ShardStats;
use lode_reactor::{Connection, CoreHandle, Hosted, Listener, accept};
use lode_units::{Clock, Instant, MonotonicClock};
use tokio::sync::{Semaphore, watch};
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use crate::block::BlockRoutes;
use crate::deadline::Deadlines;
use crate::http::CoreProbe;
use crate::info::Info;
use crate::pool::Pools;
use crate::pool_manager::PoolManager;
use crate::stats::{Stats, Watched};
use crate::volume::Volumes;

/// What all services know.
pub(crate) struct Shared {
    pub(crate) clock: MonotonicClock,
    pub(crate) started_at: Instant,
    pub(crate) core_count: u32,
    pub(crate) pools: Arc<dyn PoolManager>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Shared")
            .field("started_at", &self.started_at)
            .field("core_count", &self.core_count)
            .finish_non_exhaustive()
    }
}

/// The gRPC server. Clones share their state; connections are served on cores, by
/// [`Server::serve`].
#[derive(Clone)]
pub struct Server {
    routes: Deadlines<Routes>,
    health: HealthReporter,
    stopping: Arc<watch::Sender<bool>>,
    places: Arc<Semaphore>,
    watched: Arc<Watched>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Server").finish_non_exhaustive()
    }
}

impl Server {
    /// A server over as many cores, with the pools of `pools`.
    ///
    /// # Panics
    /// When the descriptors built into the program cannot be decoded, which the build rules out.
    #[must_use]
    pub fn new(clock: MonotonicClock, core_count: u32, pools: Arc<dyn PoolManager>) -> Self {
        let shared = Arc::new(Shared {
            clock,
            started_at: clock.now(),
            core_count,
            pools,
        });
        let health = HealthReporter::new();
        let watched = Arc::new(Watched::default());
        let stopping = Arc::new(watch::Sender::new(false));
        let routes = Routes::new(BlockRoutes::new())
            .add_service(VolumeServiceServer::new(Volumes))
            .add_service(PoolServiceServer::new(Pools::new(Arc::clone(&shared))))
            .add_service(InfoServiceServer::new(Info::new(Arc::clone(&shared))))
            .add_service(StatsServiceServer::new(Stats::new(
                shared,
                Arc::clone(&watched),
                stopping.subscribe(),
            )))
            .add_service(HealthServer::new(HealthService::from_health_reporter(
                health.clone(),
            )));
        Self {
            routes: Deadlines::new(with_reflection(routes).prepare()),
            health,
            stopping,
            watched,
            places: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
        }
    }

    /// Lets clients watch what a core and its shard do. Done at the start.
    pub fn watch_core(&self, core: impl CoreProbe + 'static, shard: Arc<ShardStats>) {
        self.watched.add(core, shard);
    }

    /// Tells health clients whether the server serves: the server as a whole and each service.
    pub async fn set_serving(&self, is_serving: Serving) {
        let status = match is_serving {
            Serving::Yes => ServingStatus::Serving,
            Serving::No => ServingStatus::NotServing,
        };
        for service in SERVICES {
            self.health.set_service_status(service, status).await;
        }
    }

    /// Takes connections in from `listener` and serves them on `cores`, spread evenly. Ends when
    /// the server stops or every core has ended.
    pub async fn serve<H: Hosted>(self, listener: Listener, cores: Vec<CoreHandle<H>>) {
        let mut stopping = self.stopping.subscribe();
        let server = self.clone();
        let accepting = accept(listener, cores, move |connection| {
            server.clone().serve_connection(connection)
        });
        tokio::select! {
            () = accepting => {}
            _stopped = stopping.wait_for(|is_stopping| *is_stopping) => {}
        }
    }

    /// Serves one connection on the core that this runs on, until it ends. A connection that is
    /// open when the server stops is told to go away, and ends with its last call; one that is too
    /// many is closed at once.
    pub async fn serve_connection(self, connection: Connection) {
        let Ok(_place) = self.places.try_acquire() else {
            tracing::warn!(CONNECTIONS_MAX, "a connection too many was closed");
            return;
        };
        let mut stopping = self.stopping.subscribe();
        let service = TowerToHyperService::new(self.routes);
        let served = http2_builder().serve_connection(TokioIo::new(connection), service);
        let mut served = std::pin::pin!(served);
        let ended = tokio::select! {
            ended = &mut served => ended,
            _stopped = stopping.wait_for(|is_stopping| *is_stopping) => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended with an error");
        }
    }

    /// Stops: no more connections are taken in, those open are told to go away. Calls under way
    /// go on until they end or their core does.
    pub async fn stop(&self) {
        self.set_serving(Serving::No).await;
        self.stopping.send_replace(true);
    }
}

/// Whether the server serves, as health clients are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// It does.
    Yes,
    /// It starts or stops.
    No,
}

/// The settings of every HTTP/2 connection: windows, frames, limits and signs of life. Runs what
/// a connection spawns on the thread that serves it.
#[must_use]
pub fn http2_builder() -> Builder<LocalExecutor> {
    let mut builder = Builder::new(LocalExecutor);
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_concurrent_streams(CALLS_PER_CONNECTION_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    builder
}

/// Runs what a connection spawns on the connection's own thread.
#[derive(Clone, Copy, Debug)]
pub struct LocalExecutor;

impl<F> Executor<F> for LocalExecutor
where
    F: Future<Output: 'static> + 'static,
{
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

/// Adds reflection in both versions: some clients ask for the newer one only, some for the older.
fn with_reflection(routes: Routes) -> Routes {
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let newer = builder().build_v1().expect("the descriptors of this build");
    let older = builder()
        .build_v1alpha()
        .expect("the descriptors of this build");
    routes.add_service(newer).add_service(older)
}

/// The services whose health is told; the empty name is the server as a whole.
const SERVICES: [&str; 6] = [
    "",
    "lodestore.v1.InfoService",
    "lodestore.v1.PoolService",
    "lodestore.v1.VolumeService",
    "lodestore.v1.BlockService",
    "lodestore.v1.StatsService",
];

/// What a client may send on a stream, and on all of a connection, before it is read.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// The longest frame that a client may send: each costs it a system call.
const FRAME_BYTES_MAX: u32 = 1 << 20;
/// What is gathered for a client on one stream before its call waits.
const SEND_BUFFER_BYTES: usize = 1 << 20;
/// How many connections the server has at once, on all cores.
const CONNECTIONS_MAX: usize = 1024;
const CALLS_PER_CONNECTION_MAX: u32 = 256;
const HEADER_BYTES_MAX: u32 = 64 << 10;
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
