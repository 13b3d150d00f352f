//! Reading metadata that is not in memory.

use crate::error::IoFailure;
use crate::format::block::{BlockFault, as_block};
use crate::io_queue::{InFlight, Purpose};
use crate::load::{Missing, MissingBlock};
use crate::pool::Pool;
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

    /// A block that cannot be read damages what is below it; a device that fails otherwise makes
    /// the pool read-only as well.
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
            if matches!(what, MissingBlock::Objects { .. }) {
                self.damaged_table = Some(block);
            }
        }
    }
}
