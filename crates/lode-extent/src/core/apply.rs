//! Applying records: the one place where the state changes, live and at replay.

use crate::catalog::Volume;
use crate::core::{ApplyFault, Core};
use crate::extent::{ExtentKind, ExtentSource, Removed, replace};
use crate::format::object::{FIRST_OBJECT_ID, Root, VolumeRecord};
use crate::format::record::Record;
use crate::format::request::{REQUESTS_MAX, RequestRecord};
use crate::format::superblock::FEATURE_VOLUME_LIMITS;
use crate::space::Run;
use crate::tree::{KEY_END, TreeFault};
use crate::types::{PoolBlock, VolumeId};
use crate::volume::{VolumeLimits, VolumeSpec};
use lode_units::limits::{NAME_LENGTH_MAX_BYTES, VOLUME_SIZE_MAX_BYTES};

/// Distance between the places where volumes begin: 32 MiB.
const ROTOR_STEP: u64 = 8192;

impl Core {
    /// Applies one record and appends the blocks that it frees to `freed`.
    ///
    /// A fault is found before anything is changed.
    pub(crate) fn apply(
        &mut self,
        record: &Record,
        freed: &mut Vec<Run>,
    ) -> Result<(), ApplyFault> {
        match record {
            Record::Create { volume, spec } => self.apply_create(*volume, spec),
            Record::Request(request) => self.apply_request(request),
            Record::Resize { volume, size_bytes } => self.apply_resize(*volume, *size_bytes),
            Record::Delete { volume } => {
                let begun = self.catalog.begin_delete(*volume);
                begun.then_some(()).ok_or(ApplyFault::Conflict)
            }
            Record::Map {
                volume,
                logical,
                physical,
                count,
            } => self.apply_map(*volume, logical.get(), *physical, *count, freed),
            Record::Unmap {
                volume,
                logical,
                count,
            } => self.apply_unmap(*volume, logical.get(), *count, freed),
            Record::Remove { volume } => self.apply_remove(*volume),
            Record::TrimEnd { volume } => self.apply_trim_end(*volume),
            Record::Limit { volume, limits } => self.apply_limit(*volume, *limits),
        }
    }

    fn apply_create(&mut self, id: VolumeId, spec: &VolumeSpec) -> Result<(), ApplyFault> {
        let is_new = id.get() >= FIRST_OBJECT_ID && id.get() >= self.next_object;
        let is_sane = spec.name.len() <= NAME_LENGTH_MAX_BYTES
            && spec.size_bytes <= VOLUME_SIZE_MAX_BYTES
            && id.get() < KEY_END - 1;
        let is_taken = self.catalog.by_name(&spec.name).is_some() || self.catalog.any(id).is_some();
        if !is_new || !is_sane || is_taken {
            return Err(ApplyFault::Conflict);
        }
        let record = VolumeRecord {
            name: spec.name.clone(),
            size_bytes: spec.size_bytes,
            block_size: spec.block_size,
            sync: spec.sync,
            limits: spec.limits,
            created_unix_seconds: spec.created_unix_seconds,
            birth_epoch: self.epoch,
            is_deleting: false,
            is_trimming: false,
            allocated_blocks: 0,
            map: Root::default(),
        };
        let written = self
            .objects
            .upsert(&mut self.store, id.get(), &record.encode());
        written.map_err(|_fault| ApplyFault::Damaged(id))?;
        self.next_object = id.get() + 1;
        self.catalog.insert(id, Volume::new(id, record));
        self.note_limits(&spec.limits);
        Ok(())
    }

    fn apply_limit(&mut self, id: VolumeId, limits: VolumeLimits) -> Result<(), ApplyFault> {
        let volume = self.catalog.any_mut(id).ok_or(ApplyFault::Conflict)?;
        volume.record.limits = limits;
        self.catalog.dirty.insert(id);
        self.note_limits(&limits);
        Ok(())
    }

    /// Lets the next superblock say that volumes have limits: a program that does not know them
    /// leaves the pool alone from then on.
    fn note_limits(&mut self, limits: &VolumeLimits) {
        if !limits.is_unset() {
            self.superblock.features_incompat |= FEATURE_VOLUME_LIMITS;
        }
    }

    fn apply_request(&mut self, request: &RequestRecord) -> Result<(), ApplyFault> {
        let number = self.next_request;
        let written = self
            .requests
            .upsert(&mut self.store, number, &request.encode());
        if written.is_err() {
            // The end of the table cannot be read: the request is remembered until the pool is
            // closed.
            let record = request.clone();
            self.request_log.remember(number, record, REQUESTS_MAX);
            return Ok(());
        }
        self.next_request += 1;
        let oldest = self
            .request_log
            .remember(number, request.clone(), REQUESTS_MAX);
        if let Some(oldest) = oldest {
            // A damaged leaf keeps its entry: it is of no use any more.
            let _forgotten: Result<bool, TreeFault> = self.requests.remove(&mut self.store, oldest);
        }
        Ok(())
    }

