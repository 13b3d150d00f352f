//! Checking a pool: every block owned once, by metadata that can be reached, as the allocator
//! says.
//!
//! [`Pool::check`] looks at what is in memory and fits at any moment; after
//! [`Pool::load_all`] it covers the whole pool, which is what an offline check does with an
//! imported one.

use crate::core::Core;
use crate::extent::{check_leaf, extent_at};
use crate::load::MissingBlock;
use crate::pool::Pool;
use crate::space::SpaceFault;
use crate::tree::check::Walk;
use crate::tree::{KEY_END, TreeFault};
use crate::types::{PoolBlock, VolumeId};
use crate::volume::PoolState;

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} (volume {volume:?}, block {block:?})")]
pub struct Violation {
    /// What is wrong.
    pub what: &'static str,
    /// The volume in whose metadata, where it is one.
    pub volume: Option<VolumeId>,
    /// The block of the pool, where it is one.
    pub block: Option<PoolBlock>,
}

/// What a check saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Blocks of data.
    pub data_blocks: u64,
    /// Blocks of tree nodes.
    pub node_blocks: u64,
    /// Extents.
    pub extents: u64,
    /// Parts of trees that were not in memory and so were not seen.
    pub unseen: u64,
    /// Blocks of trees that cannot be read.
    pub damaged: u64,
}

/// How far [`Pool::load_all`] has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadCursor {
    volume: VolumeId,
    key: u64,
    group: u32,
}

/// Everything that refers to a block.
#[derive(Default)]
struct Census {
    /// First block and count.
    runs: Vec<(u64, u64)>,
    report: CheckReport,
    dirty: usize,
}

impl Pool {
    /// Checks the invariants of what is in memory. Takes time in proportion to it.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<CheckReport, Violation> {
        match self.checked_core() {
            Some(core) => core.check(),
            None => Ok(CheckReport::default()),
        }
    }

    /// Brings all metadata into memory, so that [`check`](Self::check) covers the whole pool:
    /// call again after each completion until it says `true`.
    pub fn load_all(&mut self, cursor: &mut LoadCursor) -> bool {
        if *self.state() == PoolState::Starting {
            return false;
        }
        let Some(core) = self.checked_core_mut() else {
            return true;
        };
        let absent = core.first_absent(cursor);
        match absent.or_else(|| core.first_absent_group(cursor)) {
            Some(what) => {
                self.load(crate::load::Missing(what));
                false
            }
            None => true,
        }
    }
}

impl Core {
    fn check(&self) -> Result<CheckReport, Violation> {
        self.check_account().map_err(violation)?;
        let mut census = Census::default();
        for (id, volume) in self.catalog.iter() {
            let blocks = self.check_map(id, &mut census)?;
            if blocks.is_some_and(|blocks| blocks != volume.record.allocated_blocks) {
                return Err(of_volume("the count of a volume's blocks is wrong", id));
            }
        }
        let mut walk = Walk::default();
        let mut any = |_: &_, _, _| Ok(());
        let objects = self.objects.check(&self.store, &mut walk, &mut any);
        objects.map_err(violation)?;
        let requests = self.requests.check(&self.store, &mut walk, &mut any);
        requests.map_err(violation)?;
        census.take_nodes(&walk);
        if census.dirty != self.store.dirty() {
            return Err(violation("the count of changed nodes is wrong"));
        }
        for &block in self.store.retired() {
            census.take_node(block);
        }
        self.check_census(census)
    }

    /// Walks a volume's map; gives the blocks that it maps where all of it was seen.
    fn check_map(&self, id: VolumeId, census: &mut Census) -> Result<Option<u64>, Violation> {
        let volume = self.catalog.any(id).expect("the caller found it");
        let (mut walk, mut blocks) = (Walk::default(), 0);
        let runs = &mut census.runs;
        let report = &mut census.report;
        let checked = volume
            .map
            .check(&self.store, &mut walk, &mut |leaf, _, high| {
                check_leaf(leaf, high, &self.geometry)?;
                for position in 0..leaf.count() {
                    let extent = extent_at(leaf, position);
                    runs.push((extent.physical.get(), extent.count.into()));
                    blocks += u64::from(extent.count);
                    report.extents += 1;
                }
                Ok(())
            });
        checked.map_err(|what| of_volume(what, id))?;
        report.data_blocks += blocks;
        census.take_nodes(&walk);
        Ok((walk.unseen == 0).then_some(blocks))
    }

