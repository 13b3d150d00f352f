//! Where the server listens, and where it refuses to.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use lode_reactor::Listener;
use tokio::net::{TcpListener, UnixListener};

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix socket; a socket file that nobody listens on is replaced.
    Unix(PathBuf),
}

/// Whether the server may be reached from other machines although it knows no one's identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RemoteAccess {
    /// Listen on loopback addresses and Unix sockets only.
    #[default]
    Refused,
    /// Listen anywhere, for anyone.
    AllowedWithoutAuth,
}

/// Why the server does not listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address can be reached from other machines, and there is no authentication.
    #[error(
        "refusing to listen on {address}: it is not a loopback address and there is no \
         authentication yet; set allow_remote_without_auth = true to serve anyone who can reach it"
    )]
    RemoteWithoutAuth {
        /// The address.
        address: SocketAddr,
    },
    /// The system refused.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address as it was given.
        address: String,
        /// The system's word.
        #[source]
        source: io::Error,
    },
}

impl ListenAddress {
    /// Listens. Runs on the runtime that will accept; does not block for long.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn bind(&self, remote: RemoteAccess) -> Result<Listener, ListenError> {
        match self {
            Self::Tcp(address) => {
                check_reach(*address, remote)?;
                let bound = bind_tcp(*address);
                bound
                    .map(Listener::Tcp)
                    .map_err(|source| ListenError::Bind {
                        address: address.to_string(),
                        source,
                    })
            }
            Self::Unix(path) => {
                let bound = bind_unix(path);
                bound
                    .map(Listener::Unix)
                    .map_err(|source| ListenError::Bind {
                        address: path.display().to_string(),
                        source,
                    })
            }
        }
    }
}

/// Refuses an address that other machines can reach, unless that is allowed.
pub(crate) fn check_reach(address: SocketAddr, remote: RemoteAccess) -> Result<(), ListenError> {
    match remote {
        RemoteAccess::Refused if !address.ip().to_canonical().is_loopback() => {
            Err(ListenError::RemoteWithoutAuth { address })
        }
        RemoteAccess::Refused | RemoteAccess::AllowedWithoutAuth => Ok(()),
    }
}

pub(crate) fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_abandoned(path) => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

/// Whether `path` is a socket that nobody listens on any more: left behind by a process that was
/// killed.
fn is_abandoned(path: &Path) -> bool {
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    is_socket
        && std::os::unix::net::UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(address: &str, remote: RemoteAccess) -> bool {
        check_reach(address.parse().expect("an address"), remote).is_ok()
    }

    #[test]
    fn only_loopback_addresses_are_listened_on_unless_more_is_allowed() {
        for address in [
            "127.0.0.1:0",
            "127.9.9.9:1",
            "[::1]:0",
            "[::ffff:127.0.0.1]:0",
        ] {
            assert!(reach(address, RemoteAccess::Refused), "{address}");
        }
        for address in [
            "0.0.0.0:0",
            "[::]:0",
            "192.0.2.1:7070",
            "[::ffff:192.0.2.1]:0",
        ] {
            assert!(!reach(address, RemoteAccess::Refused), "{address}");
            assert!(
                reach(address, RemoteAccess::AllowedWithoutAuth),
                "{address}"
            );
        }
    }

    #[test]
    fn the_refusal_names_the_address_and_the_way_out() {
        let address = "0.0.0.0:7070".parse().expect("an address");
        let refused = check_reach(address, RemoteAccess::Refused).expect_err("refused");
        let told = refused.to_string();
        assert!(told.contains("0.0.0.0:7070"), "{told}");
        assert!(told.contains("allow_remote_without_auth = true"), "{told}");
    }

    #[tokio::test]
    async fn an_abandoned_socket_is_replaced_and_a_live_one_or_a_file_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let address = ListenAddress::Unix(path.clone());
        let live = address.bind(RemoteAccess::Refused).expect("a listener");
        let busy = address.bind(RemoteAccess::Refused);
        assert!(matches!(busy, Err(ListenError::Bind { .. })));
        drop(live);
        drop(
            address
                .bind(RemoteAccess::Refused)
                .expect("the abandoned socket is replaced"),
        );

        let file = folder.path().join("file");
        std::fs::write(&file, b"precious").expect("a file");
        let occupied = ListenAddress::Unix(file.clone()).bind(RemoteAccess::Refused);
        assert!(matches!(occupied, Err(ListenError::Bind { .. })));
        assert_eq!(std::fs::read(&file).expect("still there"), b"precious");
    }
}
