//! The volumes as the clients know them.

use lode_engine::VolumeHandle;

use crate::content::Place;
use crate::oracle::{BlockHistory, Outcome, Version};

/// One volume of the model, under a name that may be used again.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) index: usize,
    pub(crate) life: Life,
    /// Counts the volumes that have borne the name.
    pub(crate) generation: u64,
    pub(crate) block_bytes: usize,
    pub(crate) blocks: Vec<BlockHistory>,
    pub(crate) handle: Option<VolumeHandle>,
    /// The number of blocks that a resize under way will leave.
    pub(crate) resize: Option<usize>,
    /// What requests in flight would have made of blocks that a shrink took away: should the
    /// volume grow before they are carried out, they are carried out on what it gained.
    stragglers: Vec<(usize, Version)>,
    /// What blocks held that a shrink took away. A request that was in flight then may have found
    /// it there, although its end is told after the volume has grown again.
    departed: Vec<Departed>,
}

/// A block that was taken away.
#[derive(Debug)]
struct Departed {
    block: usize,
    /// When that was told.
    at: u64,
    history: BlockHistory,
}

/// Whether a volume is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// It is not.
    Absent,
    /// It is being made, or that failed with an unknown outcome.
    Creating,
    /// It is.
    Present,
    /// It is being deleted, or that failed with an unknown outcome.
    Deleting,
}

impl Volume {
    pub(crate) const fn new(index: usize) -> Self {
        Self {
            index,
            life: Life::Absent,
            generation: 0,
            block_bytes: 512,
            blocks: Vec::new(),
            handle: None,
            resize: None,
            stragglers: Vec::new(),
            departed: Vec::new(),
        }
    }

    pub(crate) fn name(&self) -> String {
        format!("v{}", self.index)
    }

    pub(crate) fn place(&self, block: usize) -> Place {
        Place {
            volume: self.index,
            block,
            block_bytes: self.block_bytes,
        }
    }

    pub(crate) fn bytes(&self, blocks: usize) -> u64 {
        u64::try_from(blocks * self.block_bytes).expect("a small volume")
    }

    /// The blocks that clients may use: those that stay in a resize under way.
    pub(crate) fn usable(&self) -> usize {
        let now = self.blocks.len();
        self.resize.map_or(now, |new| new.min(now))
    }

    /// A new volume of `blocks` blocks is being made.
    pub(crate) fn begin_create(&mut self, block_bytes: usize, blocks: usize, now: u64) {
        self.life = Life::Creating;
        self.generation += 1;
        self.block_bytes = block_bytes;
        self.blocks = vec![BlockHistory::settled(0, now); blocks];
        self.resize = None;
        self.forget_requests();
    }

    pub(crate) fn vanish(&mut self) {
        self.life = Life::Absent;
        self.blocks.clear();
        self.handle = None;
        self.resize = None;
        self.forget_requests();
    }

    /// The size is `blocks` from now on: what is added reads as zeros, or as what a request that
    /// was under way all the time makes of it.
    pub(crate) fn set_size(&mut self, blocks: usize, when: When) {
        let now = when.now;
        self.departed.retain(|one| one.at > when.horizon);
        for (block, history) in self.blocks.iter().enumerate().skip(blocks) {
            let under_way = history.under_way();
            self.stragglers.extend(under_way.map(|one| (block, one)));
            self.departed.push(Departed {
                block,
                at: now,
                history: history.clone(),
            });
        }
        self.blocks.resize(blocks, BlockHistory::settled(0, now));
        self.stragglers.retain(|(block, version)| {
            let Some(history) = self.blocks.get_mut(*block) else {
                return true;
            };
            history.rejoin(version, now);
            false
        });
        self.resize = None;
    }

    /// A request will make `blocks` hold `value`.
    pub(crate) fn begin(&mut self, blocks: &Blocks, request: u64, value: u64, now: u64) {
        for block in &mut self.blocks[blocks.clone()] {
            block.begin(request, value, now);
        }
    }

    /// It has ended.
    pub(crate) fn end(&mut self, blocks: &Blocks, request: u64, outcome: Outcome, when: When) {
        // A resize may have taken some of them away.
        let end = blocks.end.min(self.blocks.len());
        for block in self.blocks.iter_mut().take(end).skip(blocks.start) {
            block.end(request, outcome, when.now, when.horizon);
        }
        let may_still_count = self.resize.is_some();
        self.stragglers
            .retain_mut(|(_, version)| !version.ends(request, when.now) || may_still_count);
    }

    /// Whether a request that was begun at `begun` and ends now may have found `value` in a block
    /// that is there.
    pub(crate) fn may_read(&self, block: usize, value: u64, begun: u64) -> bool {
        self.histories(block, begun)
            .any(|history| history.may_read(value, begun))
    }

    /// Whether it may have found anything but `value`.
    pub(crate) fn may_differ(&self, block: usize, value: u64, begun: u64) -> bool {
        self.histories(block, begun)
            .any(|history| history.may_differ(value, begun))
    }

    /// The block as it is, and as it was each time that it was taken away since `begun`.
    fn histories(&self, block: usize, begun: u64) -> impl Iterator<Item = &BlockHistory> {
        let departed = self
            .departed
            .iter()
            .filter(move |one| one.block == block && one.at > begun);
        let departed = departed.map(|one| &one.history);
        self.blocks.get(block).into_iter().chain(departed)
    }

    /// After a power cut nothing is under way.
    pub(crate) fn forget_requests(&mut self) {
        self.stragglers.clear();
        self.departed.clear();
    }

    /// The whole 4 KiB units among `blocks`, as blocks: those that a discard gives back. The last
    /// unit of the volume counts as whole when its last block is among them.
    pub(crate) fn whole_units(&self, blocks: &Blocks) -> Blocks {
        let per_unit = UNIT_BYTES / self.block_bytes;
        let start = blocks.start.next_multiple_of(per_unit);
        let end = if blocks.end == self.blocks.len() {
            blocks.end
        } else {
            blocks.end / per_unit * per_unit
        };
        if start < end { start..end } else { 0..0 }
    }
}

/// Blocks of a volume.
pub(crate) type Blocks = std::ops::Range<usize>;

/// When something ended, and a moment before which no request in flight began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct When {
    pub(crate) now: u64,
    pub(crate) horizon: u64,
}

pub(crate) const UNIT_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_in_flight_through_a_shrink_and_a_growth_may_have_found_what_was_there_before() {
        let mut volume = Volume::new(0);
        volume.begin_create(UNIT_BYTES, 2, 1);
        let when = |now| When { now, horizon: 4 };
        volume.begin(&(1..2), 7, 5, 2);
        volume.end(&(1..2), 7, Outcome::Durable, when(3));
        volume.set_size(1, when(5));
        volume.set_size(2, when(6));
        assert!(volume.may_read(1, 5, 4) && volume.may_read(1, 0, 4));
        assert!(volume.may_differ(1, 0, 4));
        assert!(!volume.may_read(1, 5, 7) && volume.may_read(1, 0, 7));
        volume.set_size(2, When { now: 9, horizon: 8 });
        assert!(!volume.may_read(1, 5, 4), "nothing in flight is so old");
    }
}