    /// Every block is owned once, and nothing else is.
    fn check_census(&self, mut census: Census) -> Result<CheckReport, Violation> {
        census.runs.sort_unstable();
        let overlap = census
            .runs
            .windows(2)
            .find(|pair| pair[0].0 + pair[0].1 > pair[1].0);
        if let Some(pair) = overlap {
            return Err(of_block("a block is owned twice", pair[1].0));
        }
        let mut total = 0;
        for &(start, count) in &census.runs {
            total += count;
            for block in start..start + count {
                if self.space.is_owned(&self.geometry, PoolBlock::new(block)) == Some(false) {
                    return Err(of_block("a block in use is free", block));
                }
            }
        }
        let is_whole = self.space.is_whole(&self.geometry) && census.report.unseen == 0;
        if is_whole && total != self.space.owned_in_memory(&self.geometry) {
            return Err(violation("a block is taken that nothing refers to"));
        }
        let report = census.report;
        if report.unseen == 0
            && (report.data_blocks, report.node_blocks) != (self.data_blocks, self.node_blocks)
        {
            return Err(violation("the counts of data and node blocks are wrong"));
        }
        Ok(report)
    }

    /// The first block after the cursor that is not in memory.
    fn first_absent(&mut self, cursor: &mut LoadCursor) -> Option<MissingBlock> {
        loop {
            let volume = self.catalog.first_from(cursor.volume)?;
            if volume != cursor.volume {
                (cursor.volume, cursor.key) = (volume, 0);
            }
            let map = &self.catalog.any(volume)?.map;
            match map.leaf(&self.store, cursor.key) {
                Err(TreeFault::Absent { key }) => return Some(MissingBlock::Map { volume, key }),
                Ok(Some(leaf)) => cursor.key = leaf.high,
                Err(TreeFault::Damaged { end, .. }) => cursor.key = end,
                Ok(None) => cursor.key = KEY_END,
            }
            if cursor.key >= KEY_END {
                (cursor.volume, cursor.key) = (VolumeId::new(volume.get() + 1), 0);
            }
        }
    }

    /// The first group after the cursor that is not in memory.
    fn first_absent_group(&mut self, cursor: &mut LoadCursor) -> Option<MissingBlock> {
        while cursor.group < self.geometry.groups() {
            let ensured = self.space.ensure_group(&self.geometry, cursor.group);
            if let Err(SpaceFault::Absent(node)) = ensured {
                return Some(MissingBlock::Space(node));
            }
            cursor.group += 1;
        }
        None
    }
}

impl Census {
    fn take_nodes(&mut self, walk: &Walk) {
        for &block in &walk.blocks {
            self.take_node(block);
        }
        self.dirty += walk.dirty;
        self.report.unseen += u64::try_from(walk.unseen).expect("nodes in memory");
        self.report.damaged += u64::try_from(walk.damaged).expect("nodes in memory");
    }

    fn take_node(&mut self, block: PoolBlock) {
        self.runs.push((block.get(), 1));
        self.report.node_blocks += 1;
    }
}

fn violation(what: &'static str) -> Violation {
    Violation {
        what,
        volume: None,
        block: None,
    }
}

fn of_volume(what: &'static str, volume: VolumeId) -> Violation {
    Violation {
        volume: Some(volume),
        ..violation(what)
    }
}

fn of_block(what: &'static str, block: u64) -> Violation {
    Violation {
        block: Some(PoolBlock::new(block)),
        ..violation(what)
    }
}
