//! Devices in front of the drivers, honest or with one defect: what a simulation that cannot fail
//! would not notice. A defect lives here, between the engine and the driver, or between two cores,
//! and nowhere in the stack itself.

mod device;

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

use lode_block::{Operation, Request};
use lode_bus::{DmaMemory, DmaSpan, IovaSpace, PagePreference};
use lode_engine::is_metadata_command;

pub(crate) use device::Tampered;

/// A defect put beside the stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Defect {
    /// None.
    #[default]
    None,
    /// The controller completes Flush and write-through without doing anything.
    LyingController,
    /// Flushes never reach the controller.
    FlushIgnored,
    /// Write-through is sent as a plain write.
    WriteThroughIgnored,
    /// Every 64th write is completed without being sent.
    WriteLost,
    /// The flush that puts data on the media comes after the journal's record of them instead of
    /// before it. Both are there when the record's write completes.
    MetadataFirst,
    /// A transaction that does nothing but free blocks completes before it is on the media, so
    /// that the blocks are used again too early.
    FreedEarly,
    /// A block of metadata that was read gets the checksum that fits what there is of it.
    TearsAccepted,
    /// Letters between two cores overtake each other.
    LettersDisordered,
}

/// What the devices of one machine share. Clones share it too.
#[derive(Clone, Debug)]
pub(crate) struct Bench {
    defect: Defect,
    /// Where the engine's commands find their bytes.
    memories: Rc<[DmaMemory]>,
    /// A block of memory for a write that is held back.
    parking: DmaMemory,
    state: Rc<RefCell<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Units of 4 KiB by device whose newest write is metadata.
    metadata: HashSet<(usize, u64)>,
    /// By device: a flush was answered and not done.
    owed: Vec<bool>,
    /// By device: such a flush is to be done now.
    is_flush_due: Vec<bool>,
}

impl Bench {
    /// `memories` are those of the engine's own commands.
    pub(crate) fn new(
        defect: Defect,
        mut memories: Vec<DmaMemory>,
        space: &IovaSpace,
        devices: usize,
    ) -> Self {
        let parking = space.allocate(UNIT_BYTES, PagePreference::Ordinary);
        let parking = parking.expect("memory");
        memories.push(parking.clone());
        let state = State {
            metadata: HashSet::new(),
            owed: vec![false; devices],
            is_flush_due: vec![false; devices],
        };
        Self {
            defect,
            memories: memories.into(),
            parking,
            state: Rc::new(RefCell::new(state)),
        }
    }

    /// Memories that have to be mapped for the controllers.
    pub(crate) fn memories(&self) -> &[DmaMemory] {
        &self.memories
    }

    /// Whether the newest write to a unit of a device was metadata.
    pub(crate) fn is_metadata(&self, device: usize, unit: u64) -> bool {
        self.state.borrow().metadata.contains(&(device, unit))
    }

    fn note(&self, device: usize, request: &Request, shift: u32) {
        if !is_write(request.operation) && request.operation != Operation::WriteZeroes {
            return;
        }
        let first = request.lba.get() >> shift;
        let end = (request.lba.get() + u64::from(request.block_count) - 1) >> shift;
        let mut state = self.state.borrow_mut();
        for unit in first..=end {
            if is_metadata_command(request.tag) {
                state.metadata.insert((device, unit));
            } else {
                state.metadata.remove(&(device, unit));
            }
        }
    }

    /// The memory of a span, and where in it the span begins.
    fn find(&self, span: DmaSpan) -> Option<(&DmaMemory, usize)> {
        self.memories.iter().find_map(|memory| {
            let offset = span.iova.get().checked_sub(memory.iova().get())?;
            let offset = usize::try_from(offset).ok()?;
            let end = offset + usize::try_from(span.length_bytes).ok()?;
            (end <= memory.length_bytes()).then_some((memory, offset))
        })
    }

    fn bytes(&self, span: DmaSpan) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some((memory, offset)) = self.find(span) {
            let length = usize::try_from(span.length_bytes).expect("a short span");
            memory.append_to(offset, length, &mut bytes);
        }
        bytes
    }

    /// What the first block of a write of metadata is.
    fn kind(&self, request: &Request) -> Option<u16> {
        let bytes = self.bytes(request.data);
        let kind = bytes.get(KIND_AT..KIND_AT + 2)?;
        Some(u16::from_le_bytes(kind.try_into().ok()?))
    }

    /// Whether a write is a transaction of one block that frees blocks and does nothing else.
    fn frees_only(&self, request: &Request) -> bool {
        let bytes = self.bytes(request.data);
        let Some(count) = bytes.get(COUNT_AT..COUNT_AT + 4) else {
            return false;
        };
        let count = u32::from_le_bytes(count.try_into().expect("4 bytes"));
        let end = RECORDS_AT + usize::try_from(count).expect("a short block");
        let Some(mut records) = bytes.get(RECORDS_AT..end).filter(|_| is_one_block(&bytes)) else {
            return false;
        };
        let mut frees = false;
        while let [kind, _, low, high, ..] = records {
            let length = usize::from(u16::from_le_bytes([*low, *high]));
            frees |= *kind == UNMAP;
            if !FREEING.contains(kind) || length == 0 || length > records.len() {
                return false;
            }
            records = &records[length..];
        }
        frees
    }

    /// Makes the checksum of each block of metadata in `span` fit its bytes.
    fn accept(&self, span: DmaSpan) {
        let bytes = self.bytes(span);
        let Some((memory, offset)) = self.find(span) else {
            return;
        };
        for (index, block) in bytes.chunks_exact(UNIT_BYTES).enumerate() {
            if block[4..8] == *MAGIC {
                let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &block[4..]);
                let sum = u32::try_from(sum).expect("a checksum of 32 bits");
                memory.copy_from_slice(offset + index * UNIT_BYTES, &sum.to_le_bytes());
            }
        }
    }
}

fn is_one_block(bytes: &[u8]) -> bool {
    bytes.len() == UNIT_BYTES && bytes[4..8] == *MAGIC
}

fn is_write(operation: Operation) -> bool {
    matches!(operation, Operation::Write | Operation::WriteThrough)
}

// Where things are in a block of metadata, and the records of the journal: docs/format.md.
const UNIT_BYTES: usize = 4096;
const MAGIC: &[u8; 4] = b"LODE";
const KIND_AT: usize = 8;
const COUNT_AT: usize = 12;
const RECORDS_AT: usize = 96;
const SUPERBLOCK: u16 = 1;
const JOURNAL: u16 = 2;
const UNMAP: u8 = 6;
const FREEING: &[u8] = &[UNMAP, 7, 8];
