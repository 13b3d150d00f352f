//! How much a volume may do: recorded, then in force.

use lode_block::BlockDevice;
use lode_extent::{ExtentError, VolumeId};

use super::{Answer, ControlStep};
use crate::control::{ControlError, LimitChange, VolumeName};
use crate::core::ShardCore;
use crate::host::PoolHost;
use crate::request::VolumeHandle;

/// A change of limits under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    volume: VolumeHandle,
    id: VolumeId,
    change: LimitChange,
}

impl<D: BlockDevice> PoolHost<D> {
    pub(super) fn begin_limit(
        &mut self,
        name: &VolumeName,
        change: LimitChange,
        core: &ShardCore,
    ) -> Result<ControlStep, ControlError> {
        let status = self.open(name, core)?;
        Ok(ControlStep::Limit {
            limit: Limit {
                volume: status.handle,
                id: status.info.id,
                change,
            },
        })
    }

    /// Records the change to the limits as they are now, and puts it in force.
    pub(super) fn limit(&mut self, limit: &Limit) -> Result<ControlStep, ExtentError> {
        let (id, handle) = (limit.id, limit.volume);
        let unknown = ExtentError::UnknownVolume { volume: id };
        let info = self.pool.volume(id).ok_or(unknown)?;
        let limits = limit.change.applied_to(info.limits);
        let ticket = self.pool.limit_volume(id, limits)?;
        if let Some(volume) = self.volumes.get(handle.slot, handle.generation) {
            volume.throttle.set(limits);
        }
        Ok(ControlStep::Commit {
            ticket,
            answer: Answer::Volume(id),
        })
    }
}
