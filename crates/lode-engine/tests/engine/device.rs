//! A block device in memory that completes when it is told to, with a write cache that a power
//! cut empties.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use lode_block::{
    BlockDevice, Completion, DeviceError, ErrorKind, Geometry, Operation, RejectReason, Rejected,
    Request, WriteCache,
};
use lode_bus::{DmaMemory, DmaSpan};
use lode_units::{BlockSize, Instant};

/// The device's inside, shared with the test.
#[derive(Debug)]
pub(crate) struct Media {
    pub(crate) blocks: BTreeMap<u64, Vec<u8>>,
    pub(crate) cached: BTreeMap<u64, Vec<u8>>,
    pub(crate) memories: Vec<DmaMemory>,
    pub(crate) counts: BTreeMap<Operation2, usize>,
    /// Completions are kept back while this is set.
    pub(crate) is_held: bool,
    /// Nothing is taken any more.
    pub(crate) is_gone: bool,
    /// Completions of commands that begin in these blocks are kept back.
    pub(crate) held: std::ops::Range<u64>,
    /// The next commands of this operation and block range fail so.
    pub(crate) faults: Vec<Fault>,
    /// The write with this number, counted from 0, fails.
    pub(crate) fail_nth_write: Option<usize>,
    /// The order in which commands completed.
    pub(crate) log: Vec<(Operation, u64, u32)>,
}

/// An operation as a map key.
pub(crate) type Operation2 = &'static str;

/// A command that is to fail.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) operation: Operation,
    pub(crate) lba: std::ops::Range<u64>,
    pub(crate) kind: ErrorKind,
    pub(crate) times: usize,
}

/// One queue of the device.
#[derive(Debug)]
pub(crate) struct MemoryDevice {
    geometry: Geometry,
    media: Rc<RefCell<Media>>,
    queue: VecDeque<Request>,
}

impl MemoryDevice {
    pub(crate) fn new(geometry: Geometry, media: Rc<RefCell<Media>>) -> Self {
        Self {
            geometry,
            media,
            queue: VecDeque::new(),
        }
    }
}

pub(crate) fn geometry(block_size: BlockSize, write_cache: WriteCache) -> Geometry {
    Geometry {
        block_size,
        block_count: CAPACITY_BYTES / u64::from(block_size.bytes()),
        transfer_max_bytes: 128 << 10,
        range_max_blocks: 1 << 16,
        queue_depth_max: 32,
        write_cache,
        supports_write_through: write_cache == WriteCache::Volatile,
        supports_write_zeroes: true,
        supports_deallocate: true,
        supports_compare: true,
    }
}

pub(crate) const CAPACITY_BYTES: u64 = 64 << 20;

impl Media {
    pub(crate) fn new() -> Self {
        Self {
            blocks: BTreeMap::new(),
            cached: BTreeMap::new(),
            memories: Vec::new(),
            counts: BTreeMap::new(),
            is_held: false,
            is_gone: false,
            held: 0..0,
            faults: Vec::new(),
            fail_nth_write: None,
            log: Vec::new(),
        }
    }

    pub(crate) fn count(&self, operation: Operation) -> usize {
        self.counts.get(name(operation)).copied().unwrap_or(0)
    }

    /// Loses everything that was not flushed or forced to the media.
    pub(crate) fn cut_power(&mut self) {
        self.cached.clear();
    }

    fn copy_in(&self, span: DmaSpan) -> Vec<u8> {
        let (memory, offset) = self.resolve(span);
        let mut data = Vec::new();
        memory.append_to(offset, span.length_bytes as usize, &mut data);
        data
    }

    fn resolve(&self, span: DmaSpan) -> (DmaMemory, usize) {
        let end = span.iova.get() + u64::from(span.length_bytes);
        let inside = |memory: &&DmaMemory| {
            let start = memory.iova().get();
            start <= span.iova.get() && end <= start + memory.length_bytes() as u64
        };
        let memory = self
            .memories
            .iter()
            .find(inside)
            .expect("a span lies in mapped memory");
        let offset = usize::try_from(span.iova.get() - memory.iova().get()).expect("an offset");
        (memory.clone(), offset)
    }

