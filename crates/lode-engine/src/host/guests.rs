//! The other cores that have this pool as a guest: their errands, the leases that they are
//! given, and the recall of these before the mapping changes under them.
//!
//! A lease covers written extents only. What adds to a mapping does not touch it; what takes from
//! one (a barrier, a shrink, a deletion) recalls it first and waits until every guest has said
//! that none of its commands uses it any more. None is granted on a volume of which any part is
//! held by a barrier, or that is being changed.

use std::sync::Arc;

use lode_block::{BlockDevice, Durability};
use lode_bus::DmaBuffer;
use lode_extent::{LogicalBlock, PoolState};
use lode_units::Instant;
use smallvec::SmallVec;

use super::PoolHost;
use crate::classify::Reasons;
use crate::core::ShardCore;
use crate::error::IoError;
use crate::op::{Owner, Sender};
use crate::port::{
    Answer, Body, Errand, Grant, GuestSpec, PeerIndex, Recall, Serial, UnitRange, VolumeFacts,
};
use crate::request::VolumeHandle;

/// Recalls that were sent and not heeded by all.
#[derive(Debug, Default)]
pub(crate) struct Recalls {
    last: Serial,
    pending: Vec<PendingRecall>,
}

#[derive(Debug)]
struct PendingRecall {
    serial: Serial,
    volume: VolumeHandle,
    /// Guests that have not answered.
    outstanding: u32,
}

impl Recalls {
    /// Whether a recall has not been heeded by all.
    pub(super) fn is_pending(&self, serial: Serial) -> bool {
        self.pending.iter().any(|recall| recall.serial == serial)
    }

    fn next_serial(&mut self) -> Serial {
        self.last = self.last.wrapping_add(1);
        self.last
    }

    fn begin(&mut self, serial: Serial, volume: VolumeHandle, outstanding: u32) {
        self.pending.push(PendingRecall {
            serial,
            volume,
            outstanding,
        });
    }

    /// Takes one guest's answer; the volume when it was the last one.
    fn heeded(&mut self, serial: Serial) -> Option<VolumeHandle> {
        let position = self
            .pending
            .iter()
            .position(|recall| recall.serial == serial)?;
        let recall = &mut self.pending[position];
        recall.outstanding -= 1;
        (recall.outstanding == 0).then(|| self.pending.swap_remove(position).volume)
    }
}

/// Whether the volume itself goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Farewell {
    /// Only leases on it.
    No,
    /// It does.
    Yes,
}

impl<D: BlockDevice> PoolHost<D> {
    /// What other cores have to know to take this pool as a guest; `None` before it serves.
    pub(crate) fn guest_spec(&self) -> Option<GuestSpec> {
        if !matches!(self.pool.state(), PoolState::Ready) {
            return None;
        }
        Some(GuestSpec {
            index: self.index,
            name: self.pool.name().to_owned(),
            layout: self.pool.layout()?,
        })
    }

    /// Carries out what another core may not. A slot must be free.
    pub(crate) fn run_errand(&mut self, peer: PeerIndex, errand: Errand, core: &mut ShardCore) {
        let Errand {
            op,
            request,
            wanted,
            ..
        } = errand;
        let sender = Sender { peer, op, wanted };
        match self.check(&request) {
            Ok(checked) => {
                let owner = Owner::Peer(sender);
                let (durability, now) = (checked.durability, core.now);
                let index = core.ops.take_up(owner, request, durability, now);
                self.start(index, core);
            }
            Err(error) => {
                let (volume, buffer) = (request.volume, request.buffer);
                self.answer(sender, volume, Err(error), (Reasons::ERROR, buffer), core);
            }
        }
    }

    /// Charges the volume of an errand whose sender did not know its limits: that one is late for
    /// them, those after it are not.
    pub(crate) fn charge(&self, errand: &Errand, now: Instant) {
        let request = &errand.request;
        if errand.is_charged {
            return;
        }
        if let Some(throttle) = self.throttle(request.volume) {
            throttle.reserve(request.operation, request.length_bytes, now);
        }
    }

