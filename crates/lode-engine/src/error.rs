//! Why a data request failed, by what the caller can do.

use lode_block::DeviceError;
use lode_units::DeviceIndex;

/// Why a data request failed. Every variant but [`IoError::Device`] left the volume unchanged
/// unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IoError {
    /// The handle names no volume: it was deleted, or its pool is gone.
    #[error("the volume no longer exists")]
    UnknownVolume,
    /// Offset or length is no multiple of the volume's block size.
    #[error(
        "offset {offset_bytes} or length {length_bytes} is no multiple of the block size \
         {block_size_bytes}"
    )]
    Unaligned {
        /// What was asked for.
        offset_bytes: u64,
        /// What was asked for.
        length_bytes: u64,
        /// The volume's block size.
        block_size_bytes: u32,
    },
    /// The range ends past the end of the volume.
    #[error(
        "offset {offset_bytes} length {length_bytes} ends past the volume's {size_bytes} bytes"
    )]
    OutOfRange {
        /// What was asked for.
        offset_bytes: u64,
        /// What was asked for.
        length_bytes: u64,
        /// The volume's size.
        size_bytes: u64,
    },
    /// The length is 0.
    #[error("the length is 0")]
    ZeroLength,
    /// The length exceeds what one request may carry.
    #[error("length {length_bytes} exceeds the limit of {length_max_bytes} bytes")]
    TooLong {
        /// What was asked for.
        length_bytes: u64,
        /// The limit of this operation.
        length_max_bytes: u64,
    },
    /// The request's buffer is missing or shorter than its length.
    #[error("the request carries no buffer of its length")]
    NoBuffer,
    /// The pool has no space left for the blocks that the write needs.
    #[error("the pool is full")]
    NoSpace,
    /// As many requests wait for the volume's limit, or for their turn, as may: by their number, or
    /// by the bytes that they move.
    #[error(
        "too many requests of the volume wait for its limit or their turn: at most {waiting_max}"
    )]
    Throttled {
        /// The most that may wait; fewer, where they are long.
        waiting_max: usize,
    },
    /// The compared data differ.
    #[error("the data at offset {offset_bytes} differ from what was expected")]
    Mismatch {
        /// The first block that differs, as an offset in the volume.
        offset_bytes: u64,
    },
    /// A device failed the request; other blocks and volumes go on.
    #[error("device {device} failed {length_bytes} bytes at offset {offset_bytes}: {error}")]
    Device {
        /// Which device of the pool.
        device: DeviceIndex,
        /// The first byte of the volume that is concerned.
        offset_bytes: u64,
        /// How many bytes are.
        length_bytes: u64,
        /// What the device said.
        error: DeviceError,
    },
    /// The volume's own metadata could not be read; other volumes go on.
    #[error("the volume's metadata are damaged")]
    Damaged,
    /// An earlier flush failed, so that nothing more can be promised until the pool is imported
    /// anew.
    #[error("an earlier flush failed; the pool must be imported anew")]
    FlushFailed,
    /// The pool stopped: its journal could not be written, or it is being detached.
    #[error("the pool is not available")]
    PoolUnavailable,
    /// The daemon is stopping.
    #[error("the daemon is stopping")]
    Stopping,
}
