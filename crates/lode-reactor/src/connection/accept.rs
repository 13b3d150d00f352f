//! The task that takes connections in and hands each to a core.

use std::io;
use std::net;
use std::os::unix::net as unix;
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

/// Takes connections in from `listener` and hands them to `cores` in turn, where `serve` makes the
/// task that serves each. Ends when every core has. Runs on any runtime.
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
    let mut next = 0;
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
        next %= cores.len();
        let serve = serve.clone();
        let handed = cores[next].spawn_local(move || host(unhosted, serve)).await;
        if handed.is_err() {
            cores.swap_remove(next);
        } else {
            next += 1;
        }
    }
}

async fn host<F: Future<Output = ()>>(unhosted: Unhosted, serve: impl Fn(Connection) -> F) {
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
