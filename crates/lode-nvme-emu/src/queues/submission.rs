//! The controller's end of a submission queue, with the commands fetched from it.

use lode_nvme_spec::SubmissionEntry;
use lode_units::QueueId;

use crate::backing::FileRing;
use crate::bounce::BounceBuffers;
use crate::counters::OperationCounters;
use crate::dma::{DmaFault, DmaTable, Hint};
use crate::outstanding::Outstanding;
use crate::prp::Segments;

/// A submission queue and all that its commands need, under one lock.
#[derive(Debug)]
pub(crate) struct SubmissionQueue {
    pub(crate) id: QueueId,
    pub(crate) completion_queue: QueueId,
    base: u64,
    entries: u32,
    head: u32,
    hint: Hint,
    /// For the data of commands.
    pub(crate) data_hint: Hint,
    pub(crate) segments: Segments,
    pub(crate) outstanding: Outstanding,
    pub(crate) counters: OperationCounters,
    /// Operations on files, from the first command that needs one.
    pub(crate) files: Option<FileWork>,
    /// Set while a delete command waits for this queue: nothing more is fetched.
    pub(crate) is_closing: bool,
}

/// What commands on files need.
#[derive(Debug)]
pub(crate) struct FileWork {
    pub(crate) ring: FileRing,
    pub(crate) bounce: BounceBuffers,
}

/// Where and how large a queue is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuePlace {
    pub(crate) id: QueueId,
    pub(crate) base: u64,
    pub(crate) entries: u32,
}

impl SubmissionQueue {
    /// An empty queue whose transfers are at most `transfer_max` bytes long.
    pub(crate) fn new(place: QueuePlace, completion_queue: QueueId, transfer_max: usize) -> Self {
        let outstanding = u16::try_from(place.entries)
            .unwrap_or(u16::MAX)
            .min(OUTSTANDING_MAX);
        Self {
            id: place.id,
            completion_queue,
            base: place.base,
            entries: place.entries,
            head: 0,
            hint: Hint::default(),
            data_hint: Hint::default(),
            segments: Segments::for_transfers_of(transfer_max),
            outstanding: Outstanding::with_capacity(outstanding),
            counters: OperationCounters::default(),
            files: None,
            is_closing: false,
        }
    }

    pub(crate) const fn entries(&self) -> u32 {
        self.entries
    }

    /// How far the queue was read, as completions tell it.
    pub(crate) fn head(&self) -> u16 {
        u16::try_from(self.head).expect("a head is below 65536")
    }

    /// Whether everything up to `tail` was read.
    pub(crate) const fn is_read_up_to(&self, tail: u32) -> bool {
        self.head == tail
    }

    /// Reads the next entry.
    pub(crate) fn fetch(&mut self, dma: &DmaTable) -> Result<SubmissionEntry, DmaFault> {
        // A base near the end of the address space wraps into a fault, not into a panic.
        let distance = u64::from(self.head) * size_of::<SubmissionEntry>() as u64;
        let at = self.base.wrapping_add(distance);
        let entry = dma.read(at, &mut self.hint)?;
        self.head += 1;
        if self.head == self.entries {
            self.head = 0;
        }
        Ok(entry)
    }

    /// How many file operations are in flight.
    pub(crate) fn file_operations(&self) -> usize {
        self.files
            .as_ref()
            .map_or(0, |files| files.ring.in_flight())
    }
}

/// The most commands of one queue that may be fetched and not completed.
const OUTSTANDING_MAX: u16 = 1024;
