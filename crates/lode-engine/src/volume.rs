//! Open volumes, and the ranges of them that requests hold against each other.
//!
//! A pure overwrite or a read holds nothing (a write does where blocks are smaller than the
//! device's). A write that allocates holds its units against
//! other writes that allocate. A barrier (discard, write zeroes, compare-and-write, shrink)
//! holds its range against everything: it waits for what is in flight there, and what comes
//! later waits for it.

use std::collections::VecDeque;
use std::sync::Arc;

use lode_block::Durability;
use lode_extent::{SyncAttribute, VolumeId, VolumeInfo};
use lode_units::BlockSize;

use crate::core::ShardCore;
use crate::op::OpIndex;
use crate::recent::RecentExtents;
use crate::stats::VolumeStats;
use crate::throttle::Throttle;

/// An open volume.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) id: VolumeId,
    pub(crate) size_bytes: u64,
    pub(crate) block_size: BlockSize,
    pub(crate) durability: Durability,
    pub(crate) name: Arc<str>,
    /// Its blocks are smaller than those of the pool's devices.
    pub(crate) is_sub_block: bool,
    /// The other cores that hold leases on it, one bit each.
    pub(crate) leased_to: u64,
    /// Requests past the check for barriers.
    pub(crate) active: u32,
    /// Requests that wait for a range, in the order of their arrival.
    pub(crate) blocked: VecDeque<OpIndex>,
    /// A control request is changing or deleting it.
    pub(crate) is_changing: bool,
    /// It takes no more requests.
    pub(crate) is_closing: bool,
    pub(crate) stats: Arc<VolumeStats>,
    /// Its limits, shared by all cores.
    pub(crate) throttle: Arc<Throttle>,
    held: Vec<HeldRange>,
    barrier_count: u32,
    /// Where most lookups end.
    pub(crate) recent: RecentExtents,
}

/// Against what a range is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Against other writes that allocate, and barriers.
    Allocation,
    /// Against everything.
    Barrier,
}

#[derive(Clone, Copy, Debug)]
struct HeldRange {
    first_unit: u64,
    end_unit: u64,
    op: OpIndex,
    hold: Hold,
}

impl HeldRange {
    const fn overlaps(&self, first_unit: u64, end_unit: u64) -> bool {
        self.first_unit < end_unit && first_unit < self.end_unit
    }
}

impl Volume {
    /// Opens the volume that `info` describes.
    pub(crate) fn new(info: &VolumeInfo, is_sub_block: bool, stats: Arc<VolumeStats>) -> Self {
        Self {
            id: info.id,
            size_bytes: info.size_bytes,
            block_size: info.block_size,
            durability: match info.sync {
                SyncAttribute::None => Durability::None,
                SyncAttribute::Data => Durability::Data,
                SyncAttribute::Full => Durability::Full,
            },
            name: info.name.as_str().into(),
            is_sub_block,
            leased_to: 0,
            active: 0,
            blocked: VecDeque::new(),
            is_changing: false,
            is_closing: false,
            throttle: Arc::clone(stats.throttle()),
            stats,
            held: Vec::new(),
            barrier_count: 0,
            recent: RecentExtents::new(),
        }
    }

    /// Whether a barrier of another request covers part of the units.
    #[inline]
    pub(crate) fn has_barrier(&self, op: OpIndex, first_unit: u64, end_unit: u64) -> bool {
        self.barrier_count > 0
            && self.held.iter().any(|held| {
                held.hold == Hold::Barrier && held.op != op && held.overlaps(first_unit, end_unit)
            })
    }

    /// Whether any request holds part of it against everything.
    pub(crate) const fn has_barriers(&self) -> bool {
        self.barrier_count > 0
    }

    /// Whether any request holds part of the units in any way.
    pub(crate) fn is_held_at_all(&self, first_unit: u64, end_unit: u64) -> bool {
        self.held
            .iter()
            .any(|held| held.overlaps(first_unit, end_unit))
    }

    /// Whether another request holds part of the units in any way.
    pub(crate) fn is_held(&self, op: OpIndex, first_unit: u64, end_unit: u64) -> bool {
        self.held
            .iter()
            .any(|held| held.op != op && held.overlaps(first_unit, end_unit))
    }

    /// Holds the units for `op`, which holds nothing yet.
    pub(crate) fn hold(&mut self, op: OpIndex, first_unit: u64, end_unit: u64, hold: Hold) {
        debug_assert!(
            self.held.iter().all(|held| held.op != op),
            "one range for each request"
        );
        self.barrier_count += u32::from(hold == Hold::Barrier);
        self.held.push(HeldRange {
            first_unit,
            end_unit,
            op,
            hold,
        });
    }

