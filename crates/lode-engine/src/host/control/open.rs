//! Volumes as their clients know them: found by name, opened under a handle.

use std::sync::Arc;

use lode_block::BlockDevice;
use lode_extent::VolumeInfo;

use super::PoolHost;
use crate::control::{ControlError, VolumeName, VolumeStatus};
use crate::core::ShardCore;
use crate::request::VolumeHandle;
use crate::stats::VolumeStats;
use crate::throttle::Throttle;
use crate::volume::Volume;

impl<D: BlockDevice> PoolHost<D> {
    /// Finds a volume by name and opens it.
    pub(super) fn open(
        &mut self,
        name: &VolumeName,
        core: &ShardCore,
    ) -> Result<VolumeStatus, ControlError> {
        let unknown = || ControlError::UnknownVolume {
            name: name.volume.clone(),
        };
        let Some(info) = self.pool.find_volume(&name.volume) else {
            // Where part of the table cannot be read, the volume may be there all the same.
            return Err(self
                .pool
                .damaged_table()
                .map_or_else(unknown, ControlError::Pool));
        };
        let status = self.open_info(info, core)?;
        let handle = status.handle;
        let open = self.volumes.get(handle.slot, handle.generation);
        if open.is_none_or(|volume| volume.is_closing) {
            Err(unknown())
        } else {
            Ok(status)
        }
    }

    pub(super) fn open_info(
        &mut self,
        info: VolumeInfo,
        core: &ShardCore,
    ) -> Result<VolumeStatus, ControlError> {
        let place = self.volumes.find(info.id).or_else(|| {
            let throttle = Arc::new(Throttle::new(info.limits));
            let stats = Arc::new(VolumeStats::new(&self.name, &info.name, throttle));
            core.stats.add_volume(Arc::clone(&stats));
            let is_sub_block = info.block_size.bytes() < self.device_block_bytes;
            self.volumes.insert(Volume::new(&info, is_sub_block, stats))
        });
        let (slot, generation) = place.ok_or(ControlError::TooMany)?;
        let handle = VolumeHandle {
            pool: self.index,
            slot,
            generation,
        };
        Ok(VolumeStatus {
            pool: self.name.clone(),
            handle,
            info,
        })
    }

    /// Reserves a volume for one change at a time.
    pub(super) fn claim(
        &mut self,
        handle: VolumeHandle,
        name: &VolumeName,
    ) -> Result<&mut Volume, ControlError> {
        let volume = self
            .volumes
            .get_mut(handle.slot, handle.generation)
            .ok_or(ControlError::StaleHandle)?;
        if volume.is_changing {
            return Err(ControlError::Busy {
                name: name.volume.clone(),
            });
        }
        volume.is_changing = true;
        Ok(volume)
    }
}
