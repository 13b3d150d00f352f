//! Reading metadata that is not in memory.

use crate::error::{ExtentError, IoFailure};
use crate::format::block::{BlockFault, as_block};
use crate::io_queue::{InFlight, Purpose};
use crate::load::{Missing, MissingBlock};
use crate::pool::{Pool, device_index};
use crate::types::PoolBlock;

impl Pool {
    /// Starts to read what was missing; the operation that named it is to be retried after the
    /// next completion. Does nothing when it is being read already or no longer missing.
    pub fn load(&mut self, missing: Missing) {
        self.request(missing.0);
    }

    pub(super) fn request(&mut self, what: MissingBlock) {
        let Some(core) = self.core.as_mut() else {
            return;
        };
        let Some(block) = core.wanted_block(what) else {
            return;
        };
        if self.io.is_loading(block) {
            return;
        }
        match core.geometry.locate(block) {
            Some((device, offset)) => {
                let position = self.caller_position[device];
                self.io
                    .read(position, offset, 1, Purpose::Load { what, block });
            }
            None => self.attach(what, block, Err(BlockFault::Contents)),
        }
    }

    /// Whether metadata was found that cannot be read and may be asked for again:
    /// [`recall_damaged`](Self::recall_damaged).
    #[must_use]
    pub fn has_damage(&self) -> bool {
        let Some(core) = self.core.as_ref() else {
            return false;
        };
        !self.damaged_maps.is_empty() || core.space.has_damage()
    }

    /// Forgets that metadata could not be read: whoever needs them next has them read again. For
    /// parts of maps and of the space map; volumes that are missing since the import stay so.
    /// Reads of blocks that are bad for good are repeated each time, so call it seldom.
    pub fn recall_damaged(&mut self) {
        let maps = std::mem::take(&mut self.damaged_maps);
        self.is_checkpoint_stuck = false;
        if let Some(core) = self.core.as_mut() {
            core.recall_damaged(&maps);
        }
    }

    /// The error that names a block of the metadata.
    pub(super) fn metadata_damaged(&self, block: PoolBlock) -> ExtentError {
        let core = self.core.as_ref().expect("the pool was found");
        let (device, block) = core.geometry.locate(block).unwrap_or_default();
        ExtentError::MetadataDamaged {
            device: device_index(self.caller_position[device]),
            block,
        }
    }

    /// A block that cannot be read is asked for a few times, then what is below it is damaged; a
    /// device that fails otherwise makes the pool read-only as well.
    pub(super) fn loaded(
        &mut self,
        io: InFlight,
        what: MissingBlock,
        block: PoolBlock,
        outcome: Result<&[u8], IoFailure>,
    ) {
        self.counters.nodes_read += 1;
        match outcome {
            Ok(bytes) => self.attach(what, block, as_block(bytes)),
            Err(failure) => {
                if failure != IoFailure::Media {
                    self.fail_io(io, failure);
                }
                self.attach(what, block, Err(BlockFault::Contents));
            }
        }
    }

    fn attach(
        &mut self,
        what: MissingBlock,
        block: PoolBlock,
        bytes: Result<&crate::format::block::Block, BlockFault>,
    ) {
        let Some(core) = self.core.as_mut() else {
            return;
        };
        if !core.attach(what, block, bytes) {
            self.counters.nodes_damaged += 1;
            self.damaged_block = Some(block);
            match what {
                MissingBlock::Objects { .. } => self.damaged_table = Some(block),
                MissingBlock::Map { volume, key } if self.damaged_maps.len() < RECALLED_MAX => {
                    self.damaged_maps.push((volume, key));
                }
                MissingBlock::Map { .. }
                | MissingBlock::Requests { .. }
                | MissingBlock::Space(_) => {}
            }
        }
    }
}

/// Parts of maps that are read again when they are needed after a
/// [`Pool::recall_damaged`]: those beyond wait for the next import.
const RECALLED_MAX: usize = 1024;
