//! From a configuration to a daemon that serves, and back to nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use lode_block::{BufferPool, BufferPoolSpec};
use lode_bus::{DmaMemory, IovaSpace, PagePreference};
use lode_engine::{Shard, ShardStats};
use lode_nvme::{ControllerOptions, QueueOptions};
use lode_reactor::{Built, Core, CoreExit, CoreHandle, CoreOptions, Listener, PollMode};
use lode_server::{HttpServer, ListenAddress, Monitor, RemoteAccess, Server, Serving};
use lode_units::{CoreId, MonotonicClock};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::Cli;
use crate::config::{Config, HugePages};
use crate::drive::{DevicesSource, Opener};
use crate::manager::Manager;
use crate::node::{Interrupts, Node};
use crate::notify::{self, Bound};
use crate::pools::Pools;
use crate::registry::Registry;
use crate::welcome;

/// Runs the daemon until it is told to stop.
pub(crate) async fn run(cli: &Cli, config: &Config) -> anyhow::Result<()> {
    // Addresses first: a second daemon fails here, before it touches a device.
    let listeners = Listeners::bind(config)?;
    let started = start_core(config)?;
    let pools = Arc::new(Pools::new(started.core.clone(), started.opener));
    for pool in &config.pools {
        if let Err(error) = pools.open_configured(pool).await {
            pools.close_all(Duration::ZERO).await;
            let devices = pool.devices.join(", ");
            bail!("pool {:?} on {devices}: {error}", pool.name);
        }
        tracing::info!(pool = pool.name, "serves");
    }
    let mut monitor = Monitor::new();
    monitor.add_core(started.core.clone(), Arc::clone(&started.stats));
    monitor.add_source(DevicesSource(Arc::clone(pools.registry().devices())));
    let monitor = Arc::new(monitor);
    let manager = Arc::new(Manager::new(Arc::clone(&pools)));
    let server = Server::new(started.clock, 1, manager);
    server.watch_core(started.core.clone(), started.stats);
    let bound = listeners.serve(&server, &started.core, Arc::clone(&monitor))?;
    server.set_serving(Serving::Yes).await;
    monitor.set_serving(true);
    if let Some(path) = &cli.ready_file {
        notify::write_ready_file(path, &bound)?;
    }
    notify::ready();
    tracing::info!(grpc = ?bound.grpc, http = %bound.http, "ready");
    if cli.dev {
        crate::logging::print(&welcome::text(&bound, &cli.data_dir))?;
    }
    let reason = tokio::select! {
        reason = until_stopped(&started.core) => reason?,
        never = pools.heed_removals() => match never {},
    };
    tracing::info!(reason, "stopping");
    notify::stopping();
    monitor.set_serving(false);
    server.stop().await;
    pools.close_all(config.server.stop_grace).await;
    match started.core.shutdown(config.server.stop_grace).await {
        CoreExit::Stopped => Ok(()),
        exit => bail!("the core did not stop cleanly: {exit:?}"),
    }
}

/// A core that runs, without pools yet.
pub(crate) struct Started {
    pub(crate) core: CoreHandle<Node>,
    pub(crate) opener: Opener,
    pub(crate) clock: MonotonicClock,
    pub(crate) stats: Arc<ShardStats>,
}

/// Starts the core and allocates all memory that requests will use.
pub(crate) fn start_core(config: &Config) -> anyhow::Result<Started> {
    let clock = MonotonicClock::new();
    let space = Arc::new(IovaSpace::new());
    let preference = match config.memory.huge_pages {
        HugePages::IfReserved => PagePreference::HugeIfReserved,
        HugePages::Never => PagePreference::Ordinary,
    };
    let shard = Shard::new(&space, preference)?;
    let sizes = [
        (4 << 10, config.memory.small_buffers),
        (64 << 10, config.memory.medium_buffers),
        (1 << 20, config.memory.large_buffers),
    ];
    let sizes = sizes.map(|(length_bytes, count)| BufferPoolSpec {
        length_bytes,
        count,
    });
    let buffers = BufferPool::new(&sizes, &space, preference)?;
    tracing::info!(
        huge_pages = buffers.is_huge(),
        "memory for requests is allocated"
    );
    let memories: Arc<[DmaMemory]> = shard
        .memories()
        .chain(buffers.memories())
        .cloned()
        .collect();
    let stats = shard.stats();
    let mut options = CoreOptions::new(CoreId::new(0), clock);
    options.cpu = config.core.cpu;
    options.idle_budget = config.core.idle_budget;
    options.poll = config.core.poll.into();
    let interrupts = match options.poll {
        PollMode::Always | PollMode::Adaptive => Interrupts::RestWhenBusy,
        PollMode::Interrupt => Interrupts::Fire,
    };
    let core = Core::spawn(options, move |_context| {
        Ok(Built {
            hosted: Node::new(shard, interrupts),
            buffers,
        })
    })?;
    let registry = Arc::new(Registry::default());
    let signal = match options.poll {
        PollMode::Always => None,
        PollMode::Adaptive | PollMode::Interrupt => Some(Arc::clone(core.signal())),
    };
    let opener = Opener {
        space,
        memories,
        clock,
        registry,
        signal,
        controller: ControllerOptions::default(),
        queue: QueueOptions::default(),
    };
    Ok(Started {
        core,
        opener,
        clock,
        stats,
    })
}

/// Sockets that are bound and not served yet.
struct Listeners {
    grpc: Vec<Listener>,
    http: HttpServer,
}

impl Listeners {
    fn bind(config: &Config) -> anyhow::Result<Self> {
        let remote = if config.server.allow_remote_without_auth {
            RemoteAccess::AllowedWithoutAuth
        } else {
            RemoteAccess::Refused
        };
        let tcp = config
            .server
            .grpc
            .iter()
            .map(|listen| ListenAddress::Tcp(listen.address()));
        let unix = config.server.unix.iter().cloned().map(ListenAddress::Unix);
        let grpc = tcp
            .chain(unix)
            .map(|address| address.bind(remote))
            .collect::<Result<_, _>>()?;
        let http = HttpServer::bind(config.server.http.address(), remote)?;
        Ok(Self { grpc, http })
    }

    /// Begins to serve, and tells where.
    fn serve(
        self,
        server: &Server,
        core: &CoreHandle<Node>,
        monitor: Arc<Monitor>,
    ) -> anyhow::Result<Bound> {
        let mut grpc = Vec::new();
        for listener in self.grpc {
            grpc.extend(address(&listener)?);
            tokio::spawn(server.clone().serve(listener, vec![core.clone()]));
        }
        let http = self.http.local_address()?;
        tokio::spawn(self.http.serve(monitor));
        Ok(Bound { grpc, http })
    }
}

/// The TCP address of a listener, if it has one.
fn address(listener: &Listener) -> anyhow::Result<Option<SocketAddr>> {
    match listener {
        Listener::Tcp(tcp) => Ok(Some(tcp.local_addr()?)),
        Listener::Unix(_) => Ok(None),
    }
}

/// Waits until a signal or the end of the core; keeps the service manager's watchdog content
/// while the core answers.
async fn until_stopped(core: &CoreHandle<Node>) -> anyhow::Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let watchdog = async {
        let Some(interval) = notify::watchdog_interval() else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(interval).await;
            if core.call(|_node| ()).await.is_ok() {
                notify::alive();
            }
        }
    };
    tokio::select! {
        _signal = terminate.recv() => Ok("SIGTERM"),
        _signal = interrupt.recv() => Ok("SIGINT"),
        exit = core.exited() => bail!("the core has ended: {exit:?}"),
        never = watchdog => never,
    }
}
