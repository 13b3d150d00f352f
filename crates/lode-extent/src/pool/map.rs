//! Mapping: looking up, allocating, recording.

use smallvec::SmallVec;

use crate::allocation::{AllocatedRun, Allocation};
use crate::core::{Admission, ApplyFault, Core};
use crate::error::{ExtentError, LookupError};
use crate::extent::{ExtentKind, extent_at, first_reaching, pieces};
use crate::format::record::{MAP_RECORD_BYTES, Record};
use crate::load::{Missing, MissingBlock};
use crate::piece::{Piece, PieceFlags, PieceKind};
use crate::pool::Pool;
use crate::space::{ReserveFault, Run};
use crate::tree::TreeFault;
use crate::types::{LogicalBlock, PoolBlock, Ticket, VolumeId};

/// The most units that one allocation covers (8 MiB).
pub const ALLOCATION_BLOCKS_MAX: u32 = 2048;

impl Pool {
    /// How `count` units from `first` on are mapped: the pieces are appended to `into`, in order
    /// and without gaps. Units beyond the volume's size are a hole.
    ///
    /// Does not block, and allocates only where `into` spills.
    ///
    /// # Errors
    /// [`LookupError`]; `into` may then hold pieces of the part before the fault.
    ///
    /// # Panics
    /// Only when the map in memory breaks its own invariants.
    pub fn lookup(
        &self,
        volume: VolumeId,
        first: LogicalBlock,
        count: u32,
        into: &mut SmallVec<[Piece; 4]>,
    ) -> Result<(), LookupError> {
        let found = self
            .core
            .as_ref()
            .and_then(|core| Some((core, core.catalog.live(volume)?)));
        let Some((core, target)) = found else {
            return Err(LookupError::UnknownVolume(volume));
        };
        if target.is_closed {
            let block = first;
            return Err(LookupError::Damaged { volume, block });
        }
        let (first, end) = (first.get(), first.get() + u64::from(count));
        let before = into.len();
        let stop = end.min(target.units());
        if first < stop {
            pieces(&target.map, &core.store, first, stop, into)
                .map_err(|fault| lookup_error(volume, fault))?;
        }
        if stop < end {
            let start = first.max(stop);
            into.push(Piece {
                kind: PieceKind::Hole,
                flags: PieceFlags::empty(),
                logical: LogicalBlock::new(start),
                physical: PoolBlock::new(0),
                count: u32::try_from(end - start).expect("at most the count asked for"),
            });
        }
        let durable = core.journal.durable();
        if target.unsettled.touches(first, end, durable) {
            for piece in &mut into[before..] {
                let (start, stop) = (
                    piece.logical.get(),
                    piece.logical.get() + u64::from(piece.count),
                );
                if piece.kind != PieceKind::Hole && target.unsettled.touches(start, stop, durable) {
                    piece.flags |= PieceFlags::META_DIRTY;
                }
            }
        }
        Ok(())
    }

    /// The whole of the written extent that holds `block`, for callers that remember it. It stays
    /// right until the volume is recorded to, unmapped or resized; marked
    /// [`PieceFlags::META_DIRTY`] when the metadata of part of it are not durable yet. `None` for
    /// anything else, and where the map is not in memory.
    #[must_use]
    pub fn written_extent(&self, volume: VolumeId, block: LogicalBlock) -> Option<Piece> {
        let core = self.core.as_ref()?;
        let target = core.catalog.live(volume).filter(|one| !one.is_closed)?;
        let leaf = target.map.leaf(&core.store, block.get()).ok()??;
        let node = core.store.node(leaf.node);
        let extent = (first_reaching(node, block.get()) < node.count())
            .then(|| extent_at(node, first_reaching(node, block.get())))?;
        let end = extent.end().min(target.units());
        let holds = extent.logical <= block.get() && block.get() < end;
        if !holds || extent.kind != ExtentKind::Written {
            return None;
        }
        let durable = core.journal.durable();
        let mut flags = PieceFlags::empty();
        let is_settled = !target.unsettled.touches(extent.logical, end, durable);
        flags.set(PieceFlags::META_DIRTY, !is_settled);
        Some(Piece {
            kind: PieceKind::Written,
            flags,
            logical: LogicalBlock::new(extent.logical),
            physical: extent.physical,
            count: u32::try_from(end - extent.logical).ok()?,
        })
    }

