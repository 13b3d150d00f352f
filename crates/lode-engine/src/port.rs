//! What cores tell each other of the pools that they share, and the way between two of them.
//!
//! A pool has one home, the shard whose thread changes its mapping. Every other shard has it as a
//! guest. Letters between the two arrive in the order in which they were sent; the order is what
//! makes a lease safe: a recall never overtakes the lease that it takes back.

use std::fmt;
use std::sync::Arc;

use lode_block::Durability;
use lode_bus::DmaBuffer;
use lode_extent::{Piece, PoolLayout};
use lode_units::BlockSize;
use smallvec::SmallVec;

use crate::classify::Reasons;
use crate::control::{ControlError, ControlReply, ControlRequest, PoolStatus};
use crate::error::IoError;
use crate::op::OpIndex;
use crate::request::{DataRequest, PoolIndex, Token, VolumeHandle};
use crate::throttle::Throttle;

/// The way from this core to one other and back. Bounded; used from this core's thread alone.
///
/// Letters arrive in the order in which they were sent, each once. None of its methods blocks or
/// allocates.
pub trait Port: fmt::Debug + Send {
    /// Sends a letter. The peer need not see it before [`Port::flush`].
    ///
    /// # Errors
    /// Gives it back when the way is full; it is sent again later.
    fn send(&mut self, letter: Letter) -> Result<(), Letter>;

    /// The next letter from the peer.
    fn receive(&mut self) -> Option<Letter>;

    /// Ends a batch of letters: wakes the peer if it sleeps.
    fn flush(&mut self);
}

/// What one core tells another. Whoever carries it need not look inside; dropping one loses a
/// request.
#[derive(Debug)]
#[must_use = "a letter that is not delivered loses a request"]
pub struct Letter(pub(crate) Body);

/// What a guest has to know of a pool. Made by its home, the same for all guests.
#[derive(Clone, Debug)]
pub struct GuestSpec {
    pub(crate) index: PoolIndex,
    pub(crate) name: String,
    pub(crate) layout: PoolLayout,
}

impl GuestSpec {
    /// The pool's place, the same on every core.
    #[must_use]
    pub const fn index(&self) -> PoolIndex {
        self.index
    }
}

/// A peer, by its place in the list of those that a shard is connected to.
pub(crate) type PeerIndex = u8;

#[derive(Debug)]
pub(crate) enum Body {
    /// To a home: carry this out.
    Request(Errand),
    /// To a guest: how an errand ended.
    Done(Answer),
    /// To a guest: let go of leases, and say so when no command uses them any more.
    Recall(Recall),
    /// To a home: a recall has been heeded.
    Recalled { pool: PoolIndex, serial: Serial },
    /// To a guest: forget every lease of this pool, which can promise nothing more.
    RecallPool { pool: PoolIndex },
    /// To a home: carry this out.
    Control {
        token: Token,
        request: Box<ControlRequest>,
    },
    /// To a guest: how it ended.
    ControlDone {
        token: Token,
        result: Box<Result<ControlReply, ControlError>>,
    },
    /// To a home: describe the pools that live with you.
    ListPools { listing: u32 },
    /// To a guest: these.
    Pools {
        listing: u32,
        pools: Vec<PoolStatus>,
    },
}

/// A request that only the pool's home can carry out.
#[derive(Debug)]
pub(crate) struct Errand {
    /// Which request of the sender's it is.
    pub(crate) op: OpIndex,
    /// Its token means nothing.
    pub(crate) request: DataRequest,
    /// The units for which the sender would like leases with the answer.
    pub(crate) wanted: UnitRange,
    /// The sender knew the volume's limits, and the request has waited for them.
    pub(crate) is_charged: bool,
}

impl Errand {
    /// The answer when nothing of it was done.
    pub(crate) fn refused(self, error: IoError) -> Answer {
        Answer {
            pool: self.request.volume.pool,
            op: self.op,
            result: Err(error),
            reasons: Reasons::ERROR,
            buffer: self.request.buffer,
            grant: None,
        }
    }
}

/// The end of an [`Errand`].
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) pool: PoolIndex,
    pub(crate) op: OpIndex,
    pub(crate) result: Result<Durability, IoError>,
    /// What its completion owed.
    pub(crate) reasons: Reasons,
    pub(crate) buffer: Option<DmaBuffer>,
    pub(crate) grant: Option<Box<Grant>>,
}

/// What a guest may rely on until it is recalled.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) volume: VolumeHandle,
    pub(crate) facts: VolumeFacts,
    /// Written extents, not shared; each marked where its metadata are not durable yet.
    pub(crate) extents: SmallVec<[Piece; 2]>,
}

/// A volume as a guest knows it.
#[derive(Clone, Debug)]
pub(crate) struct VolumeFacts {
    pub(crate) name: Arc<str>,
    pub(crate) size_bytes: u64,
    pub(crate) block_size: BlockSize,
    pub(crate) durability: Durability,
    pub(crate) is_sub_block: bool,
    pub(crate) throttle: Arc<Throttle>,
}

/// Leases that are taken back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recall {
    pub(crate) volume: VolumeHandle,
    pub(crate) units: UnitRange,
    pub(crate) serial: Serial,
    /// The volume itself goes.
    pub(crate) is_farewell: bool,
}

/// Tells one recall of a home from another.
pub(crate) type Serial = u32;

/// Allocation units of a volume, `first..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitRange {
    pub(crate) first: u64,
    pub(crate) end: u64,
}

impl UnitRange {
    /// None.
    pub(crate) const EMPTY: Self = Self { first: 0, end: 0 };

    /// From `first` on.
    pub(crate) const fn from(first: u64) -> Self {
        Self {
            first,
            end: u64::MAX,
        }
    }

    pub(crate) const fn overlaps(self, first: u64, end: u64) -> bool {
        self.first < end && first < self.end
    }

    /// Those of a piece.
    pub(crate) fn of(piece: &Piece) -> Self {
        let first = piece.logical.get();
        Self {
            first,
            end: first + u64::from(piece.count),
        }
    }
}