    /// Tells another core how its errand ended, and what it may do by itself from now on.
    pub(super) fn answer(
        &mut self,
        sender: Sender,
        volume: VolumeHandle,
        result: Result<Durability, IoError>,
        (reasons, buffer): (Reasons, Option<DmaBuffer>),
        core: &mut ShardCore,
    ) {
        let grant = self.grant(volume, sender, core);
        let answer = Answer {
            pool: self.index,
            op: sender.op,
            result,
            reasons,
            buffer,
            grant,
        };
        core.peers.post(sender.peer, Body::Done(answer));
    }

    /// Leases on what was asked for and on what follows it, as far as that is written.
    fn grant(
        &mut self,
        handle: VolumeHandle,
        sender: Sender,
        core: &ShardCore,
    ) -> Option<Box<Grant>> {
        let can_promise = matches!(self.pool.state(), PoolState::Ready) && !self.flush_failed;
        let volume = self.volumes.get_mut(handle.slot, handle.generation)?;
        let is_changing = volume.is_closing || volume.is_changing || volume.has_barriers();
        if is_changing || !can_promise || self.is_exporting {
            return None;
        }
        let mut extents = SmallVec::new();
        let mut next = LogicalBlock::new(sender.wanted.first);
        let is_wanted = sender.wanted != UnitRange::EMPTY;
        while is_wanted && extents.len() < GRANT_EXTENTS_MAX {
            let Some(extent) = self.pool.written_extent(volume.id, next) else {
                break;
            };
            next = LogicalBlock::new(UnitRange::of(&extent).end);
            extents.push(extent);
        }
        if !extents.is_empty() {
            volume.leased_to |= 1 << sender.peer;
            core.stats.leases_granted.add(extents.len() as u64);
        }
        let facts = VolumeFacts {
            name: volume.name.clone(),
            size_bytes: volume.size_bytes,
            block_size: volume.block_size,
            durability: volume.durability,
            is_sub_block: volume.is_sub_block,
            throttle: Arc::clone(&volume.throttle),
        };
        Some(Box::new(Grant {
            volume: handle,
            facts,
            extents,
        }))
    }

    /// Takes leases on `units` back from every core that may have some. Until
    /// [`Recalls::is_pending`] says otherwise, commands of theirs may be under way there.
    pub(super) fn recall(
        &mut self,
        handle: VolumeHandle,
        units: UnitRange,
        farewell: Farewell,
        core: &mut ShardCore,
    ) -> Serial {
        let volume = self.volumes.get(handle.slot, handle.generation);
        let leased_to = volume.map_or(0, |volume| volume.leased_to);
        let is_farewell = farewell == Farewell::Yes;
        let serial = self.recalls.next_serial();
        let mut outstanding = 0;
        for peer in core.peers.indices() {
            // A guest that has no lease may know the volume all the same.
            if leased_to >> peer & 1 == 0 && !is_farewell {
                continue;
            }
            let recall = Recall {
                volume: handle,
                units,
                serial,
                is_farewell,
            };
            core.peers.post(peer, Body::Recall(recall));
            core.stats.recalls.increment();
            outstanding += 1;
        }
        if outstanding > 0 {
            self.recalls.begin(serial, handle, outstanding);
        }
        serial
    }

    /// A guest has heeded a recall.
    pub(crate) fn recalled(&mut self, serial: Serial, core: &mut ShardCore) {
        let Some(handle) = self.recalls.heeded(serial) else {
            return;
        };
        if let Some(volume) = self.volumes.get_mut(handle.slot, handle.generation) {
            core.ready.extend(volume.blocked.drain(..));
        }
    }

    /// Takes all leases back at once: nothing more can be promised. Commands under way end as
    /// they may.
    pub(super) fn recall_pool(&mut self, core: &mut ShardCore) {
        for peer in core.peers.indices() {
            let pool = self.index;
            core.peers.post(peer, Body::RecallPool { pool });
        }
    }
}

/// The most extents of one grant.
const GRANT_EXTENTS_MAX: usize = 8;