    /// Reserves space for `count` units from `first` on, at most [`ALLOCATION_BLOCKS_MAX`],
    /// in one run where space permits. Nothing changes for readers before it is recorded.
    ///
    /// # Errors
    /// [`ExtentError::NoSpace`], [`ExtentError::JournalFull`], [`ExtentError::NotResident`] (load
    /// and retry), [`ExtentError::OutOfRange`], [`ExtentError::UnknownVolume`],
    /// [`ExtentError::ObjectDamaged`], or what [`state`](Self::state) makes of it.
    pub fn allocate(
        &mut self,
        volume: VolumeId,
        first: LogicalBlock,
        count: u32,
    ) -> Result<Allocation, ExtentError> {
        self.check_range(volume, first, count)?;
        let core = self.ready()?;
        let end = first.get() + u64::from(count);
        let leaves = core
            .ensure_range(volume, first.get(), end)
            .map_err(|fault| self.refused(fault))?;
        self.admit(MAP_RECORD_BYTES * 8, leaves)?;
        let core = self.core_mut();
        if u64::from(count) > core.free_for_data() {
            return Err(no_space(core, count));
        }
        let hint = hint(core, volume, first.get());
        let runs =
            core.space
                .reserve(&core.geometry, hint, count)
                .map_err(|fault| match fault {
                    ReserveFault::Absent(node) => {
                        ExtentError::NotResident(Missing(MissingBlock::Space(node)))
                    }
                    ReserveFault::NoSpace => no_space(core, count),
                })?;
        if let (Some(target), Some(last)) = (core.catalog.any_mut(volume), runs.last()) {
            target.hint = last.start.plus(last.count.into());
        }
        Ok(Allocation::new(volume, allocated(first, &runs)))
    }

