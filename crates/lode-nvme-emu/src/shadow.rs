//! Shadow doorbells (NVMe Base 2.0 §5.9): the host writes doorbell values to memory, which this
//! controller reads whenever it works.
//!
//! The controller keeps every event index one behind the last value that it saw, so that a host
//! never finds a reason to write the register.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lode_units::QueueId;

use crate::dma::{DmaFault, DmaTable, Hint};

/// Where the two buffers are, once the host has configured them.
#[derive(Debug, Default)]
pub(crate) struct ShadowDoorbells {
    is_active: AtomicBool,
    values: AtomicU64,
    event_indexes: AtomicU64,
}

/// A doorbell of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doorbell {
    SubmissionTail,
    CompletionHead,
}

/// How the buffers are laid out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShadowLayout {
    pub(crate) stride: u8,
    /// Each buffer is one page.
    pub(crate) page: u64,
}

impl ShadowDoorbells {
    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Acquire)
    }

    pub(crate) fn configure(&self, values: u64, event_indexes: u64) {
        self.values.store(values, Ordering::Relaxed);
        self.event_indexes.store(event_indexes, Ordering::Relaxed);
        self.is_active.store(true, Ordering::Release);
    }

    pub(crate) fn clear(&self) {
        self.is_active.store(false, Ordering::Release);
    }

    /// The value of a doorbell, or `None` when it is not in the buffers: then the register
    /// counts. The event index follows it.
    pub(crate) fn load(
        &self,
        dma: &DmaTable,
        layout: ShadowLayout,
        queue: QueueId,
        doorbell: Doorbell,
    ) -> Result<Option<u32>, DmaFault> {
        if !self.is_active() {
            return Ok(None);
        }
        let Some(offset) = layout.offset(queue, doorbell) else {
            return Ok(None);
        };
        let mut hint = Hint::default();
        let at = self.values.load(Ordering::Relaxed).wrapping_add(offset);
        let segment = dma.whole(at, 4, &mut hint)?;
        let value = dma
            .memory(segment.entry)
            .load_u32(segment.offset, Ordering::Acquire);
        let at = self
            .event_indexes
            .load(Ordering::Relaxed)
            .wrapping_add(offset);
        let segment = dma.whole(at, 4, &mut hint)?;
        let behind = value.wrapping_sub(1) & 0xFFFF;
        dma.memory(segment.entry)
            .store_u32(segment.offset, behind, Ordering::Release);
        Ok(Some(value))
    }

    /// Puts a value into the buffers, for queues that exist when they are configured.
    pub(crate) fn store(
        &self,
        dma: &DmaTable,
        layout: ShadowLayout,
        queue: QueueId,
        doorbell: Doorbell,
        value: u32,
    ) -> Result<(), DmaFault> {
        let Some(offset) = layout.offset(queue, doorbell) else {
            return Ok(());
        };
        let at = self.values.load(Ordering::Relaxed).wrapping_add(offset);
        let segment = dma.whole(at, 4, &mut Hint::default())?;
        dma.memory(segment.entry)
            .store_u32(segment.offset, value, Ordering::Release);
        Ok(())
    }
}

impl ShadowLayout {
    /// Where a doorbell lies in a buffer. The admin queue has none there.
    fn offset(self, queue: QueueId, doorbell: Doorbell) -> Option<u64> {
        let index = 2 * u64::from(queue.get())
            + match doorbell {
                Doorbell::SubmissionTail => 0,
                Doorbell::CompletionHead => 1,
            };
        let offset = index * (4 << self.stride);
        (queue.get() != 0 && offset + 4 <= self.page).then_some(offset)
    }
}
