//! The slots that requests in progress live in.

use lode_block::Durability;
use lode_units::Instant;

use super::{Op, OpIndex, Owner};
use crate::request::{DataOperation, DataRequest, PoolIndex};

/// Requests in progress, at most as many as were made room for.
#[derive(Debug)]
pub(crate) struct OpTable {
    slots: Vec<Op>,
    free: Vec<OpIndex>,
    /// Slots that are not for clients.
    reserved: usize,
    /// Requests that may owe more than their commands.
    deferrable: usize,
    deferrable_max: usize,
}

impl OpTable {
    /// A table of `capacity` slots, at most 65535, some of which only control requests take, and
    /// of which at most `deferrable_max` are taken by clients' requests that may owe more than
    /// their commands.
    pub(crate) fn new(capacity: usize, deferrable_max: usize) -> Self {
        let free = (0..capacity)
            .rev()
            .map(|index| OpIndex::try_from(index).expect("a table has at most 65535 slots"))
            .collect();
        Self {
            slots: std::iter::repeat_with(Op::vacant).take(capacity).collect(),
            free,
            reserved: (capacity / RESERVED_SHARE).max(1),
            deferrable: 0,
            deferrable_max,
        }
    }

    /// Whether a client's request finds a slot, whatever it may owe.
    #[inline]
    pub(crate) const fn admits_any(&self) -> bool {
        self.admits_inline() && self.admits_deferrable()
    }

    /// Whether a client's request that owes nothing but its commands finds a slot.
    #[inline]
    pub(crate) const fn admits_inline(&self) -> bool {
        self.free.len() > self.reserved
    }

    /// Whether the bound on requests that may owe more is not reached.
    #[inline]
    pub(crate) const fn admits_deferrable(&self) -> bool {
        self.deferrable < self.deferrable_max
    }

    /// Requests in progress that may owe more than their commands.
    pub(crate) const fn deferrable(&self) -> usize {
        self.deferrable
    }

    /// Notes whether a request may owe more than its commands.
    #[inline]
    pub(crate) fn set_may_defer(&mut self, index: OpIndex, may_defer: bool) {
        let op = &mut self.slots[usize::from(index)];
        let before = std::mem::replace(&mut op.may_defer, may_defer);
        self.deferrable += usize::from(may_defer);
        self.deferrable -= usize::from(before);
    }

    /// Whether a slot is free.
    pub(crate) const fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Requests in progress.
    pub(crate) const fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a request up in a free slot; there must be one.
    #[inline]
    pub(crate) fn take_up(
        &mut self,
        owner: Owner,
        request: DataRequest,
        durability: Durability,
        now: Instant,
    ) -> OpIndex {
        let index = self
            .free
            .pop()
            .expect("the caller has seen that there is room");
        let may_defer = request.operation != DataOperation::Read;
        let op = &mut self.slots[usize::from(index)];
        op.take_up(owner, request, durability, now);
        op.may_defer = may_defer;
        self.deferrable += usize::from(may_defer);
        index
    }

    /// The request in slot `index`, which is in use.
    #[inline]
    pub(crate) fn get(&self, index: OpIndex) -> &Op {
        let op = &self.slots[usize::from(index)];
        debug_assert!(op.is_in_use, "an index names a request in progress");
        op
    }

    /// The request in slot `index`, which is in use.
    #[inline]
    pub(crate) fn get_mut(&mut self, index: OpIndex) -> &mut Op {
        let op = &mut self.slots[usize::from(index)];
        debug_assert!(op.is_in_use, "an index names a request in progress");
        op
    }

    /// Frees slot `index`, whose request has ended and holds nothing any more.
    #[inline]
    pub(crate) fn free(&mut self, index: OpIndex) {
        let op = &mut self.slots[usize::from(index)];
        assert!(op.is_in_use, "a request ends once");
        op.is_in_use = false;
        self.deferrable -= usize::from(std::mem::take(&mut op.may_defer));
        self.free.push(index);
    }

    /// Whether any request to volumes of `pool` is in progress.
    pub(crate) fn any_of(&self, pool: PoolIndex) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|op| op.is_in_use && op.volume.pool == pool)
    }

    /// All requests in progress. Takes time in proportion to the most that there have been
    /// lately, since the slot that was freed last is taken first.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (OpIndex, &mut Op)> {
        let in_use = self.in_use();
        self.slots
            .iter_mut()
            .enumerate()
            .filter_map(|(index, op)| Some((OpIndex::try_from(index).ok()?, op)))
            .filter(|(_, op)| op.is_in_use)
            .take(in_use)
    }
}

/// One slot in so many is kept for control requests.
const RESERVED_SHARE: usize = 256;