    /// Maps an allocation whose data is written: readers see it from now on, and it survives a
    /// power cut once [`durable`](Self::durable) has reached the ticket. What the range held is
    /// freed; reads that still use it must have ended.
    ///
    /// # Errors
    /// Gives the allocation back, beside the reason that [`allocate`](Self::allocate) would give.
    #[expect(
        clippy::result_large_err,
        reason = "a refused allocation goes back to its owner"
    )]
    pub fn record(&mut self, allocation: Allocation) -> Result<Ticket, (Allocation, ExtentError)> {
        match self.try_record(&allocation) {
            Ok(ticket) => {
                allocation.abandon();
                Ok(ticket)
            }
            Err(error) => Err((allocation, error)),
        }
    }

    fn try_record(&mut self, allocation: &Allocation) -> Result<Ticket, ExtentError> {
        let (volume, runs) = (allocation.volume(), allocation.runs());
        let first = allocation.first();
        let end = first.get() + allocation.count();
        let count = u32::try_from(allocation.count()).expect("a short allocation");
        self.check_range(volume, first, count)?;
        let core = self.ready()?;
        let leaves = core
            .ensure_range(volume, first.get(), end)
            .map_err(|fault| self.refused(fault))?;
        self.admit(MAP_RECORD_BYTES * runs.len(), leaves + runs.len() / 64)?;
        let records: SmallVec<[Record; 4]> = runs
            .iter()
            .map(|run| Record::Map {
                volume,
                logical: run.logical,
                physical: run.physical,
                count: run.count,
            })
            .collect();
        let ticket = self.change(&records)?;
        self.counters.transactions_map += 1;
        let core = self.core_mut();
        let durable = core.journal.durable();
        if let Some(target) = core.catalog.any_mut(volume) {
            target.unsettled.add(ticket, first.get(), end, durable);
        }
        Ok(ticket)
    }

    /// Gives an allocation back unused. Works in every state of the pool.
    pub fn cancel(&mut self, allocation: Allocation) {
        // A pool that has failed gives no space out any more, and a record that failed it may have
        // taken a part of the allocation.
        let is_failed = self.is_failed();
        if let Some(core) = self.core.as_mut().filter(|_| !is_failed) {
            for run in allocation.into_runs() {
                let run = Run {
                    start: run.physical,
                    count: run.count,
                };
                core.space.put_back(&core.geometry, &[run]);
            }
        } else {
            allocation.abandon();
        }
    }

    /// Whether a change that touches `leaves` leaves may be recorded; asks for a checkpoint when
    /// not.
    pub(super) fn admit(&mut self, bytes: usize, leaves: usize) -> Result<(), ExtentError> {
        let is_stuck = self.is_checkpoint_stuck;
        let core = self.ready()?;
        match core.admits(bytes, core.nodes_touched(leaves)) {
            Admission::Granted => Ok(()),
            Admission::NoSpace => Err(no_space(core, 0)),
            Admission::Wait if is_stuck => {
                let block = self.damaged_block.expect("what is stuck lacks a block");
                Err(self.metadata_damaged(block))
            }
            Admission::Wait => {
                core.journal.want_commit();
                self.is_checkpoint_wanted = true;
                self.counters.journal_full += 1;
                Err(ExtentError::JournalFull)
            }
        }
    }

    /// Applies one change and puts it into the open transaction.
    pub(super) fn change(&mut self, records: &[Record]) -> Result<Ticket, ExtentError> {
        let is_freed_early = self.is_space_freed_early();
        let core = self.core.as_mut().expect("the pool is ready");
        let (mut freed, mut data_on) = (Vec::new(), 0);
        for record in records {
            if let Err(fault) = core.apply(record, &mut freed) {
                return Err(self.refused(fault));
            }
            if let Record::Map { physical, .. } = record {
                let (device, _) = core
                    .geometry
                    .locate(*physical)
                    .expect("an allocated block lies in the pool");
                data_on |= 1 << device;
            }
        }
        if is_freed_early {
            core.space.put_back(&core.geometry, &freed);
        }
        Ok(core
            .journal
            .append(&core.geometry, records, &freed, data_on))
    }

    /// The fault as callers see it. A change that contradicts the metadata in memory shows that
    /// what was read, though its checksums held, is not what this program wrote.
    pub(super) fn refused(&mut self, fault: ApplyFault) -> ExtentError {
        match fault {
            ApplyFault::Absent(what) => ExtentError::NotResident(Missing(what)),
            ApplyFault::Damaged(volume) => ExtentError::ObjectDamaged { volume },
            ApplyFault::Unreadable(block) => self.metadata_damaged(block),
            ApplyFault::Conflict => {
                self.fail(ExtentError::Contradiction);
                ExtentError::ReadOnly
            }
        }
    }

    pub(super) fn check_range(
        &mut self,
        volume: VolumeId,
        first: LogicalBlock,
        count: u32,
    ) -> Result<(), ExtentError> {
        let core = self.ready()?;
        let target = core
            .catalog
            .live(volume)
            .ok_or(ExtentError::UnknownVolume { volume })?;
        let end = first.get().checked_add(count.into());
        if count == 0 || end.is_none_or(|end| end > target.units()) {
            return Err(ExtentError::OutOfRange {
                first,
                count: count.into(),
            });
        }
        Ok(())
    }
}

fn lookup_error(volume: VolumeId, fault: TreeFault) -> LookupError {
    match fault {
        TreeFault::Absent { key } => {
            LookupError::NotResident(Missing(MissingBlock::Map { volume, key }))
        }
        TreeFault::Damaged { key, .. } => LookupError::Damaged {
            volume,
            block: LogicalBlock::new(key),
        },
    }
}

/// Where the next blocks of a volume should lie: after the extent before them, else after the
/// last ones it got, else at a place of its own.
fn hint(core: &mut Core, volume: VolumeId, first: u64) -> PoolBlock {
    if let Ok(Some(leaf)) = core.map_leaf(volume, first) {
        let node = core.store.node(leaf.node);
        if let Some(before) = node.entries_up_to(first).checked_sub(1) {
            let extent = extent_at(node, before);
            if extent.end() == first {
                return extent.physical.plus(extent.count.into());
            }
        }
    }
    match core.catalog.any(volume) {
        Some(target) if target.hint.get() != 0 => target.hint,
        _ => core.next_volume_place(),
    }
}

fn allocated(first: LogicalBlock, runs: &[Run]) -> SmallVec<[AllocatedRun; 4]> {
    let mut logical = first;
    runs.iter()
        .map(|run| {
            let allocated = AllocatedRun {
                logical,
                physical: run.start,
                count: run.count,
            };
            logical = logical.plus(run.count.into());
            allocated
        })
        .collect()
}

fn no_space(core: &Core, count: u32) -> ExtentError {
    ExtentError::NoSpace {
        wanted_blocks: count.into(),
        free_blocks: core.free_for_data(),
        pending_blocks: core.space.pending() - core.kept.set_aside(),
    }
}
