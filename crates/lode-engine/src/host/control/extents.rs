//! How a volume is mapped, as a client sees it.

use lode_block::BlockDevice;
use lode_extent::{LogicalBlock, LookupError};

use super::Progress;
use crate::control::{ControlError, ControlReply, Extent};
use crate::error::IoError;
use crate::host::start::units_to;
use crate::host::{Pieces, PoolHost};
use crate::request::VolumeHandle;

impl<D: BlockDevice> PoolHost<D> {
    pub(super) fn list_extents(
        &mut self,
        handle: VolumeHandle,
        first: LogicalBlock,
        count: u32,
    ) -> Progress {
        let Some(volume) = self.volumes.get(handle.slot, handle.generation) else {
            return Progress::Ended(Err(ControlError::StaleHandle));
        };
        let units = units_to(volume.size_bytes);
        let left = units.saturating_sub(first.get()).min(u64::from(count));
        let count = u32::try_from(left).unwrap_or(u32::MAX);
        if count == 0 {
            return Progress::Ended(Ok(ControlReply::Extents(Vec::new())));
        }
        let mut pieces = Pieces::new();
        match self.pool.lookup(volume.id, first, count, &mut pieces) {
            Ok(()) => Progress::Ended(Ok(ControlReply::Extents(merge(&pieces)))),
            Err(LookupError::NotResident(missing)) => {
                self.pool.load(missing);
                Progress::Waits
            }
            Err(_) => Progress::Ended(Err(ControlError::Io(IoError::Damaged))),
        }
    }
}

/// Pieces as a client sees them: neighbours of one kind are one extent.
fn merge(pieces: &Pieces) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match extents.last_mut() {
            Some(last) if last.kind == piece.kind => last.count += piece.count,
            _ => extents.push(Extent {
                kind: piece.kind,
                first: piece.logical,
                count: piece.count,
            }),
        }
    }
    extents
}
