//! The task that takes connections in and hands each to a core.

use std::io;
use std::net;
use std::os::unix::net as unix;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::connection::Connection;
use crate::handle::CoreHandle;
use crate::hosted::Hosted;

/// Where connections come in.
#[derive(Debug)]
pub enum Listener {
    /// Over TCP.
    Tcp(TcpListener),
    /// Over a Unix socket.
    Unix(UnixListener),
}

/// A connection between two runtimes.
enum Unhosted {
    Tcp(net::TcpStream),
    Unix(unix::UnixStream),
}

/// Takes connections in from `listener` and hands each to the one of `cores` that has the fewest;
/// `serve` makes the task that serves it there. Ends when every core has. Runs on any runtime.
///
/// While all have as many, the next round begins one core later: clients that open an idle
/// connection and a busy one, one after the other, do not all have the busy one on the same core.
///
/// A connection that fails while it is being taken in is dropped; when the process is out of
/// descriptors the task waits a moment instead of spinning.
pub async fn accept<H, F>(
    listener: Listener,
    mut cores: Vec<CoreHandle<H>>,
    serve: impl Fn(Connection) -> F + Clone + Send + 'static,
) where
    H: Hosted,
    F: Future<Output = ()> + 'static,
{
    let mut turn = 0;
    while !cores.is_empty() {
        let unhosted = match listener.accept().await {
            Ok(unhosted) => unhosted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken in");
                if !is_of_the_connection(&error) {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                continue;
            }
        };
        let chosen = least_loaded(&cores, &mut turn);
        let place = Place::take(&cores[chosen].connections);
        let serve = serve.clone();
        let make = move || host(unhosted, place, serve);
        if cores[chosen].spawn_local(make).await.is_err() {
            cores.remove(chosen);
        }
    }
}

/// The position of the core with the fewest connections, the first of them from `turn` on; `turn`
/// grows when a round begins.
fn least_loaded<H: Hosted>(cores: &[CoreHandle<H>], turn: &mut usize) -> usize {
    let loads: Vec<_> = cores.iter().map(CoreHandle::connections).collect();
    let first = *turn;
    if loads.iter().all(|load| *load == loads[0]) {
        *turn = turn.wrapping_add(1);
    }
    let positions = (0..loads.len()).map(|step| first.wrapping_add(step) % loads.len());
    positions
        .min_by_key(|position| loads[*position])
        .expect("called while a core is left")
}

/// A connection's place in its core's count, given back when it ends on whatever path.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn host<F: Future<Output = ()>>(
    unhosted: Unhosted,
    _place: Place,
    serve: impl Fn(Connection) -> F,
) {
    match unhosted.register() {
        Ok(connection) => serve(connection).await,
        Err(error) => tracing::warn!(%error, "a connection could not be taken to its core"),
    }
}

impl Listener {
    async fn accept(&self) -> io::Result<Unhosted> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Unhosted::Tcp(stream.into_std()?))
            }
            Self::Unix(listener) => {
                let (stream, _peer) = listener.accept().await?;
                Ok(Unhosted::Unix(stream.into_std()?))
            }
        }
    }
}

impl Unhosted {
    /// Registers the socket with the runtime of this thread.
    fn register(self) -> io::Result<Connection> {
        match self {
            Self::Tcp(stream) => TcpStream::from_std(stream).map(Connection::Tcp),
            Self::Unix(stream) => UnixStream::from_std(stream).map(Connection::Unix),
        }
    }
}

/// Whether an error of accept concerns the one connection, not the listener.
fn is_of_the_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
