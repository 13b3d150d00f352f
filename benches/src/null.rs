//! A device that does nothing: reads complete at the next poll and move no data. Metadata are
//! kept, so that a pool can live on it.

use std::collections::BTreeMap;

use lode_block::{
    BlockDevice, Completion, Geometry, Operation, RejectReason, Rejected, Request, WriteCache,
};
use lode_bus::DmaMemory;
use lode_units::{BlockSize, Instant};

/// A null device over which a pool can be made: what is written below `kept_bytes_end` is kept.
#[derive(Debug)]
pub(crate) struct NullDevice {
    geometry: Geometry,
    ready: Vec<Completion>,
    /// Blocks of 4 KiB that the pool itself wrote while it was made.
    kept: Option<BTreeMap<u64, Vec<u8>>>,
    memories: Vec<DmaMemory>,
    pub(crate) kicks: u64,
    pub(crate) commands: u64,
}

impl NullDevice {
    pub(crate) fn new(
        capacity_bytes: u64,
        depth: u32,
        (write_cache, supports_write_through): (WriteCache, bool),
    ) -> Self {
        let geometry = Geometry {
            block_size: BlockSize::B4096,
            block_count: capacity_bytes / 4096,
            transfer_max_bytes: 1 << 20,
            range_max_blocks: 1 << 16,
            queue_depth_max: depth,
            write_cache,
            supports_write_through,
            supports_write_zeroes: true,
            supports_deallocate: true,
            supports_compare: false,
        };
        Self {
            geometry,
            ready: Vec::with_capacity(depth as usize),
            kept: Some(BTreeMap::new()),
            memories: Vec::new(),
            kicks: 0,
            commands: 0,
        }
    }

    /// Lets the device reach `memories` while it keeps data.
    pub(crate) fn map(&mut self, memories: Vec<DmaMemory>) {
        self.memories = memories;
    }

    /// From now on nothing is moved or kept.
    pub(crate) fn become_null(&mut self) {
        self.kept = None;
    }

    fn keep(&mut self, request: &Request) {
        let Some(kept) = &mut self.kept else { return };
        let start = request.data.iova.get();
        let found = self.memories.iter().find_map(|memory| {
            let offset = start.checked_sub(memory.iova().get())?;
            let offset = usize::try_from(offset).ok()?;
            (offset < memory.length_bytes()).then_some((memory, offset))
        });
        let Some((memory, offset)) = found else {
            return;
        };
        for index in 0..request.block_count {
            let at = offset + index as usize * 4096;
            let lba = request.lba.get() + u64::from(index);
            if request.operation == Operation::Read {
                match kept.get(&lba) {
                    Some(data) => memory.copy_from_slice(at, data),
                    None => memory.fill_zero(at, 4096),
                }
            } else {
                let mut data = Vec::new();
                memory.append_to(at, 4096, &mut data);
                kept.insert(lba, data);
            }
        }
    }
}

impl BlockDevice for NullDevice {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&mut self, request: Request) -> Result<(), Rejected> {
        if self.ready.len() == self.ready.capacity() {
            return Err(Rejected {
                request,
                reason: RejectReason::Full,
            });
        }
        if self.kept.is_some() && request.operation.moves_data() {
            self.keep(&request);
        }
        self.commands += 1;
        self.ready.push(Completion {
            tag: request.tag,
            result: Ok(()),
        });
        Ok(())
    }

    fn kick(&mut self) {
        self.kicks += 1;
    }

    fn poll(&mut self, _now: Instant, completions: &mut Vec<Completion>) -> usize {
        let count = self
            .ready
            .len()
            .min(completions.capacity() - completions.len());
        completions.extend(self.ready.drain(..count));
        count
    }

    fn in_flight(&self) -> usize {
        self.ready.len()
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}
