//! What can go wrong when a controller is made; a running one answers with NVMe status codes.

use std::io;
use std::path::PathBuf;

use lode_bus::BusError;
use lode_units::NamespaceId;

/// Why an emulated controller, a namespace or a fault script could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmulatorError {
    /// The file could not be opened or created; the caller corrects the path or its rights.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's word.
        #[source]
        source: io::Error,
    },
    /// Another process, or another controller of this one, has the file open.
    #[error("{} is in use by another controller", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The path names something that holds no blocks (a directory, a pipe).
    #[error("{} is neither a regular file nor a block device", path.display())]
    NotStorage {
        /// The file.
        path: PathBuf,
    },
    /// An existing file does not have the size that was asked for: it was cut or extended.
    #[error("{} has {actual_bytes} bytes where {expected_bytes} were asked for", path.display())]
    SizeMismatch {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        expected_bytes: u64,
        /// What is there.
        actual_bytes: u64,
    },
    /// A namespace's size is not a whole, positive number of logical blocks.
    #[error("{length_bytes} bytes are no positive multiple of the {block_bytes}-byte block")]
    SizeNotBlocks {
        /// The size.
        length_bytes: u64,
        /// The logical block.
        block_bytes: u32,
    },
    /// The memory for a memory backing or for bounce buffers was refused.
    #[error("no memory for the emulated controller")]
    Memory(#[source] BusError),
    /// An option lies outside what the emulated controller can be.
    #[error("option {option}: {value} lies outside {allowed}")]
    Option {
        /// Its name.
        option: &'static str,
        /// What was asked for.
        value: u64,
        /// What is possible.
        allowed: &'static str,
    },
    /// A device string or fault rule could not be read.
    #[error("{text:?}: {reason}")]
    Syntax {
        /// The part that was not understood.
        text: String,
        /// What was expected in its place.
        reason: &'static str,
    },
    /// A write that survived a power cut could not be put onto its media.
    #[error("namespace {namespace}: a write cannot be put onto the media")]
    PowerCut {
        /// The namespace.
        namespace: NamespaceId,
    },
    /// Every namespace identifier, or every rule of the fault script, is taken.
    #[error("the table of {table} holds its maximum of {limit}")]
    TableFull {
        /// Which table.
        table: &'static str,
        /// Its bound.
        limit: usize,
    },
}
