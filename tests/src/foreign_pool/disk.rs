//! A small disk in memory, copied block by block when it is changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use crc_fast::{CrcAlgorithm, checksum};
use lode_extent::MetadataOp;

const BLOCK_BYTES: usize = 4096;
/// Where the bytes begin that a metadata block's checksum covers; it lies before them
/// (`docs/format.md`).
const CHECKED_FROM: usize = 4;

/// The blocks that were written; all others are zeros.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    blocks: BTreeMap<u64, Arc<[u8]>>,
}

impl Disk {
    /// Does one operation; the bytes of a read.
    pub(super) fn run(&mut self, op: MetadataOp) -> Option<Vec<u8>> {
        match op {
            MetadataOp::Read { block, count } => {
                let mut bytes = Vec::new();
                for block in block..block + u64::from(count) {
                    match self.blocks.get(&block) {
                        Some(content) => bytes.extend_from_slice(content),
                        None => bytes.resize(bytes.len() + BLOCK_BYTES, 0),
                    }
                }
                Some(bytes)
            }
            MetadataOp::Write { block, data, .. } => {
                for (block, content) in (block..).zip(data.chunks(BLOCK_BYTES)) {
                    self.blocks.insert(block, content.into());
                }
                None
            }
            MetadataOp::Flush => None,
        }
    }

    /// Changes one byte of one of the blocks that were written, chosen by `index`, and where
    /// asked for makes the block's checksum right again.
    pub(super) fn change(&mut self, index: usize, offset: usize, value: u8, is_sealed: bool) {
        let index = index % self.blocks.len();
        let Some(content) = self.blocks.values_mut().nth(index) else {
            return;
        };
        let mut bytes = content.to_vec();
        if let Some(byte) = bytes.get_mut(offset) {
            *byte = value;
        }
        if is_sealed {
            let covered = bytes.get(CHECKED_FROM..).unwrap_or_default();
            let sum = checksum(CrcAlgorithm::Crc32Iscsi, covered);
            let sum = u32::try_from(sum).expect("a 32-bit checksum");
            bytes.splice(..CHECKED_FROM, sum.to_le_bytes());
        }
        *content = bytes.into();
    }
}