    fn execute(&mut self, request: &Request, geometry: &Geometry) -> Result<(), DeviceError> {
        let lba = request.lba.get();
        let is_doomed = request.operation == Operation::Write
            && self.fail_nth_write == Some(self.count(Operation::Write));
        *self.counts.entry(name(request.operation)).or_default() += 1;
        self.log.push((request.operation, lba, request.block_count));
        if is_doomed {
            return Err(DeviceError::local(ErrorKind::Media));
        }
        let hit = self.faults.iter_mut().find(|fault| {
            let end = lba + u64::from(request.block_count.max(1));
            fault.times > 0
                && fault.operation == request.operation
                && fault.lba.start < end
                && lba < fault.lba.end
        });
        if let Some(fault) = hit {
            fault.times -= 1;
            return Err(DeviceError {
                kind: fault.kind,
                status: Some(0x281),
            });
        }
        let block = geometry.block_size.bytes() as usize;
        match request.operation {
            Operation::Read => {
                let mut data = Vec::new();
                for at in lba..lba + u64::from(request.block_count) {
                    let held = self.cached.get(&at).or_else(|| self.blocks.get(&at));
                    match held {
                        Some(held) => data.extend_from_slice(held),
                        None => data.resize(data.len() + block, 0xEE),
                    }
                }
                let (memory, offset) = self.resolve(request.data);
                memory.copy_from_slice(offset, &data);
            }
            Operation::Write | Operation::WriteThrough => {
                let data = self.copy_in(request.data);
                let is_cached = geometry.has_volatile_cache();
                for (at, chunk) in (lba..).zip(data.chunks(block)) {
                    if is_cached && request.operation == Operation::Write {
                        self.cached.insert(at, chunk.to_vec());
                    } else {
                        self.cached.remove(&at);
                        self.blocks.insert(at, chunk.to_vec());
                    }
                }
            }
            Operation::Flush => {
                let cached = std::mem::take(&mut self.cached);
                self.blocks.extend(cached);
            }
            Operation::Compare | Operation::WriteZeroes | Operation::Deallocate => {
                return Err(DeviceError::local(ErrorKind::Unsupported));
            }
        }
        Ok(())
    }
}

fn name(operation: Operation) -> Operation2 {
    match operation {
        Operation::Read => "read",
        Operation::Write => "write",
        Operation::WriteThrough => "write through",
        Operation::Compare => "compare",
        Operation::WriteZeroes => "write zeroes",
        Operation::Deallocate => "deallocate",
        Operation::Flush => "flush",
    }
}

impl BlockDevice for MemoryDevice {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&mut self, request: Request) -> Result<(), Rejected> {
        let shift = self.geometry.block_size.shift();
        let moved = if request.operation.moves_data() {
            request.block_count << shift
        } else {
            0
        };
        let end = request.lba.get() + u64::from(request.block_count);
        let is_flush = request.operation == Operation::Flush;
        assert_eq!(moved, request.data.length_bytes, "{request:?}");
        assert!(end <= self.geometry.block_count && moved <= self.geometry.transfer_max_bytes);
        assert!(is_flush || request.block_count > 0, "{request:?}");
        if self.media.borrow().is_gone {
            return Err(Rejected {
                request,
                reason: RejectReason::Gone,
            });
        }
        if self.queue.len() >= self.geometry.queue_depth_max as usize {
            return Err(Rejected {
                request,
                reason: RejectReason::Full,
            });
        }
        self.queue.push_back(request);
        Ok(())
    }

    fn kick(&mut self) {}

    fn poll(&mut self, _now: Instant, completions: &mut Vec<Completion>) -> usize {
        let mut media = self.media.borrow_mut();
        if media.is_held {
            return 0;
        }
        let room = completions.capacity() - completions.len();
        let mut count = 0;
        for _ in 0..self.queue.len() {
            let Some(request) = self.queue.pop_front() else {
                break;
            };
            if count == room || media.held.contains(&request.lba.get()) {
                self.queue.push_back(request);
                continue;
            }
            count += 1;
            let result = media.execute(&request, &self.geometry);
            completions.push(Completion {
                tag: request.tag,
                result,
            });
        }
        count
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}
