//! The volumes that a guest knows, and its leases on them.

use std::sync::Arc;

use crate::core::ShardCore;
use crate::lease::Leases;
use crate::port::{Grant, Recall, VolumeFacts};
use crate::request::VolumeHandle;
use crate::stats::VolumeStats;

/// The volumes that a guest knows, in the slots that they have at home.
#[derive(Debug, Default)]
pub(super) struct GuestVolumes {
    slots: Vec<Option<GuestVolume>>,
}

/// A volume that a guest knows.
#[derive(Debug)]
pub(super) struct GuestVolume {
    generation: u32,
    pub(super) facts: VolumeFacts,
    pub(super) leases: Leases,
    pub(super) stats: Arc<VolumeStats>,
}

impl GuestVolumes {
    /// The volume of a handle, if it is known.
    #[inline]
    pub(super) fn get(&self, handle: VolumeHandle) -> Option<&GuestVolume> {
        let volume = self.slots.get(usize::from(handle.slot))?.as_ref()?;
        (volume.generation == handle.generation).then_some(volume)
    }

    /// The volume of a handle, if it is known.
    #[inline]
    pub(super) fn get_mut(&mut self, handle: VolumeHandle) -> Option<&mut GuestVolume> {
        let volume = self.slots.get_mut(usize::from(handle.slot))?.as_mut()?;
        (volume.generation == handle.generation).then_some(volume)
    }

    /// Takes what the home grants, for a volume that may not have been known.
    pub(super) fn take(&mut self, grant: Grant, pool: &str, core: &ShardCore) {
        let handle = grant.volume;
        if self.get(handle).is_none() {
            self.remove(handle.slot, core);
            let throttle = Arc::clone(&grant.facts.throttle);
            let stats = Arc::new(VolumeStats::new(pool, &grant.facts.name, throttle));
            core.stats.add_volume(Arc::clone(&stats));
            let slot = usize::from(handle.slot);
            if slot >= self.slots.len() {
                self.slots.resize_with(slot + 1, || None);
            }
            self.slots[slot] = Some(GuestVolume {
                generation: handle.generation,
                facts: grant.facts.clone(),
                leases: Leases::default(),
                stats,
            });
        }
        if let Some(volume) = self.get_mut(handle) {
            volume.facts = grant.facts;
            for extent in &grant.extents {
                volume.leases.insert(extent);
            }
        }
    }

    /// Lets go of leases, and of the volume when it goes.
    pub(super) fn recall(&mut self, recall: &Recall, core: &ShardCore) {
        let Some(volume) = self.get_mut(recall.volume) else {
            return;
        };
        volume.leases.remove(recall.units);
        if recall.is_farewell {
            self.remove(recall.volume.slot, core);
        }
    }

    /// Lets go of every lease.
    pub(super) fn forget_leases(&mut self) {
        let volumes = self.slots.iter_mut().flatten();
        volumes.for_each(|volume| volume.leases.clear());
    }

    /// Forgets every volume.
    pub(super) fn clear(&mut self, core: &ShardCore) {
        for volume in self.slots.drain(..).flatten() {
            core.stats.remove_volume(&volume.stats);
        }
    }

    fn remove(&mut self, slot: u16, core: &ShardCore) {
        let known = self.slots.get_mut(usize::from(slot));
        if let Some(volume) = known.and_then(Option::take) {
            core.stats.remove_volume(&volume.stats);
        }
    }
}
