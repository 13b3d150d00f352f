//! The memory that a shard has beside its clients' buffers, and the requests that wait for some.

use std::collections::VecDeque;

use lode_block::{BufferPool, BufferPoolSpec};
use lode_bus::{BusError, DmaBuffer, DmaMemory, IovaSpace, PagePreference};
use lode_extent::METADATA_IO_BLOCKS_MAX;
use lode_units::limits::{CORE_REQUESTS_MAX, IO_LENGTH_MAX_BYTES};

use crate::core::ZERO_BYTES;
use crate::op::OpIndex;
use crate::shard::ShardLimits;

/// Memory of all pools of a shard. Each use has some of its own and takes none of another's:
/// requests that hold memory for their ends wait for comparisons and for metadata, and the
/// journal that they wait for must find memory to be written from.
#[derive(Debug)]
pub(crate) struct OwnMemory {
    /// What metadata operations read into and write from.
    pub(crate) metadata: BufferPool,
    /// What comparisons read into.
    pub(crate) comparisons: Store,
    /// The ends of requests to volumes of small blocks.
    pub(crate) ends: Store,
}

/// The memory of one use.
#[derive(Debug)]
pub(crate) struct Store {
    buffers: BufferPool,
    free: usize,
    waiters: VecDeque<OpIndex>,
}

impl OwnMemory {
    /// Allocates all of it. Not for the data path.
    pub(crate) fn new(
        space: &IovaSpace,
        preference: PagePreference,
        limits: &ShardLimits,
    ) -> Result<Self, BusError> {
        let metadata = BufferPoolSpec {
            length_bytes: METADATA_BUFFER_BYTES,
            count: limits.metadata_max,
        };
        let comparisons = BufferPoolSpec {
            length_bytes: COMPARISON_BYTES,
            count: limits.comparisons_max,
        };
        let ends = BufferPoolSpec {
            length_bytes: ENDS_BYTES,
            count: limits.ends_max,
        };
        Ok(Self {
            metadata: BufferPool::new(&[metadata], space, preference)?,
            comparisons: Store::new(comparisons, space, preference)?,
            ends: Store::new(ends, space, preference)?,
        })
    }

    /// Every memory that must be mapped for a device.
    pub(crate) fn memories(&self) -> impl Iterator<Item = &DmaMemory> {
        self.metadata
            .memories()
            .chain(self.comparisons.buffers.memories())
            .chain(self.ends.buffers.memories())
    }

    /// Moves those who wait for memory that is free to the end of `ready`.
    #[inline]
    pub(crate) fn wake(&mut self, ready: &mut VecDeque<OpIndex>) {
        self.comparisons.wake(ready);
        self.ends.wake(ready);
    }
}

impl Store {
    fn new(
        spec: BufferPoolSpec,
        space: &IovaSpace,
        preference: PagePreference,
    ) -> Result<Self, BusError> {
        Ok(Self {
            buffers: BufferPool::new(&[spec], space, preference)?,
            free: spec.count,
            waiters: VecDeque::with_capacity(CORE_REQUESTS_MAX),
        })
    }

    /// A buffer of at least `length_bytes`; `None` when the request has to [wait](Self::wait).
    pub(crate) fn take(&mut self, length_bytes: usize) -> Option<DmaBuffer> {
        let buffer = self.buffers.take(length_bytes)?;
        self.free -= 1;
        Some(buffer)
    }

    /// Takes a buffer back; who waits for it is resumed at the next poll.
    pub(crate) fn give_back(&mut self, buffer: DmaBuffer) {
        self.buffers.give_back(buffer);
        self.free += 1;
    }

    /// Parks a request until there is memory for it.
    pub(crate) fn wait(&mut self, index: OpIndex) {
        self.waiters.push_back(index);
    }

    /// No more than there is memory for. One that finds something else to wait for leaves its
    /// memory to the next, a poll later.
    #[inline]
    fn wake(&mut self, ready: &mut VecDeque<OpIndex>) {
        let count = self.free.min(self.waiters.len());
        if count > 0 {
            ready.extend(self.waiters.drain(..count));
        }
    }
}

const METADATA_BUFFER_BYTES: usize = METADATA_IO_BLOCKS_MAX as usize * ZERO_BYTES;
/// The longest compare-and-write: its two halves fit one buffer of a client.
pub(crate) const COMPARE_MAX_BYTES: u64 = IO_LENGTH_MAX_BYTES / 2;
#[expect(clippy::cast_possible_truncation, reason = "512 KiB")]
const COMPARISON_BYTES: usize = COMPARE_MAX_BYTES as usize;
/// Memory for both ends of a request, a unit each.
pub(crate) const ENDS_BYTES: usize = 2 * ZERO_BYTES;
