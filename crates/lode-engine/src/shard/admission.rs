//! Which requests get a slot, and when: the volumes by turns, each within its limits, and of those
//! that may owe more than their commands only so many.

use lode_block::BlockDevice;

use super::Shard;
use crate::error::IoError;
use crate::fair::Refused;
use crate::port::{Body, Errand};
use crate::request::{DataRequest, VolumeHandle};
use crate::stats::VolumeStats;
use crate::waiting::{LIMITED_WAITING_MAX, Origin, Waiting, may_go};

impl<D: BlockDevice> Shard<D> {
    /// Lets a request that was checked wait for its turn, which may be now.
    ///
    /// # Errors
    /// Gives the request back when no more can wait.
    #[cold]
    #[inline(never)]
    pub(super) fn wait_turn(
        &mut self,
        request: DataRequest,
        is_limited: bool,
    ) -> Result<(), DataRequest> {
        if is_limited && self.core.room.is_backlogged(request.volume) {
            let waiting_max = LIMITED_WAITING_MAX.min(self.core.room.volume_waiting_max());
            self.refuse_throttled(request, waiting_max);
            return Ok(());
        }
        match self.core.room.queue(request, self.core.now) {
            Ok(()) => {
                self.admit_waiting();
                Ok(())
            }
            Err(Refused::Full(waiting)) => Err(waiting.request),
            Err(Refused::FlowFull(waiting)) => {
                let waiting_max = self.core.room.volume_waiting_max();
                self.refuse_throttled(waiting.request, waiting_max);
                Ok(())
            }
        }
    }

    /// Gives slots to requests that wait, as far as there are any. Returns how many left the
    /// queue that they were in.
    pub(super) fn admit_waiting(&mut self) -> usize {
        let mut moved = 0;
        // Those that were held have had their turn before.
        while self.core.ops.admits_any() {
            let Some(waiting) = self.core.room.held.pop() else {
                break;
            };
            self.place(waiting);
            moved += 1;
        }
        self.core.room.due = None;
        while self.core.ops.admits_inline() {
            let next = if self.core.room.next_is_errand() {
                self.next_errand().or_else(|| self.next_waiting())
            } else {
                self.next_waiting().or_else(|| self.next_errand())
            };
            let Some(waiting) = next else { break };
            if self.core.now > waiting.since {
                self.core.stats.turn_waits.increment();
            }
            self.place(waiting);
            moved += 1;
        }
        moved
    }

    /// Refuses every request of this core's clients that waits: the shard is stopping.
    pub(super) fn refuse_waiting(&mut self) {
        while let Some(waiting) = self.core.room.waiting.pop() {
            self.core.refuse(waiting.request, IoError::Stopping);
        }
        let is_clients = |waiting: &Waiting| matches!(waiting.origin, Origin::Client);
        for _ in 0..self.core.room.held.len() {
            match self.core.room.held.pop() {
                Some(waiting) if is_clients(&waiting) => {
                    self.core.refuse(waiting.request, IoError::Stopping);
                }
                // Its own core answers for it.
                Some(waiting) => self.hold(waiting),
                None => break,
            }
        }
        self.core.room.due = None;
    }

    /// The errand whose turn it is.
    fn next_errand(&mut self) -> Option<Waiting> {
        self.core.room.errands.pop()
    }

    /// The request whose turn it is, of a volume whose limit lets it go.
    fn next_waiting(&mut self) -> Option<Waiting> {
        let (now, room) = (self.core.now, &mut self.core.room);
        let (hosts, guests) = (&self.pools, &self.guests);
        let mut limited_until = None;
        let due = &mut room.due;
        let waiting = room.waiting.pop_where(|gate, volume, waiting| {
            let position = usize::from(volume.pool.0);
            let host = hosts.get(position).and_then(Option::as_ref);
            let guest = guests.get(position).and_then(Option::as_ref);
            let throttle = host
                .and_then(|host| host.throttle(volume))
                .or_else(|| guest.and_then(|guest| guest.throttle(volume)));
            let may_go =
                throttle.is_none_or(|throttle| may_go(gate, throttle, &waiting.request, now, due));
            limited_until = gate.reservation.map(|reservation| reservation.due);
            may_go
        })?;
        if limited_until.is_some_and(|until| until > waiting.since) {
            let waited = now.saturating_duration_since(waiting.since);
            if let Some(stats) = self.volume_stats(waiting.request.volume) {
                stats.throttle_wait.record(waited);
            }
        }
        Some(waiting)
    }

    fn volume_stats(&self, volume: VolumeHandle) -> Option<&VolumeStats> {
        let position = usize::from(volume.pool.0);
        let guest = self.guests.get(position).and_then(Option::as_ref);
        let host = self.pools.get(position).and_then(Option::as_ref);
        host.and_then(|host| Some(&*host.volume(volume)?.stats))
            .or_else(|| guest?.volume_stats(volume))
    }

    /// Starts a request whose turn has come, or holds it where it may owe more than its commands
    /// and too many do. What it says about itself is checked again: its volume may have changed
    /// while it waited.
    fn place(&mut self, waiting: Waiting) {
        let request = &waiting.request;
        let position = usize::from(request.volume.pool.0);
        let admits_deferrable = self.core.ops.admits_deferrable();
        if let Some(Some(host)) = self.pools.get_mut(position) {
            let durability = match host.check(request) {
                Ok(checked) => checked.durability,
                Err(error) => return self.end_unplaced(waiting, error),
            };
            if admits_deferrable || host.would_be_inline(request, durability) {
                host.begin(waiting, durability, &mut self.core);
                return;
            }
        } else if let Some(Some(guest)) = self.guests.get_mut(position) {
            if admits_deferrable || guest.would_be_inline(request) {
                guest.submit(waiting.request, waiting.since, &mut self.core);
                return;
            }
        } else {
            return self.end_unplaced(waiting, IoError::UnknownVolume);
        }
        self.core.stats.holds.increment();
        self.hold(waiting);
    }

    fn hold(&mut self, waiting: Waiting) {
        let (volume, length) = (waiting.request.volume, waiting.request.length_bytes);
        if let Err(Refused::Full(waiting) | Refused::FlowFull(waiting)) =
            self.core.room.held.push(volume, length, waiting)
        {
            let waiting_max = self.core.room.volume_waiting_max();
            self.core.stats.throttle_refusals.increment();
            self.end_unplaced(waiting, IoError::Throttled { waiting_max });
        }
    }

    /// Ends a request that never got a slot.
    fn end_unplaced(&mut self, waiting: Waiting, error: IoError) {
        let Waiting {
            request, origin, ..
        } = waiting;
        match origin {
            Origin::Client => self.core.refuse(request, error),
            Origin::Peer { sender, is_charged } => {
                let errand = Errand {
                    op: sender.op,
                    request,
                    wanted: sender.wanted,
                    is_charged,
                };
                let answer = Body::Done(errand.refused(error));
                self.core.peers.post(sender.peer, answer);
            }
        }
    }

    fn refuse_throttled(&mut self, request: DataRequest, waiting_max: usize) {
        self.core.stats.throttle_refusals.increment();
        self.core
            .refuse(request, IoError::Throttled { waiting_max });
    }
}
