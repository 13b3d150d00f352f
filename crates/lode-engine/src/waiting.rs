//! Requests that have no slot yet.
//!
//! ```text
//!  submit ─► slot free, volume unlimited, nobody waits ─────────────────────► slot
//!         └► waiting ─ its volume's turn and limit ─┬─ owes nothing more ───► slot
//!  errand ─► its volume's turn ─────────────────────┤
//!                                                   └─ too many that owe ─► held ─► slot
//! ```
//! Each queue gives the volumes equal turns. What waits here holds no slot of this core, so that
//! it keeps nothing from others but the buffer that it came with.

use std::time::Duration;

use lode_units::Instant;
use lode_units::limits::{CORE_REQUESTS_MAX, STREAM_REQUESTS_MAX};

use crate::fair::{FairQueue, Gate, Refused};
use crate::op::{Owner, Sender};
use crate::port::{Errand, PeerIndex};
use crate::request::{DataRequest, VolumeHandle};
use crate::throttle::Throttle;

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) request: DataRequest,
    pub(crate) origin: Origin,
    /// When it came.
    pub(crate) since: Instant,
}

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    /// A client of this core.
    Client,
    /// Another core.
    Peer {
        sender: Sender,
        /// It has waited for its volume's limits there.
        is_charged: bool,
    },
}

/// The requests that wait.
#[derive(Debug)]
pub(crate) struct WaitingRoom {
    /// Clients' requests: for a slot, or for their volume's limit.
    pub(crate) waiting: FairQueue<Waiting>,
    /// Other cores' requests: for a slot.
    pub(crate) errands: FairQueue<Waiting>,
    /// Those of either kind that had their turn: for the number of requests that may owe more than
    /// their commands to fall.
    pub(crate) held: FairQueue<Waiting>,
    /// When the limit of some volume next lets a request go, as of the last look.
    pub(crate) due: Option<Instant>,
    volume_waiting_max: usize,
    is_errands_turn: bool,
}

impl Waiting {
    /// Who is told when it ends.
    pub(crate) const fn owner(&self) -> Owner {
        match self.origin {
            Origin::Client => Owner::Client(self.request.token),
            Origin::Peer { sender, .. } => Owner::Peer(sender),
        }
    }
}

impl WaitingRoom {
    /// Room for `waiting_max` requests of clients, half of them of one volume; for as many errands
    /// as a peer has requests; and for all of these again once they had their turn.
    pub(crate) fn new(waiting_max: usize) -> Self {
        let volume_waiting_max = (waiting_max / 2).max(1);
        let held_max = waiting_max + CORE_REQUESTS_MAX;
        Self {
            waiting: FairQueue::new(waiting_max, volume_waiting_max),
            errands: FairQueue::new(CORE_REQUESTS_MAX, CORE_REQUESTS_MAX),
            held: FairQueue::new(held_max, held_max),
            due: None,
            volume_waiting_max,
            is_errands_turn: false,
        }
    }

    /// Whether nobody waits.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.errands.is_empty() && self.held.is_empty()
    }

    /// Requests that wait.
    pub(crate) const fn len(&self) -> usize {
        self.waiting.len() + self.errands.len() + self.held.len()
    }

    /// Whether as many requests wait for the limit of a volume as may: what waits keeps its buffer
    /// from others, and for longer than what waits for a slot.
    pub(crate) fn is_backlogged(&self, volume: VolumeHandle) -> bool {
        let (count, bytes) = self.waiting.load(volume);
        count >= LIMITED_WAITING_MAX.min(self.volume_waiting_max) || bytes >= LIMITED_BYTES_MAX
    }

    /// The most requests of one volume that wait for a slot.
    pub(crate) const fn volume_waiting_max(&self) -> usize {
        self.volume_waiting_max
    }

    /// Lets a client's request wait for its turn.
    pub(crate) fn queue(
        &mut self,
        request: DataRequest,
        since: Instant,
    ) -> Result<(), Refused<Waiting>> {
        let (volume, length) = (request.volume, request.length_bytes);
        let waiting = Waiting {
            request,
            origin: Origin::Client,
            since,
        };
        self.waiting.push(volume, length, waiting)
    }

    /// Lets another core's request wait for its turn.
    pub(crate) fn queue_errand(
        &mut self,
        peer: PeerIndex,
        errand: Errand,
        since: Instant,
    ) -> Result<(), Errand> {
        let Errand {
            op,
            request,
            wanted,
            is_charged,
        } = errand;
        let (volume, length) = (request.volume, request.length_bytes);
        let sender = Sender { peer, op, wanted };
        let waiting = Waiting {
            request,
            origin: Origin::Peer { sender, is_charged },
            since,
        };
        let queued = self.errands.push(volume, length, waiting);
        queued.map_err(|refused| {
            let (Refused::Full(waiting) | Refused::FlowFull(waiting)) = refused;
            Errand {
                op,
                request: waiting.request,
                wanted,
                is_charged,
            }
        })
    }

    /// Whether it is the turn of the other cores: they and this one's clients alternate.
    pub(crate) const fn next_is_errand(&mut self) -> bool {
        self.is_errands_turn = !self.is_errands_turn;
        self.is_errands_turn
    }

    /// When to look again although nothing completes: at the latest after a while, since the
    /// limits may be changed on another core.
    pub(crate) fn next_look(&self, now: Instant) -> Option<Instant> {
        self.due.map(|due| due.min(now + LOOK_INTERVAL))
    }
}

/// Whether the limit of its volume lets the first request of a flow go. Notes the place in time
/// that it has taken, and in `due` when that comes.
pub(crate) fn may_go(
    gate: &mut Gate,
    throttle: &Throttle,
    request: &DataRequest,
    now: Instant,
    due: &mut Option<Instant>,
) -> bool {
    let kept = gate
        .reservation
        .filter(|reservation| throttle.is_current(reservation));
    let reservation =
        kept.unwrap_or_else(|| throttle.reserve(request.operation, request.length_bytes, now));
    gate.reservation = Some(reservation);
    if reservation.due <= now {
        return true;
    }
    *due = Some(due.map_or(reservation.due, |due| due.min(reservation.due)));
    false
}

/// The most requests of a volume that wait for its limit: as many as one stream may have under
/// way.
pub(crate) const LIMITED_WAITING_MAX: usize = STREAM_REQUESTS_MAX;
/// The most bytes of their ranges together.
const LIMITED_BYTES_MAX: u64 = 32 << 20;
/// How long a request waits at most until the limits of its volume are looked at again.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
