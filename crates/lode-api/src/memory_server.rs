//! A server that keeps its volumes in memory, for tests of clients.
//!
//! It follows the schema's rules for ranges, names, request ids and errors, and can be told to
//! misbehave: see [`Behaviour`]. It runs on a thread of its own, listens on the loopback
//! interface or a socket of the file system, and ends, with all its connections, when it is
//! dropped.

mod block;
mod control;
mod volume;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::oneshot;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::transport::Server;

use crate::limits::MESSAGE_LENGTH_MAX_BYTES;
use crate::v1::block_service_server::BlockServiceServer;
use crate::v1::info_service_server::InfoServiceServer;
use crate::v1::pool_service_server::PoolServiceServer;
use crate::v1::volume_service_server::VolumeServiceServer;
use control::Store;

/// What the server does apart from serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// The credits that an Io stream is granted at most.
    pub credits: u32,
    /// Io requests are gathered until there are so many, and then answered newest first.
    pub io_batch: u32,
    /// So many creates and deletes take effect but are answered with `UNAVAILABLE`.
    pub lost_answers: u32,
    /// Calls that are never answered.
    pub ignored: Ignored,
    /// A streamed write fails with `NO_SPACE` once it has taken so many bytes of data.
    pub capacity_bytes: u64,
}

/// Which calls are never answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// All are answered.
    Nothing,
    /// The description of a volume, and the opening of an Io stream.
    Volumes,
    /// Streamed reads and writes.
    Transfers,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            credits: 32,
            io_batch: 1,
            lost_answers: 0,
            ignored: Ignored::Nothing,
            capacity_bytes: u64::MAX,
        }
    }
}

/// A running server.
#[derive(Debug)]
pub struct MemoryServer {
    address: String,
    state: Arc<State>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl MemoryServer {
    /// Starts a server with one empty pool called `memory` on a free port.
    ///
    /// # Panics
    /// When the loopback interface or a thread cannot be had.
    #[must_use]
    pub fn start(behaviour: Behaviour) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("a bound socket");
        Self::serve(
            behaviour,
            format!("http://{address}"),
            Listener::Tcp(listener),
        )
    }

    /// As [`MemoryServer::start`], on a socket of the file system at `path`.
    ///
    /// # Panics
    /// When no socket can be made there, or a thread cannot be had.
    #[must_use]
    pub fn start_at(path: &Path, behaviour: Behaviour) -> Self {
        let listener = std::os::unix::net::UnixListener::bind(path).expect("a free path");
        listener.set_nonblocking(true).expect("a socket");
        let address = format!("unix:{}", path.display());
        Self::serve(behaviour, address, Listener::Unix(listener))
    }

    fn serve(behaviour: Behaviour, address: String, listener: Listener) -> Self {
        let state = Arc::new(State::new(behaviour));
        let (stop, stopped) = oneshot::channel();
        let served = Arc::clone(&state);
        let thread = std::thread::spawn(move || serve(listener, served, stopped));
        Self {
            address,
            state,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// The address for [`Client::connect`](crate::Client::connect).
    #[must_use]
    pub fn address(&self) -> String {
        self.address.clone()
    }

    /// The most Io requests that were outstanding on one stream at any time.
    #[must_use]
    pub fn outstanding_max(&self) -> u32 {
        self.state.outstanding_max.load(Ordering::Relaxed)
    }

    /// How many streamed writes have ended, in whatever way.
    #[must_use]
    pub fn ended_writes(&self) -> u32 {
        self.state.ended_writes.load(Ordering::Relaxed)
    }

    /// Ends the server and cuts all its connections.
    pub fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the server shows as broken connections in the test.
            let _ended = thread.join();
        }
    }
}

impl Drop for MemoryServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the services share.
#[derive(Debug)]
struct State {
    behaviour: Behaviour,
    store: Mutex<Store>,
    lost_answers: AtomicU32,
    outstanding_max: AtomicU32,
    ended_writes: AtomicU32,
}

impl State {
    fn new(behaviour: Behaviour) -> Self {
        Self {
            behaviour,
            store: Mutex::new(Store::new()),
            lost_answers: AtomicU32::new(behaviour.lost_answers),
            outstanding_max: AtomicU32::new(0),
            ended_writes: AtomicU32::new(0),
        }
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for ever if calls of this kind are to be ignored.
    async fn ignore(&self, kind: Ignored) {
        if self.behaviour.ignored == kind {
            std::future::pending::<()>().await;
        }
    }

    /// Whether the answer that is ready is to be lost.
    fn loses_answer(&self) -> bool {
        let less = |count: u32| count.checked_sub(1);
        self.lost_answers
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok()
    }
}

/// The services, each over the same state.
#[derive(Clone, Debug)]
struct Service(Arc<State>);

/// A socket that is bound and not yet served.
enum Listener {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

/// Serves until `stopped`. The runtime, and with it every connection, ends with this function.
fn serve(listener: Listener, state: Arc<State>, stopped: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async move {
        tokio::select! {
            _ = stopped => {}
            outcome = accept(listener, Service(state)) => {
                outcome.expect("the server runs until it is stopped");
            }
        }
    });
}

async fn accept(listener: Listener, service: Service) -> io::Result<()> {
    let blocks = BlockServiceServer::new(service.clone());
    let router = Server::builder()
        .add_service(InfoServiceServer::new(service.clone()))
        .add_service(PoolServiceServer::new(service.clone()))
        .add_service(VolumeServiceServer::new(service))
        .add_service(blocks.max_decoding_message_size(MESSAGE_LENGTH_MAX_BYTES));
    let served = match listener {
        Listener::Tcp(listener) => {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let incoming = TcpListenerStream::new(listener);
            router.serve_with_incoming(incoming).await
        }
        Listener::Unix(listener) => {
            let listener = tokio::net::UnixListener::from_std(listener)?;
            let incoming = UnixListenerStream::new(listener);
            router.serve_with_incoming(incoming).await
        }
    };
    served.map_err(io::Error::other)
}
