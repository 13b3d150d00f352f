//! A model disk with a volatile cache: what is not flushed may be kept, lost or torn by a crash.

use std::collections::BTreeMap;

use lode_units::{Random, SeededRandom};

use crate::error::IoFailure;
use crate::format::block::open;
use crate::io::{DeviceSpec, MetadataOp};

pub(crate) const BLOCK: usize = 4096;
const SECTOR: usize = 512;

type Block = Box<[u8; BLOCK]>;

#[derive(Clone, Debug)]
pub(crate) struct Disk {
    pub(crate) spec: DeviceSpec,
    media: BTreeMap<u64, Block>,
    /// Writes that the medium does not have yet, oldest first.
    cache: Vec<(u64, Block)>,
    /// Flushes succeed and do nothing.
    pub(crate) ignores_flush: bool,
    /// Blocks that cannot be read.
    pub(crate) unreadable: Vec<u64>,
    /// How many reads fail because of one of those; `None` is all.
    pub(crate) bad_reads: Option<u32>,
    /// Blocks that cannot be written.
    pub(crate) unwritable: Vec<u64>,
    pub(crate) is_gone: bool,
}

impl Disk {
    pub(crate) fn new(spec: DeviceSpec) -> Self {
        Self {
            spec,
            media: BTreeMap::new(),
            cache: Vec::new(),
            ignores_flush: false,
            unreadable: Vec::new(),
            bad_reads: None,
            unwritable: Vec::new(),
            is_gone: false,
        }
    }

    pub(crate) fn run(&mut self, op: &MetadataOp) -> Result<Option<Vec<u8>>, IoFailure> {
        if self.is_gone {
            return Err(IoFailure::Unavailable);
        }
        match op {
            MetadataOp::Read { block, count } => {
                let blocks = *block..block + u64::from(*count);
                let is_bad = blocks.clone().any(|block| self.unreadable.contains(&block));
                if is_bad && self.bad_reads != Some(0) {
                    self.bad_reads = self.bad_reads.map(|left| left - 1);
                    return Err(IoFailure::Media);
                }
                assert!(
                    blocks.end * 4096 <= self.spec.size_bytes,
                    "a read past the end"
                );
                let mut data = Vec::new();
                for block in blocks {
                    data.extend_from_slice(&self.read(block));
                }
                Ok(Some(data))
            }
            MetadataOp::Write {
                block,
                data,
                force_unit_access,
            } => {
                assert!(!force_unit_access || self.spec.supports_fua);
                self.write(*block, data, *force_unit_access)?;
                Ok(None)
            }
            MetadataOp::Flush => {
                assert!(self.spec.has_volatile_cache, "a flush of nothing");
                if !self.ignores_flush {
                    self.flush();
                }
                Ok(None)
            }
        }
    }

    pub(crate) fn read(&self, block: u64) -> [u8; BLOCK] {
        let cached = self.cache.iter().rev().find(|&&(at, _)| at == block);
        let found = cached.map(|(_, data)| data).or(self.media.get(&block));
        found.map_or([0; BLOCK], |data| **data)
    }

    pub(crate) fn write(
        &mut self,
        block: u64,
        data: &[u8],
        is_forced: bool,
    ) -> Result<(), IoFailure> {
        for (block, data) in (block..).zip(data.chunks(BLOCK)) {
            if self.unwritable.contains(&block) {
                return Err(IoFailure::Media);
            }
            assert!(
                (block + 1) * 4096 <= self.spec.size_bytes,
                "a write past the end"
            );
            let data: Block = Box::new(data.try_into().expect("whole blocks"));
            if self.spec.has_volatile_cache && !is_forced {
                self.cache.push((block, data));
            } else {
                self.cache.retain(|&(at, _)| at != block);
                self.media.insert(block, data);
            }
        }
        Ok(())
    }

    pub(crate) fn flush(&mut self) {
        for (block, data) in self.cache.drain(..) {
            self.media.insert(block, data);
        }
    }

    /// The power fails: each cached block is kept, lost or torn.
    pub(crate) fn crash(&mut self, random: &mut SeededRandom) {
        for (block, data) in std::mem::take(&mut self.cache) {
            self.settle(block, &data, random);
        }
    }

    /// A block that was on its way when the power failed.
    pub(crate) fn settle(&mut self, block: u64, data: &[u8; BLOCK], random: &mut SeededRandom) {
        match random.below(3) {
            0 => {}
            1 => {
                self.media.insert(block, Box::new(*data));
            }
            _ => {
                let old = self
                    .media
                    .entry(block)
                    .or_insert_with(|| Box::new([0; BLOCK]));
                for sector in 0..BLOCK / SECTOR {
                    if random.below(2) == 0 {
                        let range = sector * SECTOR..(sector + 1) * SECTOR;
                        old[range.clone()].copy_from_slice(&data[range]);
                    }
                }
            }
        }
    }

    /// Changes a byte of the medium.
    pub(crate) fn corrupt(&mut self, block: u64, byte: usize, mask: u8) {
        let data = self
            .media
            .entry(block)
            .or_insert_with(|| Box::new([0; BLOCK]));
        data[byte] ^= mask;
    }

    /// Blocks of the medium that hold metadata.
    pub(crate) fn metadata(&self) -> Vec<u64> {
        let sealed = self.media.iter().filter(|(_, data)| open(data).is_ok());
        sealed.map(|(&block, _)| block).collect()
    }
}
