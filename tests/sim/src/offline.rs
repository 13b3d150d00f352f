//! The check of a whole pool as a power cut left it, by an import of its own that changes a copy.

use std::collections::BTreeMap;

use lode_extent::{DeviceSpec, LoadCursor, MetadataIo, MetadataOp, Pool, PoolState};
use lode_nvme_emu::Media;

/// Imports the pool on `media` without touching it, loads all its metadata and checks them.
pub(crate) fn check(media: &[Media], specs: &[DeviceSpec]) -> Result<(), String> {
    let mut copies: Vec<_> = media.iter().map(Copy::new).collect();
    let mut pool = Pool::import(specs);
    settle(&mut pool, &mut copies);
    if *pool.state() != PoolState::Ready {
        return Err(format!("offline import: {:?}", pool.state()));
    }
    let mut cursor = LoadCursor::default();
    let mut rounds = 0;
    while !pool.load_all(&mut cursor) {
        settle(&mut pool, &mut copies);
        rounds += 1;
        if rounds > ROUNDS_MAX {
            return Err("offline check: metadata never become resident".to_owned());
        }
    }
    let report = pool
        .check()
        .map_err(|violation| format!("offline check: {violation}"))?;
    if report.unseen > 0 || report.damaged > 0 {
        return Err(format!("offline check: {report:?}"));
    }
    Ok(())
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
            MetadataOp::Read { block, count } => {
                let blocks = block..block + u64::from(count);
                Some(blocks.flat_map(|block| self.block(block)).collect())
            }
            MetadataOp::Write { block, data, .. } => {
                let blocks = (block..).zip(data.chunks(BLOCK_BYTES));
                self.changed
                    .extend(blocks.map(|(block, bytes)| (block, bytes.to_vec())));
                None
            }
            MetadataOp::Flush => None,
        }
    }

    fn block(&self, block: u64) -> Vec<u8> {
        self.changed
            .get(&block)
            .cloned()
            .unwrap_or_else(|| self.media.snapshot(block * 4096, BLOCK_BYTES))
    }
}

const BLOCK_BYTES: usize = 4096;
const ROUNDS_MAX: usize = 100_000;
