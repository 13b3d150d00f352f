//! What can go wrong between two ends of a vfio-user socket.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::wire::Command;

/// An error of this crate: what the other side did, or what it is not.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VfioUserError {
    /// There is no socket of this name.
    #[error("there is no socket {}", path.display())]
    NoSocket {
        /// Where one was looked for.
        path: PathBuf,
    },
    /// The socket is there and nobody serves it, or it takes no connection.
    #[error("nobody answers at {}", path.display())]
    NotServed {
        /// The socket.
        path: PathBuf,
        /// The system's word.
        #[source]
        source: io::Error,
    },
    /// Another process serves this socket already.
    #[error("{} is served by another process", path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// The socket cannot be made.
    #[error("cannot serve {}", path.display())]
    Bind {
        /// The socket.
        path: PathBuf,
        /// The system's word.
        #[source]
        source: io::Error,
    },
    /// The other side closed the connection.
    #[error("the other side closed the connection during {during}")]
    Closed {
        /// What was going on.
        during: &'static str,
    },
    /// The other side was silent for too long.
    #[error("the other side did not end {during} within {patience:?}")]
    Silent {
        /// What was going on.
        during: &'static str,
        /// How long was waited.
        patience: Duration,
    },
    /// The server was lost before; the first error said why.
    #[error("the server is gone")]
    Lost,
    /// What came is no message of this protocol; the two sides no longer understand each other.
    #[error("the other side does not speak vfio-user: {reason}")]
    Foreign {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The server speaks a version that is not spoken here.
    #[error("the server speaks vfio-user {major}.{minor}, not 0.1")]
    Version {
        /// Its major version.
        major: u16,
        /// Its minor version.
        minor: u16,
    },
    /// The server answered that it will not.
    #[error("the server refuses {command}")]
    Refused {
        /// What it was asked.
        command: Command,
        /// Its reason.
        #[source]
        source: io::Error,
    },
    /// What the server offers is no controller that can be driven.
    #[error("no usable NVMe controller: {reason}")]
    Unusable {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The device has another class.
    #[error("not an NVMe controller: its class code is {class_code:#08x}, not 0x010802")]
    NotNvme {
        /// What it says of itself.
        class_code: u32,
    },
    /// A system call failed.
    #[error("{operation} failed")]
    System {
        /// What was tried.
        operation: &'static str,
        /// The system's word.
        #[source]
        source: io::Error,
    },
}

impl VfioUserError {
    /// Whether the connection is of use afterwards.
    pub(crate) const fn leaves_the_link(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }
}
