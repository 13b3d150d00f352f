//! Unmapping: bounded pieces of work, for callers and in the background.

use crate::core::{ApplyFault, Core};
use crate::error::ExtentError;
use crate::format::record::{Record, SMALL_RECORD_BYTES};
use crate::pool::Pool;
use crate::types::{LogicalBlock, Ticket, VolumeId};
use crate::volume::Unmapped;

/// Leaves that one call of `unmap` changes at most.
const UNMAP_LEAVES_MAX: usize = 8;

/// What a piece of an unmapping did.
pub(super) struct UnmappedPiece {
    pub(super) ticket: Ticket,
    /// Everything before this unit is a hole.
    pub(super) stop: u64,
}

impl Pool {
    /// Makes holes of `count` whole units from `first` on: as many as one bounded call can, see
    /// [`Unmapped::done`]. Reads and writes that use the range must have ended.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate), but for a lack of space.
    pub fn unmap(
        &mut self,
        volume: VolumeId,
        first: LogicalBlock,
        count: u32,
    ) -> Result<Unmapped, ExtentError> {
        self.check_range(volume, first, count)?;
        let end = first.get() + u64::from(count);
        let piece = self.unmap_piece(volume, first.get(), end)?;
        Ok(Unmapped {
            ticket: piece.ticket,
            done: piece.stop - first.get(),
        })
    }

    /// Unmaps from `first` on, up to `end` or the last leaf that one call may change.
    pub(super) fn unmap_piece(
        &mut self,
        volume: VolumeId,
        first: u64,
        end: u64,
    ) -> Result<UnmappedPiece, ExtentError> {
        let core = self.ready()?;
        let (leaves, stop) =
            plan_unmap(core, volume, first, end).map_err(|fault| self.refused(fault))?;
        let mut ticket = self.recorded();
        if leaves > 0 {
            self.admit(SMALL_RECORD_BYTES, leaves)?;
            let record = Record::Unmap {
                volume,
                logical: LogicalBlock::new(first),
                count: stop - first,
            };
            ticket = self.change(&[record])?;
            self.counters.transactions_unmap += 1;
        }
        Ok(UnmappedPiece { ticket, stop })
    }
}

/// Leaves with something to unmap, as many as one call changes, and where they end.
fn plan_unmap(
    core: &mut Core,
    volume: VolumeId,
    first: u64,
    end: u64,
) -> Result<(usize, u64), ApplyFault> {
    let (mut key, mut leaves) = (first, 0);
    while key < end && leaves < UNMAP_LEAVES_MAX {
        let leaf = match core.map_leaf(volume, key) {
            Ok(Some(leaf)) => leaf,
            Ok(None) => return Ok((leaves, end)),
            Err(_later) if leaves > 0 => return Ok((leaves, key)),
            Err(fault) => return Err(fault),
        };
        let stop = leaf.high.min(end);
        let node = core.store.node(leaf.node);
        let position = crate::extent::first_reaching(node, key);
        if position < node.count() && node.key(position) < stop {
            match core.ensure_range(volume, key, stop) {
                Ok(_) => leaves += 1,
                Err(_later) if leaves > 0 => return Ok((leaves, key)),
                Err(fault) => return Err(fault),
            }
        }
        key = stop;
    }
    Ok((leaves, key))
}
