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
        self.stragglers.clear();
    }

    pub(crate) fn vanish(&mut self) {
        self.life = Life::Absent;
        self.blocks.clear();
        self.handle = None;
        self.resize = None;
        self.stragglers.clear();
    }

    /// The size is `blocks` from now on: what is added reads as zeros, or as what a request that
    /// was under way all the time makes of it.
    pub(crate) fn set_size(&mut self, blocks: usize, now: u64) {
        for (block, history) in self.blocks.iter().enumerate().skip(blocks) {
            let under_way = history.under_way();
            self.stragglers.extend(under_way.map(|one| (block, one)));
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

    /// After a power cut nothing is under way.
    pub(crate) fn forget_stragglers(&mut self) {
        self.stragglers.clear();
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
