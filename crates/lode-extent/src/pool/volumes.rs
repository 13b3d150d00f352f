//! Volumes: making, resizing, deleting, listing.

use lode_units::BlockSize;
use lode_units::limits::{ALLOCATION_UNIT_BYTES, NAME_LENGTH_MAX_BYTES, VOLUME_SIZE_MAX_BYTES};
use smallvec::SmallVec;

use crate::error::ExtentError;
use crate::format::object::sync_raw;
use crate::format::record::{RECORD_BYTES_MAX, Record, SMALL_RECORD_BYTES};
use crate::format::request::{RequestKind, RequestRecord};
use crate::pool::Pool;
use crate::types::{RequestId, Ticket, VolumeId};
use crate::volume::{VOLUMES_MAX, VolumeInfo, VolumeLimits, VolumeSpec};

impl Pool {
    /// Makes a volume that reads as zeros. It is there at once; acknowledge it when its ticket is
    /// durable. A retry with the same request id and the same attributes gives the same answer,
    /// also after a restart, as long as the request is among the last 1024.
    ///
    /// # Errors
    /// [`ExtentError::AlreadyExists`], [`ExtentError::RequestIdReused`],
    /// [`ExtentError::InvalidName`], [`ExtentError::InvalidSize`],
    /// [`ExtentError::InvalidBlockSize`], [`ExtentError::InvalidLimits`],
    /// [`ExtentError::TooManyVolumes`],
    /// [`ExtentError::MetadataDamaged`] while part of the object table cannot be read,
    /// [`ExtentError::JournalFull`], or what [`state`](Self::state) makes of it.
    pub fn create_volume(
        &mut self,
        spec: &VolumeSpec,
        request: Option<&RequestId>,
    ) -> Result<(VolumeId, Ticket), ExtentError> {
        self.ready()?;
        check_name(&spec.name)?;
        check_size(spec.size_bytes, spec.block_size)?;
        check_limits(&spec.limits)?;
        let fingerprint = fingerprint_of(spec);
        if let Some(volume) = self.answered(request, RequestKind::Create, fingerprint)? {
            return Ok((volume, self.recorded()));
        }
        let core = self.core_mut();
        if core.catalog.by_name(&spec.name).is_some() {
            return Err(ExtentError::AlreadyExists {
                name: spec.name.clone(),
            });
        }
        if core.catalog.count() >= VOLUMES_MAX {
            return Err(ExtentError::TooManyVolumes { limit: VOLUMES_MAX });
        }
        if let Some(error) = self.damaged_table() {
            return Err(error);
        }
        let volume = VolumeId::new(self.core_mut().next_object);
        self.admit(RECORD_BYTES_MAX + SMALL_RECORD_BYTES, 2)?;
        let create = Record::Create {
            volume,
            spec: spec.clone(),
        };
        let ticket = self.change_volume(
            create,
            request.map(|id| (id, RequestKind::Create, volume, fingerprint)),
        )?;
        self.counters.transactions_create += 1;
        Ok((volume, ticket))
    }

    /// Changes a volume's size. Acknowledge it when its ticket is durable.
    ///
    /// A shrink gives the whole units beyond the new size back in the background; until that has
    /// ended the volume cannot grow. Where a size is no multiple of 4 KiB the last unit keeps its
    /// bytes beyond the size: before a growth the caller sees to it that they are zeros. Requests
    /// beyond a smaller size must have ended.
    ///
    /// # Errors
    /// [`ExtentError::TrimPending`] for a growth that has to wait, [`ExtentError::InvalidSize`],
    /// [`ExtentError::UnknownVolume`], [`ExtentError::JournalFull`], or what
    /// [`state`](Self::state) makes of it.
    pub fn resize_volume(
        &mut self,
        volume: VolumeId,
        new_size_bytes: u64,
    ) -> Result<Ticket, ExtentError> {
        let core = self.ready()?;
        let target = core
            .catalog
            .live(volume)
            .ok_or(ExtentError::UnknownVolume { volume })?;
        check_size(new_size_bytes, target.record.block_size)?;
        if new_size_bytes == target.record.size_bytes {
            return Ok(self.recorded());
        }
        let new_units = new_size_bytes.div_ceil(ALLOCATION_UNIT_BYTES);
        if target.record.is_trimming && new_units > target.units() {
            return Err(ExtentError::TrimPending { volume });
        }
        self.admit(SMALL_RECORD_BYTES, 1)?;
        let resize = Record::Resize {
            volume,
            size_bytes: new_size_bytes,
        };
        let ticket = self.change_volume(resize, None)?;
        self.counters.transactions_resize += 1;
        Ok(ticket)
    }

