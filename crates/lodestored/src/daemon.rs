//! From a configuration to a daemon that serves, and back to nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use lode_reactor::{CoreHandle, Listener};
use lode_server::{HttpServer, ListenAddress, Monitor, RemoteAccess, Server, Serving};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::Cli;
use crate::config::Config;
use crate::cores;
use crate::drive::DevicesSource;
use crate::manager::Manager;
use crate::node::Node;
use crate::notify::{self, Bound};
use crate::pools::Pools;
use crate::welcome;

/// Runs the daemon until it is told to stop.
pub(crate) async fn run(cli: &Cli, config: &Config) -> anyhow::Result<()> {
    // Addresses first: a second daemon fails here, before it touches a device.
    let listeners = Listeners::bind(config)?;
    let started = cores::start(config).await?;
    let all = started.cores;
    let pools = Arc::new(Pools::new(all.clone(), started.opener));
    for pool in &config.pools {
        if let Err(error) = pools.open_configured(pool).await {
            pools.close_all(Duration::ZERO).await;
            let devices = pool.devices.join(", ");
            bail!("pool {:?} on {devices}: {error}", pool.name);
        }
        tracing::info!(pool = pool.name, "serves");
    }
    let mut monitor = Monitor::new();
    for (core, stats) in all.iter().zip(&started.stats) {
        monitor.add_core(core.clone(), Arc::clone(stats));
    }
    monitor.add_source(DevicesSource(Arc::clone(pools.registry().devices())));
    let monitor = Arc::new(monitor);
    let manager = Arc::new(Manager::new(Arc::clone(&pools)));
    let core_count = u32::try_from(all.len())?;
    let server = Server::new(started.clock, core_count, manager);
    for (core, stats) in all.iter().zip(started.stats) {
        server.watch_core(core.clone(), stats);
    }
    let bound = listeners.serve(&server, &all, Arc::clone(&monitor))?;
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
        reason = until_stopped(&all) => reason?,
        never = pools.heed_removals() => match never {},
    };
    tracing::info!(reason, "stopping");
    notify::stopping();
    monitor.set_serving(false);
    server.stop().await;
    pools.close_all(config.server.stop_grace).await;
    cores::shut_down(all, config.server.stop_grace).await
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
        cores: &[CoreHandle<Node>],
        monitor: Arc<Monitor>,
    ) -> anyhow::Result<Bound> {
        let mut grpc = Vec::new();
        for listener in self.grpc {
            grpc.extend(address(&listener)?);
            tokio::spawn(server.clone().serve(listener, cores.to_vec()));
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

/// Waits until a signal or the end of a core; keeps the service manager's watchdog content while
/// every core answers.
async fn until_stopped(cores: &[CoreHandle<Node>]) -> anyhow::Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let watchdog = async {
        let Some(interval) = notify::watchdog_interval() else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(interval).await;
            if cores::all_answer(cores).await {
                notify::alive();
            }
        }
    };
    tokio::select! {
        _signal = terminate.recv() => Ok("SIGTERM"),
        _signal = interrupt.recv() => Ok("SIGINT"),
        exit = cores::any_exit(cores) => bail!(exit),
        never = watchdog => never,
    }
}
