//! The end of a volume: its requests first, then its name and its space.

use lode_block::BlockDevice;
use lode_extent::{ExtentError, RequestId, VolumeId};

use super::{Answer, ControlStep};
use crate::control::{ControlError, VolumeName};
use crate::core::ShardCore;
use crate::host::PoolHost;
use crate::host::guests::Farewell;
use crate::port::{Serial, UnitRange};
use crate::request::VolumeHandle;

/// A deletion under way.
#[derive(Debug)]
pub(super) struct Deletion {
    volume: VolumeHandle,
    id: VolumeId,
    request: Option<RequestId>,
    /// Takes the volume from the other cores.
    recall: Option<Serial>,
}

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
        Ok(ControlStep::Delete(Deletion {
            volume: status.handle,
            id: status.info.id,
            request,
            recall: None,
        }))
    }

    /// One step of a deletion: its requests end first. The next step, or `None` to wait.
    pub(super) fn delete(
        &mut self,
        deletion: &mut Deletion,
        core: &mut ShardCore,
    ) -> Result<Option<ControlStep>, ExtentError> {
        let (handle, id) = (deletion.volume, deletion.id);
        let recall = match deletion.recall {
            Some(recall) => recall,
            None => self.recall(handle, UnitRange::from(0), Farewell::Yes, core),
        };
        deletion.recall = Some(recall);
        let active = self
            .volumes
            .get(handle.slot, handle.generation)
            .map_or(0, |volume| volume.active);
        if active > 0 || self.recalls.is_pending(recall) {
            return Ok(None);
        }
        let outcome = self.pool.delete_volume(id, deletion.request.as_ref());
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
