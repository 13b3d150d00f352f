//! The check of a whole pool as a power cut left it, by an import of its own that changes a copy.

use std::collections::BTreeMap;
use std::fmt;

use lode_extent::{
    CheckReport, DeviceSpec, LoadCursor, MetadataIo, MetadataOp, Pool, PoolState, Violation,
};
use lode_nvme_emu::Media;

/// Imports the pool on `media` without touching it, loads all its metadata and checks them.
pub(crate) fn check(media: &[Media], specs: &[DeviceSpec]) -> Result<(), Fault> {
    let mut copies: Vec<_> = media.iter().map(Copy::new).collect();
    let mut pool = Pool::import(specs);
    settle(&mut pool, &mut copies);
    if *pool.state() != PoolState::Ready {
        return Err(Fault::Import(pool.state().clone()));
    }
    let mut cursor = LoadCursor::default();
    let mut rounds = 0;
    while !pool.load_all(&mut cursor) {
        settle(&mut pool, &mut copies);
        rounds += 1;
        if rounds > ROUNDS_MAX {
            return Err(Fault::NotResident);
        }
    }
    let report = match pool.check() {
        Ok(report) => report,
        Err(violation) if violation.what == LEAK => return Err(Fault::Leak),
        Err(violation) => return Err(Fault::Violation(violation)),
    };
    if report.unseen > 0 || report.damaged > 0 {
        return Err(Fault::Incomplete(report));
    }
    Ok(())
}

/// What an offline check found.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The pool cannot be imported.
    Import(PoolState),
    /// Some metadata can never be loaded.
    NotResident,
    /// Blocks are lost to the pool; no data are.
    Leak,
    /// Another invariant does not hold.
    Violation(Violation),
    /// Not all of the pool can be read.
    Incomplete(CheckReport),
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("offline check: ")?;
        match self {
            Self::Import(state) => write!(formatter, "the import ends as {state:?}"),
            Self::NotResident => formatter.write_str("metadata never become resident"),
            Self::Leak => formatter.write_str(LEAK),
            Self::Violation(violation) => violation.fmt(formatter),
            Self::Incomplete(report) => write!(formatter, "not all was read: {report:?}"),
        }
    }
}

fn settle(pool: &mut Pool, copies: &mut [Copy<'_>]) {
    while let Some(io) = pool.next_io() {
        let MetadataIo { id, device, op } = io;
        let data = copies[device.index()].run(op);
        pool.complete_io(id, Ok(data.as_deref()));
    }
}

/// A device whose changed blocks lie beside it.
struct Copy<'media> {
    media: &'media Media,
    changed: BTreeMap<u64, Vec<u8>>,
}

impl<'media> Copy<'media> {
    const fn new(media: &'media Media) -> Self {
        Self {
            media,
            changed: BTreeMap::new(),
        }
    }

    fn run(&mut self, op: MetadataOp) -> Option<Vec<u8>> {
        match op {
            MetadataOp::Read { block, count } => Some(self.read(block, count)),
            MetadataOp::Write { block, data, .. } => {
                let blocks = (block..).zip(data.chunks(BLOCK_BYTES));
                self.changed
                    .extend(blocks.map(|(block, bytes)| (block, bytes.to_vec())));
                None
            }
            MetadataOp::Flush => None,
        }
    }

    fn read(&self, first: u64, count: u32) -> Vec<u8> {
        let length = usize::try_from(count).expect("a short read") * BLOCK_BYTES;
        let mut bytes = self.media.snapshot(first * 4096, length);
        for (block, bytes) in (first..).zip(bytes.chunks_mut(BLOCK_BYTES)) {
            if let Some(changed) = self.changed.get(&block) {
                bytes.copy_from_slice(changed);
            }
        }
        bytes
    }
}

/// What the pool calls blocks that are taken and belong to nothing.
const LEAK: &str = "a block is taken that nothing refers to";
const BLOCK_BYTES: usize = 4096;
const ROUNDS_MAX: usize = 100_000;
