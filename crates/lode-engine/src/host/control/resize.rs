//! A volume's size: both ways, data beyond a smaller one given up only when that is allowed.

use lode_block::{BlockDevice, Durability};
use lode_extent::{ExtentError, VolumeId};

use super::{Answer, ControlStep, Progress};
use crate::control::{ControlError, Shrink, VolumeName};
use crate::core::ShardCore;
use crate::host::PoolHost;
use crate::host::guests::Farewell;
use crate::host::{UNIT, units_to};
use crate::op::Owner;
use crate::port::{Serial, UnitRange};
use crate::request::{DataOperation, DataRequest, Token, VolumeHandle};

/// A resize under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resize {
    pub(super) volume: VolumeHandle,
    pub(super) id: VolumeId,
    pub(super) old_bytes: u64,
    pub(super) new_bytes: u64,
    /// Takes the part that goes from the other cores.
    pub(super) recall: Option<Serial>,
    /// What the new last unit holds beyond the new size is zeros.
    pub(super) is_tail_zeroed: bool,
}

impl<D: BlockDevice> PoolHost<D> {
    pub(super) fn begin_resize(
        &mut self,
        name: &VolumeName,
        new_bytes: u64,
        shrink: Shrink,
        core: &ShardCore,
    ) -> Result<ControlStep, ControlError> {
        let status = self.open(name, core)?;
        let current_bytes = status.info.size_bytes;
        if new_bytes < current_bytes && shrink == Shrink::Refuse {
            return Err(ControlError::WouldShrink {
                size_bytes: new_bytes,
                current_bytes,
            });
        }
        if new_bytes == 0 || !status.info.block_size.divides(new_bytes) {
            return Err(ExtentError::InvalidSize {
                size_bytes: new_bytes,
            }
            .into());
        }
        let volume = self.claim(status.handle, name)?;
        // From here on nothing new reaches the part that goes.
        volume.size_bytes = current_bytes.min(new_bytes);
        Ok(ControlStep::Resize {
            resize: Resize {
                volume: status.handle,
                id: status.info.id,
                old_bytes: current_bytes,
                new_bytes,
                recall: None,
                is_tail_zeroed: false,
            },
        })
    }

    /// One step of a resize: the tail of the last unit is zeroed first, so that a later growth
    /// shows zeros there. The next step, or `None` to wait.
    pub(super) fn resize(
        &mut self,
        slot: usize,
        resize: &mut Resize,
        core: &mut ShardCore,
    ) -> Result<Option<ControlStep>, ExtentError> {
        let handle = resize.volume;
        let shrinks = resize.new_bytes < resize.old_bytes;
        if shrinks && resize.recall.is_none() {
            let tail = UnitRange::from(resize.new_bytes / UNIT);
            resize.recall = Some(self.recall(handle, tail, Farewell::No, core));
        }
        if resize
            .recall
            .is_some_and(|recall| self.recalls.is_pending(recall))
        {
            return Ok(None);
        }
        if self.volumes.get(handle.slot, handle.generation).is_none() {
            return Err(ExtentError::UnknownVolume { volume: resize.id });
        }
        if shrinks && !resize.is_tail_zeroed {
            // Requests that were checked against the old size may still use the part that goes:
            // they end first. None is added to them.
            let uses_tail = core
                .ops
                .iter_mut()
                .any(|(_, op)| op.volume == handle && op.range_end() > resize.new_bytes);
            if uses_tail {
                return Ok(None);
            }
            let tail_end = (units_to(resize.new_bytes) * UNIT).min(resize.old_bytes);
            if tail_end > resize.new_bytes {
                if !core.ops.has_room() {
                    return Ok(None);
                }
                resize.is_tail_zeroed = true;
                let request = zero_tail(handle, resize.new_bytes, tail_end);
                let owner = Owner::Control(u16::try_from(slot).unwrap_or(u16::MAX));
                let index = core.ops.take_up(owner, request, Durability::Data, core.now);
                let index = core.queued(index);
                core.wake(index);
                let next = ControlStep::Zero {
                    resize: *resize,
                    outcome: None,
                };
                return Ok(Some(next));
            }
        }
        let ticket = self.pool.resize_volume(resize.id, resize.new_bytes)?;
        self.end_resize(resize, resize.new_bytes);
        Ok(Some(ControlStep::Commit {
            ticket,
            answer: Answer::Volume(resize.id),
        }))
    }

    pub(super) fn end_resize(&mut self, resize: &Resize, size_bytes: u64) {
        let handle = resize.volume;
        if let Some(volume) = self.volumes.get_mut(handle.slot, handle.generation) {
            volume.size_bytes = size_bytes;
            volume.is_changing = false;
            volume.recent.forget();
        }
    }

    pub(super) fn refused_resize(&mut self, resize: &Resize, error: ExtentError) -> Progress {
        let progress = self.refused(error);
        if matches!(progress, Progress::Ended(_)) {
            self.end_resize(resize, resize.old_bytes);
        }
        progress
    }
}

fn zero_tail(volume: VolumeHandle, start: u64, end: u64) -> DataRequest {
    DataRequest {
        token: Token(0),
        volume,
        operation: DataOperation::WriteZeroes,
        durability: Durability::Data,
        offset_bytes: start,
        length_bytes: end - start,
        buffer: None,
    }
}