    /// The request ends: what it held, and its place among those in flight, are free for those
    /// that wait.
    #[inline]
    pub(crate) fn let_go(&mut self, index: OpIndex, core: &mut ShardCore) {
        let op = core.ops.get(index);
        let (is_watched, holds_range) = (op.is_watched, op.holds_range);
        self.active -= u32::from(op.is_admitted);
        if holds_range {
            self.release(index);
        }
        if (holds_range || is_watched) && !self.blocked.is_empty() {
            core.ready.extend(self.blocked.drain(..));
        }
    }

    /// Lets go of what `op` holds.
    pub(crate) fn release(&mut self, op: OpIndex) {
        if let Some(position) = self.held.iter().position(|held| held.op == op) {
            let held = self.held.swap_remove(position);
            self.barrier_count -= u32::from(held.hold == Hold::Barrier);
        }
    }
}

/// The open volumes of a pool, found by slot in constant time.
#[derive(Debug, Default)]
pub(crate) struct VolumeTable {
    slots: Vec<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    volume: Option<Volume>,
}

impl VolumeTable {
    /// The slot and generation of the volume with this id, if it is open.
    pub(crate) fn find(&self, id: VolumeId) -> Option<(u16, u32)> {
        let position = self
            .slots
            .iter()
            .position(|slot| slot.volume.as_ref().is_some_and(|volume| volume.id == id))?;
        Some((
            u16::try_from(position).ok()?,
            self.slots[position].generation,
        ))
    }

    /// Opens a volume in a free slot; `None` when there are 65536.
    pub(crate) fn insert(&mut self, volume: Volume) -> Option<(u16, u32)> {
        let position = self.slots.iter().position(|slot| slot.volume.is_none());
        let position = position.unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let index = u16::try_from(position).ok()?;
        let slot = &mut self.slots[position];
        slot.volume = Some(volume);
        Some((index, slot.generation))
    }

    /// Closes a volume: every handle to it goes stale.
    pub(crate) fn remove(&mut self, index: u16) -> Option<Volume> {
        let slot = self.slots.get_mut(usize::from(index))?;
        slot.generation = slot.generation.wrapping_add(1);
        slot.volume.take()
    }

    /// Every open volume.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Volume> {
        self.slots.iter().filter_map(|slot| slot.volume.as_ref())
    }

    /// The volume that a handle's slot and generation name.
    #[inline]
    pub(crate) fn get_mut(&mut self, index: u16, generation: u32) -> Option<&mut Volume> {
        let slot = self.slots.get_mut(usize::from(index))?;
        slot.volume
            .as_mut()
            .filter(|_| slot.generation == generation)
    }

    /// The volume that a handle's slot and generation name.
    #[inline]
    pub(crate) fn get(&self, index: u16, generation: u32) -> Option<&Volume> {
        let slot = self.slots.get(usize::from(index))?;
        slot.volume
            .as_ref()
            .filter(|_| slot.generation == generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lode_extent::VolumeLimits;

    fn volume(id: u64) -> Volume {
        let info = VolumeInfo {
            id: VolumeId::new(id),
            name: format!("v{id}"),
            size_bytes: 1 << 20,
            block_size: BlockSize::B4096,
            sync: SyncAttribute::None,
            limits: VolumeLimits::default(),
            created_unix_seconds: 0,
            allocated_bytes: 0,
            is_damaged: false,
        };
        Volume::new(
            &info,
            false,
            Arc::new(VolumeStats::new("pool", "volume", Arc::default())),
        )
    }

    #[test]
    fn a_handle_outlives_its_volume_without_naming_another() {
        let mut table = VolumeTable::default();
        let (slot, generation) = table.insert(volume(1)).expect("room");
        assert_eq!(table.find(VolumeId::new(1)), Some((slot, generation)));
        assert!(table.remove(slot).is_some());
        let (next_slot, next_generation) = table.insert(volume(2)).expect("room");
        assert_eq!(slot, next_slot, "the slot is used again");
        assert!(table.get_mut(slot, generation).is_none());
        assert!(table.get_mut(next_slot, next_generation).is_some());
    }

    #[test]
    fn an_allocation_is_held_against_allocations_and_a_barrier_against_all() {
        let mut volume = volume(1);
        volume.hold(1, 10, 20, Hold::Allocation);
        assert!(volume.is_held(2, 19, 30));
        assert!(
            !volume.is_held(2, 20, 30),
            "ranges that touch do not overlap"
        );
        assert!(!volume.is_held(1, 10, 20), "not against its own holder");
        assert!(!volume.has_barrier(2, 10, 20));
        volume.hold(3, 15, 16, Hold::Barrier);
        assert!(volume.has_barrier(2, 0, 16));
        volume.release(3);
        volume.release(1);
        assert!(!volume.has_barrier(2, 0, 100) && !volume.is_held(2, 0, 100));
    }
}
