//! The end of a volume: its requests first, then its name and its space.

use lode_block::BlockDevice;
use lode_extent::{ExtentError, RequestId, VolumeId};

use super::{Answer, ControlStep};
use crate::control::{ControlError, VolumeName};
use crate::core::ShardCore;
use crate::host::PoolHost;
use crate::request::VolumeHandle;

impl<D: BlockDevice> PoolHost<D> {
    pub(super) fn begin_delete(
        &mut self,
        name: &VolumeName,
        request: Option<RequestId>,
        core: &ShardCore,
    ) -> Result<ControlStep, ControlError> {
        // The retry of a deletion is answered alike, whoever bears the name by now.
        if let Some(request) = &request
            && let Some(ticket) = self.pool.deleted_by(&name.volume, request)?
        {
            return Ok(ControlStep::Commit {
                ticket,
                answer: Answer::Done,
            });
        }
        let status = self.open(name, core)?;
        let volume = self.claim(status.handle, name)?;
        volume.is_closing = true;
        Ok(ControlStep::Delete {
            volume: status.handle,
            id: status.info.id,
            request,
        })
    }

    /// One step of a deletion: its requests end first. The next step, or `None` to wait.
    pub(super) fn delete(
        &mut self,
        handle: VolumeHandle,
        id: VolumeId,
        request: Option<&RequestId>,
        core: &mut ShardCore,
    ) -> Result<Option<ControlStep>, ExtentError> {
        let active = self
            .volumes
            .get(handle.slot, handle.generation)
            .map_or(0, |volume| volume.active);
        if active > 0 {
            return Ok(None);
        }
        let outcome = self.pool.delete_volume(id, request);
        if let Err(ExtentError::NotResident(_) | ExtentError::JournalFull) = outcome {
            return outcome.map(|_| None);
        }
        let ticket = match outcome {
            Ok(ticket) => ticket,
            Err(error) => {
                if let Some(volume) = self.volumes.get_mut(handle.slot, handle.generation) {
                    volume.is_closing = false;
                    volume.is_changing = false;
                }
                return Err(error);
            }
        };
        if let Some(volume) = self.volumes.remove(handle.slot) {
            core.stats.remove_volume(&volume.stats);
            core.ready.extend(volume.blocked);
        }
        Ok(Some(ControlStep::Commit {
            ticket,
            answer: Answer::Done,
        }))
    }
}