    /// Sets how much a volume may do. Acknowledge it when its ticket is durable.
    ///
    /// # Errors
    /// [`ExtentError::InvalidLimits`], [`ExtentError::UnknownVolume`],
    /// [`ExtentError::JournalFull`], or what [`state`](Self::state) makes of it.
    pub fn limit_volume(
        &mut self,
        volume: VolumeId,
        limits: VolumeLimits,
    ) -> Result<Ticket, ExtentError> {
        let core = self.ready()?;
        let target = core
            .catalog
            .live(volume)
            .ok_or(ExtentError::UnknownVolume { volume })?;
        check_limits(&limits)?;
        if limits == target.record.limits {
            return Ok(self.recorded());
        }
        self.admit(SMALL_RECORD_BYTES, 1)?;
        let ticket = self.change_volume(Record::Limit { volume, limits }, None)?;
        self.counters.transactions_limit += 1;
        Ok(ticket)
    }

    /// The incompatible features that the newest superblock names.
    #[cfg(test)]
    pub(crate) fn features_incompat(&self) -> u64 {
        let core = self.core.as_ref();
        core.map_or(0, |core| core.superblock.features_incompat)
    }

    /// Deletes a volume: its name is free at once, its space follows in the background, also
    /// across a restart. Acknowledge it when its ticket is durable. Its requests must have ended.
    /// A retry with the same request id succeeds again.
    ///
    /// # Errors
    /// [`ExtentError::UnknownVolume`], [`ExtentError::RequestIdReused`],
    /// [`ExtentError::JournalFull`], or what [`state`](Self::state) makes of it.
    pub fn delete_volume(
        &mut self,
        volume: VolumeId,
        request: Option<&RequestId>,
    ) -> Result<Ticket, ExtentError> {
        self.ready()?;
        let core = self.core_mut();
        if let Some(before) = request.and_then(|id| core.request_log.find(id)) {
            let is_retry = (before.kind, before.volume) == (RequestKind::Delete, volume);
            return if is_retry {
                Ok(self.recorded())
            } else {
                Err(ExtentError::RequestIdReused)
            };
        }
        let Some(target) = core.catalog.live(volume) else {
            return Err(ExtentError::UnknownVolume { volume });
        };
        let fingerprint = hash(target.info(volume).name.as_bytes());
        self.admit(2 * SMALL_RECORD_BYTES, 2)?;
        let ticket = self.change_volume(
            Record::Delete { volume },
            request.map(|id| (id, RequestKind::Delete, volume, fingerprint)),
        )?;
        self.counters.transactions_delete += 1;
        Ok(ticket)
    }

    /// The change as which `request` deleted a volume of this name, if it did: its retry is
    /// answered alike, whoever bears the name by now.
    ///
    /// # Errors
    /// [`ExtentError::RequestIdReused`] when the request did something else, or what
    /// [`state`](Self::state) makes of it.
    pub fn deleted_by(
        &mut self,
        name: &str,
        request: &RequestId,
    ) -> Result<Option<Ticket>, ExtentError> {
        self.ready()?;
        let fingerprint = hash(name.as_bytes());
        let before = self.answered(Some(request), RequestKind::Delete, fingerprint)?;
        Ok(before.map(|_volume| self.recorded()))
    }

    /// A volume by its id.
    #[must_use]
    pub fn volume(&self, volume: VolumeId) -> Option<VolumeInfo> {
        let found = self.core.as_ref()?.catalog.live(volume)?;
        Some(found.info(volume))
    }

    /// A volume by its name.
    #[must_use]
    pub fn find_volume(&self, name: &str) -> Option<VolumeInfo> {
        let id = self.core.as_ref()?.catalog.by_name(name)?;
        self.volume(id)
    }