    fn apply_resize(&mut self, id: VolumeId, size_bytes: u64) -> Result<(), ApplyFault> {
        let volume = self.catalog.any_mut(id).ok_or(ApplyFault::Conflict)?;
        if size_bytes > VOLUME_SIZE_MAX_BYTES {
            return Err(ApplyFault::Conflict);
        }
        let may_map = volume.is_closed || !volume.map.is_empty();
        if size_bytes < volume.record.size_bytes && may_map {
            volume.record.is_trimming = true;
            self.catalog.trimming.insert(id);
        }
        let volume = self.catalog.any_mut(id).expect("it was found just now");
        volume.record.size_bytes = size_bytes;
        self.catalog.dirty.insert(id);
        Ok(())
    }

    fn apply_map(
        &mut self,
        id: VolumeId,
        logical: u64,
        physical: PoolBlock,
        count: u32,
        freed: &mut Vec<Run>,
    ) -> Result<(), ApplyFault> {
        let end = self.checked_end(logical, count.into())?;
        let run = Run {
            start: physical,
            count,
        };
        self.ensure_space(physical)?;
        self.ensure_range(id, logical, end)?;
        let claimed = if self.is_replaying {
            self.space.claim(&self.geometry, run)
        } else {
            self.space.own(&self.geometry, run)
        };
        claimed.map_err(|_conflict| ApplyFault::Conflict)?;
        let source = ExtentSource {
            physical,
            kind: ExtentKind::Written,
            birth: self.epoch,
        };
        let volume = self.catalog.any_mut(id).ok_or(ApplyFault::Conflict)?;
        let mut removed = Removed::new();
        replace(
            &mut volume.map,
            &mut self.store,
            (logical, end),
            Some(source),
            &mut removed,
        )
        .expect("the leaves of the range are in memory");
        volume.record.allocated_blocks += u64::from(count);
        volume.hint = physical.plus(count.into());
        self.data_blocks += u64::from(count);
        self.settle_removed(id, &removed, freed)
    }

    fn apply_unmap(
        &mut self,
        id: VolumeId,
        logical: u64,
        count: u64,
        freed: &mut Vec<Run>,
    ) -> Result<(), ApplyFault> {
        let end = self.checked_end(logical, count)?;
        self.ensure_range(id, logical, end)?;
        let volume = self.catalog.any_mut(id).ok_or(ApplyFault::Conflict)?;
        let mut removed = Removed::new();
        replace(
            &mut volume.map,
            &mut self.store,
            (logical, end),
            None,
            &mut removed,
        )
        .expect("the leaves of the range are in memory");
        self.settle_removed(id, &removed, freed)
    }

    /// Accounts for extents that left a volume's map.
    fn settle_removed(
        &mut self,
        id: VolumeId,
        removed: &Removed,
        freed: &mut Vec<Run>,
    ) -> Result<(), ApplyFault> {
        let mut blocks = 0;
        for extent in removed {
            let run = Run {
                start: extent.physical,
                count: extent.count,
            };
            let disowned = self.space.disown(&self.geometry, run);
            disowned.map_err(|_conflict| ApplyFault::Conflict)?;
            blocks += u64::from(extent.count);
            freed.push(run);
        }
        let volume = self.catalog.any_mut(id).ok_or(ApplyFault::Conflict)?;
        let left = volume.record.allocated_blocks.checked_sub(blocks);
        volume.record.allocated_blocks = left.ok_or(ApplyFault::Conflict)?;
        let left = self.data_blocks.checked_sub(blocks);
        self.data_blocks = left.ok_or(ApplyFault::Conflict)?;
        self.catalog.dirty.insert(id);
        Ok(())
    }

    fn apply_remove(&mut self, id: VolumeId) -> Result<(), ApplyFault> {
        let volume = self.catalog.any(id).ok_or(ApplyFault::Conflict)?;
        if volume.is_closed {
            return Err(ApplyFault::Damaged(id));
        }
        if !volume.record.is_deleting || !volume.map.is_empty() {
            return Err(ApplyFault::Conflict);
        }
        let removed = self.objects.remove(&mut self.store, id.get());
        if removed != Ok(true) {
            return Err(ApplyFault::Conflict);
        }
        self.catalog.remove(id);
        Ok(())
    }

    fn apply_trim_end(&mut self, id: VolumeId) -> Result<(), ApplyFault> {
        let volume = self.catalog.any_mut(id).ok_or(ApplyFault::Conflict)?;
        volume.record.is_trimming = false;
        self.catalog.trimming.remove(&id);
        self.catalog.dirty.insert(id);
        Ok(())
    }

    /// Where a volume without a hint begins.
    pub(crate) fn next_volume_place(&mut self) -> PoolBlock {
        let place = self.volume_rotor;
        let next = place.plus(ROTOR_STEP);
        self.volume_rotor = match self.geometry.group_of(next) {
            Some(_) => next,
            None => self.geometry.group_start(0),
        };
        place
    }

    fn checked_end(&self, logical: u64, count: u64) -> Result<u64, ApplyFault> {
        logical
            .checked_add(count)
            .filter(|&end| count > 0 && end <= KEY_END)
            .ok_or(ApplyFault::Conflict)
    }
}
