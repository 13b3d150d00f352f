//! One core's way to one namespace.

use lode_units::{BlockSize, Instant};

use crate::request::{Completion, Request};

/// The write cache of a device (NVMe Base 2.0 §5.27.1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCache {
    /// The device has none, or has one that survives a power cut.
    None,
    /// There is a volatile one, and it is switched off.
    Disabled,
    /// There is a volatile one in use: a completed write may be lost until a flush.
    Volatile,
}

/// What a device promises about itself. Constant while the device is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The logical block.
    pub block_size: BlockSize,
    /// How many logical blocks.
    pub block_count: u64,
    /// The longest transfer of one command in bytes: a multiple of the block size.
    pub transfer_max_bytes: u32,
    /// The most blocks of one write-zeroes or deallocate command.
    pub range_max_blocks: u32,
    /// How many requests can be in flight at once.
    pub queue_depth_max: u32,
    /// Whether a completed write may be lost.
    pub write_cache: WriteCache,
    /// Whether [`crate::Operation::WriteThrough`] reaches the media. Meaningful only with a
    /// volatile cache; without one every write does.
    pub supports_write_through: bool,
    /// Whether [`crate::Operation::WriteZeroes`] is there.
    pub supports_write_zeroes: bool,
    /// Whether [`crate::Operation::Deallocate`] is there.
    pub supports_deallocate: bool,
    /// Whether [`crate::Operation::Compare`] is there.
    pub supports_compare: bool,
}

impl Geometry {
    /// The capacity in bytes.
    #[must_use]
    pub const fn capacity_bytes(&self) -> u64 {
        self.block_count
            .saturating_mul(self.block_size.bytes() as u64)
    }

    /// Whether a completed write may be lost at a power cut unless it is flushed or written
    /// through.
    #[must_use]
    pub const fn has_volatile_cache(&self) -> bool {
        matches!(self.write_cache, WriteCache::Volatile)
    }
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// Every slot is in use; try again after a completion.
    Full,
    /// The device failed or is gone; it takes no more requests.
    Gone,
    /// The request breaks the rules of [`Request`] or lies outside the device.
    Invalid,
}

/// A request that was not taken, given back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the request inside has not been submitted"]
pub struct Rejected {
    /// The request, untouched.
    pub request: Request,
    /// Why.
    pub reason: RejectReason,
}

/// One core's way to one namespace: a queue with its poller's end. Used from one thread; does
/// not block; allocates nothing after it was made.
pub trait BlockDevice {
    /// What the device promises.
    fn geometry(&self) -> &Geometry;

    /// Queues `request`. The device need not see it before [`BlockDevice::kick`].
    ///
    /// # Errors
    /// Gives the request back with the reason.
    fn submit(&mut self, request: Request) -> Result<(), Rejected>;

    /// Shows the device all that was queued since the last kick: one doorbell for the batch.
    fn kick(&mut self);

    /// Appends what has completed to `completions`, at most as many as its spare capacity, and
    /// watches deadlines. Returns how many were appended.
    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) -> usize;

    /// Requests submitted and not yet completed.
    fn in_flight(&self) -> usize;

    /// The next moment at which [`BlockDevice::poll`] has something to do even though nothing
    /// completes (a command's deadline), if there is one.
    fn next_deadline(&self) -> Option<Instant>;
}
