//! What crosses the seam: a request going down, a completion coming up.

use lode_bus::DmaSpan;
use lode_units::Lba;

use crate::error::DeviceError;

/// The caller's own mark on a request, given back with its completion. The device does not look
/// at it; it need not be unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(pub u64);

/// What a device is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Read blocks into memory.
    Read,
    /// Write blocks from memory; done when the device has them, in its cache or on its media.
    Write,
    /// Write blocks from memory; done when they are on the media (Force Unit Access).
    WriteThrough,
    /// Compare blocks with memory; [`crate::ErrorKind::CompareMismatch`] when they differ.
    Compare,
    /// Make blocks read as zeros; the device may deallocate them.
    WriteZeroes,
    /// Tell the device that the blocks' content is no longer needed.
    Deallocate,
    /// Put every write completed before this request was submitted onto the media.
    Flush,
}

impl Operation {
    /// Whether the command carries memory.
    #[must_use]
    pub const fn moves_data(self) -> bool {
        matches!(
            self,
            Self::Read | Self::Write | Self::WriteThrough | Self::Compare
        )
    }
}

/// One command for a device. Moved in by [`crate::BlockDevice::submit`], which gives it back
/// when it cannot take it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a request is submitted or its caller is told"]
pub struct Request {
    /// The caller's mark.
    pub tag: Tag,
    /// What to do.
    pub operation: Operation,
    /// The first block, in the device's own blocks. Ignored by a flush.
    pub lba: Lba,
    /// How many blocks: at least 1, except for a flush, which has 0.
    pub block_count: u32,
    /// The memory: exactly `block_count` blocks long when data move, [`DmaSpan::EMPTY`] when
    /// none do. Begins at a multiple of 4 bytes. The caller keeps it untouched until the
    /// completion.
    pub data: DmaSpan,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's mark.
    pub tag: Tag,
    /// How it ended.
    pub result: Result<(), DeviceError>,
}
