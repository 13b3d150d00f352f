//! The volumes and the remembered requests, all in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use crate::catalog::unsettled::Unsettled;
use crate::extent::EXTENT_BYTES;
use crate::format::block::BlockKind;
use crate::format::object::VolumeRecord;
use crate::format::request::RequestRecord;
use crate::tree::{Shape, Tree};
use crate::types::{PoolBlock, RequestId, VolumeId};
use crate::volume::VolumeInfo;
use lode_units::limits::ALLOCATION_UNIT_BYTES;

pub(crate) mod unsettled;

/// A volume in memory.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) record: VolumeRecord,
    pub(crate) map: Tree,
    /// Where its next blocks should lie; block 0 when it has none yet.
    pub(crate) hint: PoolBlock,
    pub(crate) unsettled: Unsettled,
    /// Part of its map cannot be read.
    pub(crate) is_damaged: bool,
    /// Changes of its map are durable that could not be applied: what there is of it is too old.
    pub(crate) is_closed: bool,
}

/// The volumes of a pool.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    by_id: HashMap<VolumeId, Volume, BuildHasherDefault<IdHasher>>,
    by_name: BTreeMap<String, VolumeId>,
    /// Volumes whose record differs from the object table.
    pub(crate) dirty: BTreeSet<VolumeId>,
    /// Volumes with space to give back in the background.
    pub(crate) trimming: BTreeSet<VolumeId>,
    /// Those of them that wait for metadata to be readable again.
    stalled: BTreeSet<VolumeId>,
}

/// Requests that may be retried, in the order in which they were carried out.
#[derive(Debug, Default)]
pub(crate) struct RequestLog {
    by_id: BTreeMap<RequestId, RequestRecord>,
    order: VecDeque<(u64, RequestId)>,
}

impl Volume {
    /// A volume whose map starts where its record says.
    pub(crate) fn new(id: VolumeId, record: VolumeRecord) -> Self {
        let shape = Shape {
            kind: BlockKind::ExtentMap,
            owner: id.get(),
            value_bytes: EXTENT_BYTES,
        };
        Self {
            map: Tree::new(shape, record.map),
            record,
            hint: PoolBlock::new(0),
            unsettled: Unsettled::default(),
            is_damaged: false,
            is_closed: false,
        }
    }

    /// Units that its size covers; the last one may be covered in part.
    pub(crate) fn units(&self) -> u64 {
        self.record.size_bytes.div_ceil(ALLOCATION_UNIT_BYTES)
    }

    /// The first unit that it may not map for long: 0 when it is being deleted.
    pub(crate) fn trim_from(&self) -> u64 {
        if self.record.is_deleting {
            0
        } else {
            self.units()
        }
    }

    pub(crate) fn info(&self, id: VolumeId) -> VolumeInfo {
        VolumeInfo {
            id,
            name: self.record.name.clone(),
            size_bytes: self.record.size_bytes,
            block_size: self.record.block_size,
            sync: self.record.sync,
            limits: self.record.limits,
            created_unix_seconds: self.record.created_unix_seconds,
            allocated_bytes: self
                .record
                .allocated_blocks
                .saturating_mul(ALLOCATION_UNIT_BYTES),
            is_damaged: self.is_damaged || self.is_closed,
        }
    }
}

impl Catalog {
    /// A volume, being deleted or not.
    #[inline]
    pub(crate) fn any(&self, id: VolumeId) -> Option<&Volume> {
        self.by_id.get(&id)
    }

    pub(crate) fn any_mut(&mut self, id: VolumeId) -> Option<&mut Volume> {
        self.by_id.get_mut(&id)
    }

    /// A volume that clients see.
    #[inline]
    pub(crate) fn live(&self, id: VolumeId) -> Option<&Volume> {
        self.any(id).filter(|volume| !volume.record.is_deleting)
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<VolumeId> {
        self.by_name.get(name).copied()
    }

    /// The names after `after`, in order, with their volumes.
    pub(crate) fn names_after(&self, after: Option<&str>) -> impl Iterator<Item = VolumeId> {
        use std::ops::Bound;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_name
            .range::<str, _>((from, Bound::Unbounded))
            .map(|(_, &id)| id)
    }

    /// Takes a volume in; `false` where its id or its name is taken.
    pub(crate) fn insert(&mut self, id: VolumeId, volume: Volume) -> bool {
        if self.by_id.contains_key(&id) {
            return false;
        }
        let record = &volume.record;
        if !record.is_deleting {
            if self.by_name.contains_key(&record.name) {
                return false;
            }
            self.by_name.insert(record.name.clone(), id);
        }
        if record.is_deleting || record.is_trimming {
            self.trimming.insert(id);
        }
        self.by_id.insert(id, volume);
        true
    }

    /// Frees a volume's name and has its space given back.
    pub(crate) fn begin_delete(&mut self, id: VolumeId) -> bool {
        let Some(volume) = self.by_id.get_mut(&id) else {
            return false;
        };
        if volume.record.is_deleting {
            return false;
        }
        volume.record.is_deleting = true;
        self.by_name.remove(&volume.record.name);
        self.trimming.insert(id);
        self.dirty.insert(id);
        true
    }

    /// Leaves a volume's space where it is for now: metadata that say where cannot be read.
    pub(crate) fn stall(&mut self, id: VolumeId) {
        if self.trimming.remove(&id) {
            self.stalled.insert(id);
        }
    }

    /// What cannot be read may be readable by now.
    pub(crate) fn recall_damaged(&mut self) {
        self.trimming.append(&mut self.stalled);
        for volume in self.by_id.values_mut() {
            volume.is_damaged = false;
        }
    }

    /// Forgets a volume that holds nothing.
    pub(crate) fn remove(&mut self, id: VolumeId) {
        self.by_id.remove(&id);
        self.dirty.remove(&id);
        self.trimming.remove(&id);
    }

    /// The volume with the lowest id from `id` on.
    pub(crate) fn first_from(&self, id: VolumeId) -> Option<VolumeId> {
        self.by_id
            .keys()
            .copied()
            .filter(|&other| other >= id)
            .min()
    }

    pub(crate) fn count(&self) -> usize {
        self.by_id.len()
    }

    /// All volumes, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (VolumeId, &Volume)> {
        self.by_id.iter().map(|(&id, volume)| (id, volume))
    }
}

impl RequestLog {
    pub(crate) fn find(&self, id: &RequestId) -> Option<&RequestRecord> {
        self.by_id.get(id)
    }

    /// Remembers a request; gives the number of the one to forget, where there are more than
    /// `limit`.
    pub(crate) fn remember(
        &mut self,
        number: u64,
        record: RequestRecord,
        limit: usize,
    ) -> Option<u64> {
        self.order.push_back((number, record.id.clone()));
        self.by_id.insert(record.id.clone(), record);
        if self.order.len() <= limit {
            return None;
        }
        let (oldest, id) = self.order.pop_front()?;
        self.by_id.remove(&id);
        Some(oldest)
    }
}

/// Spreads ids, which are consecutive numbers, over a hash table.
#[derive(Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}