    /// At most `limit` volumes in the order of their names' bytes, from the first one after
    /// `after` on.
    #[must_use]
    pub fn volumes(&self, after: Option<&str>, limit: usize) -> Vec<VolumeInfo> {
        let Some(core) = self.core.as_ref() else {
            return Vec::new();
        };
        core.catalog
            .names_after(after)
            .take(limit)
            .filter_map(|id| self.volume(id))
            .collect()
    }

    /// The volume that this very request made or deleted before.
    fn answered(
        &mut self,
        request: Option<&RequestId>,
        kind: RequestKind,
        fingerprint: u64,
    ) -> Result<Option<VolumeId>, ExtentError> {
        let log = &self.core_mut().request_log;
        let Some(before) = request.and_then(|id| log.find(id)) else {
            return Ok(None);
        };
        if (before.kind, before.fingerprint) == (kind, fingerprint) {
            Ok(Some(before.volume))
        } else {
            Err(ExtentError::RequestIdReused)
        }
    }

    /// Where the object table is damaged: the names of some volumes are not known. A name that is
    /// not found may be one of theirs, and a new volume might take one of them.
    #[must_use]
    pub fn damaged_table(&self) -> Option<ExtentError> {
        self.damaged_table.map(|block| self.metadata_damaged(block))
    }

    fn change_volume(
        &mut self,
        record: Record,
        request: Option<(&RequestId, RequestKind, VolumeId, u64)>,
    ) -> Result<Ticket, ExtentError> {
        let mut records: SmallVec<[Record; 2]> = SmallVec::new();
        records.push(record);
        records.extend(request.map(|(id, kind, volume, fingerprint)| {
            Record::Request(RequestRecord {
                id: id.clone(),
                kind,
                volume,
                fingerprint,
            })
        }));
        self.change(&records)
    }
}

/// Whether `name` may name a pool or a volume.
pub(super) fn check_name(name: &str) -> Result<(), ExtentError> {
    let length_bytes = name.len();
    if length_bytes == 0 || length_bytes > NAME_LENGTH_MAX_BYTES || name.contains(char::is_control)
    {
        return Err(ExtentError::InvalidName { length_bytes });
    }
    Ok(())
}

fn check_size(size_bytes: u64, block_size: BlockSize) -> Result<(), ExtentError> {
    if block_size != BlockSize::B512 && block_size != BlockSize::B4096 {
        return Err(ExtentError::InvalidBlockSize {
            bytes: block_size.bytes(),
        });
    }
    let is_valid = (1..=VOLUME_SIZE_MAX_BYTES).contains(&size_bytes);
    if is_valid && block_size.divides(size_bytes) {
        Ok(())
    } else {
        Err(ExtentError::InvalidSize { size_bytes })
    }
}

fn check_limits(limits: &VolumeLimits) -> Result<(), ExtentError> {
    if limits.is_valid() {
        Ok(())
    } else {
        Err(ExtentError::InvalidLimits { limits: *limits })
    }
}

/// A number that differs, but for accident, between creations that are not the same (FNV-1a).
fn fingerprint_of(spec: &VolumeSpec) -> u64 {
    let size = spec.size_bytes.to_le_bytes();
    let block = spec.block_size.bytes().to_le_bytes();
    let fixed = size.iter().chain(&block);
    let sync = [sync_raw(spec.sync)];
    // A volume without limits has the number that it had before there were any.
    let limits = (!spec.limits.is_unset()).then(|| limit_bytes(&spec.limits));
    let limits = limits.iter().flatten();
    hash(fixed.chain(&sync).chain(spec.name.as_bytes()).chain(limits))
}

fn limit_bytes(limits: &VolumeLimits) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&limits.iops_max.to_le_bytes());
    bytes[8..16].copy_from_slice(&limits.bandwidth_max_bytes.to_le_bytes());
    bytes[16..].copy_from_slice(&limits.burst_ms.to_le_bytes());
    bytes
}

/// FNV-1a.
fn hash<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u64 {
    bytes
        .into_iter()
        .fold(0xCBF2_9CE4_8422_2325, |hash: u64, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        })
}
