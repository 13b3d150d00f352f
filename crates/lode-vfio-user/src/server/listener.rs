//! The socket that clients connect to.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use lode_units::MonotonicClock;

use crate::error::VfioUserError;
use crate::stream::Stream;

/// A listening socket; its name is removed when it is dropped.
#[derive(Debug)]
pub struct ListeningSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl ListeningSocket {
    /// Listens at `path`. A socket that a dead server left behind is replaced.
    ///
    /// # Errors
    /// When another server listens there, or the socket cannot be made.
    pub fn bind(path: &Path, clock: MonotonicClock) -> Result<Self, VfioUserError> {
        let failed = |source| VfioUserError::Bind {
            path: path.to_owned(),
            source,
        };
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                remove_dead(path, clock)?;
                UnixListener::bind(path).map_err(failed)?
            }
            outcome => outcome.map_err(failed)?,
        };
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
        })
    }

    pub(super) const fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// The next client, unless it has gone again.
    pub(super) fn accept(&self) -> Result<Option<UnixStream>, VfioUserError> {
        match self.listener.accept() {
            Ok((client, _address)) => Ok(Some(client)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::Interrupted
                | io::ErrorKind::ConnectionAborted => Ok(None),
                _ => Err(VfioUserError::System {
                    operation: "accepting a client",
                    source: error,
                }),
            },
        }
    }
}

impl Drop for ListeningSocket {
    fn drop(&mut self) {
        // Somebody else may have removed it; nothing depends on it.
        let _is_gone = std::fs::remove_file(&self.path).is_err();
    }
}

/// Removes a socket that nobody listens to.
fn remove_dead(path: &Path, clock: MonotonicClock) -> Result<(), VfioUserError> {
    let failed = |source| VfioUserError::Bind {
        path: path.to_owned(),
        source,
    };
    let kind = std::fs::symlink_metadata(path).map_err(failed)?.file_type();
    if !kind.is_socket() {
        return Err(failed(io::ErrorKind::AlreadyExists.into()));
    }
    match Stream::connect(path, clock) {
        Err(VfioUserError::NotServed { source, .. })
            if source.kind() == io::ErrorKind::ConnectionRefused =>
        {
            std::fs::remove_file(path).map_err(failed)
        }
        _ => Err(VfioUserError::InUse {
            path: path.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_in_use_is_refused_and_one_left_behind_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let clock = MonotonicClock::new();
        let left_behind = UnixListener::bind(&path).expect("a socket");
        let refused = ListeningSocket::bind(&path, clock);
        assert!(matches!(refused, Err(VfioUserError::InUse { .. })));
        drop(left_behind);
        let socket = ListeningSocket::bind(&path, clock).expect("replaced");
        drop(socket);
        assert!(!path.exists(), "removed with its server");
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("precious");
        std::fs::write(&path, "data").expect("a file");
        let refused = ListeningSocket::bind(&path, MonotonicClock::new());
        assert!(matches!(refused, Err(VfioUserError::Bind { .. })));
        assert_eq!(std::fs::read(&path).expect("still there"), b"data");
    }
}
