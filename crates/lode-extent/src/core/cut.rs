//! Cutting a checkpoint: the state at one moment becomes blocks to be written.

use crate::core::{ApplyFault, Core};
use crate::format::block::Block;
use crate::format::superblock::Superblock;
use crate::load::MissingBlock;
use crate::space::{ReserveFault, Run};
use crate::tree::flush::Flush;
use crate::types::{PoolBlock, Ticket, VolumeId};

/// A checkpoint on its way to the device.
#[derive(Debug)]
pub(crate) struct Cut {
    /// Blocks to write before the superblock.
    pub(crate) written: Vec<(PoolBlock, Box<Block>)>,
    /// Blocks that are free once the superblock is durable.
    pub(crate) retired: Vec<PoolBlock>,
    /// The superblock that makes it the pool's state; its sequence number is not set yet.
    pub(crate) superblock: Superblock,
    /// The change that must be durable before the superblock is written.
    pub(crate) settled_by: Ticket,
}

/// Why no checkpoint was cut; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutFault {
    /// A block has to be read first.
    Absent(MissingBlock),
    /// No block is free for the nodes: admission keeps that from happening.
    NoSpace,
    /// The space map contradicts the trees: only from damaged metadata.
    Conflict,
}

impl Core {
    /// Cuts a checkpoint. The open transaction is sealed: what is recorded from now on belongs to
    /// the next one.
    pub(crate) fn cut(&mut self) -> Result<Cut, CutFault> {
        let volumes = self.touch_objects();
        self.ensure_node_space()?;
        let mut places = self.reserve_nodes()?;
        // The number of the superblock to come: never used by an attempt that a crash cut short.
        let generation = self.superblock.sequence + 1;
        let mut written = Vec::with_capacity(places.len());
        let retired = self.retire_nodes()?;
        let mut flush = Flush {
            generation,
            pool: self.fold(),
            places: &mut places,
            written: &mut written,
        };
        for id in volumes {
            let volume = self.catalog.any_mut(id).expect("a dirty volume exists");
            volume.map.flush(&mut self.store, &mut flush);
            volume.record.map = volume.map.placed_root();
            self.objects
                .upsert(&mut self.store, id.get(), &volume.record.encode())
                .expect("the object table was touched just now");
        }
        self.catalog.dirty.clear();
        self.objects.flush(&mut self.store, &mut flush);
        self.requests.flush(&mut self.store, &mut flush);
        assert!(places.is_empty(), "a place for each changed node, no more");
        let pool = self.fold();
        self.space
            .flush(&self.geometry, generation, pool, &mut written);
        self.journal.seal(&self.geometry);
        written.sort_unstable_by_key(|&(place, _)| place);
        let superblock = self.draft_superblock(generation);
        Ok(Cut {
            written,
            retired,
            superblock,
            settled_by: self.record_kept(),
        })
    }

    /// The superblock of the state as it is at this moment.
    fn draft_superblock(&self, generation: u64) -> Superblock {
        Superblock {
            generation,
            journal_tail: self.journal.head(),
            ticket: self.journal.recorded(),
            next_object: self.next_object,
            next_request: self.next_request,
            epoch: self.epoch,
            free_blocks: self.space.free() + self.space.pending(),
            node_blocks: self.node_blocks - self.leaked_nodes,
            objects: self.objects.placed_root(),
            requests: self.requests.placed_root(),
            space: *self.space.roots(),
            ..self.superblock.clone()
        }
    }

    /// The superblock is durable: the blocks that it replaced are free.
    pub(crate) fn release_retired(&mut self, retired: &[PoolBlock]) {
        for &block in retired {
            self.space
                .release(&self.geometry, single(block))
                .expect("a retired block is busy and not owned");
        }
    }

    /// Lets go of the blocks of nodes that were changed or removed, but for those whose space map
    /// cannot be read: they stay taken until it can.
    fn retire_nodes(&mut self) -> Result<Vec<PoolBlock>, CutFault> {
        let (space, geometry) = (&self.space, &self.geometry);
        let retired = self
            .store
            .take_retired(|block| !space.is_unreadable(geometry, block));
        let left = self.store.retired().len();
        self.leaked_nodes = u64::try_from(left).expect("nodes in memory");
        for &block in &retired {
            let disowned = self.space.disown(&self.geometry, single(block));
            disowned.map_err(|_conflict| CutFault::Conflict)?;
        }
        let count = u64::try_from(retired.len()).expect("nodes in memory");
        self.node_blocks = self.node_blocks.saturating_sub(count);
        Ok(retired)
    }

    /// Marks the object table's leaves of the volumes that a checkpoint has to note.
    fn touch_objects(&mut self) -> Vec<VolumeId> {
        let volumes: Vec<_> = self.catalog.dirty.iter().copied().collect();
        for id in &volumes {
            self.objects
                .edit_leaf(&mut self.store, id.get(), 0)
                .expect("the object table of a live volume is in memory");
        }
        volumes
    }

    /// Sees to it that the space map of every block that goes out of use is in memory.
    fn ensure_node_space(&mut self) -> Result<(), CutFault> {
        for at in 0..self.store.retired().len() {
            let block = self.store.retired()[at];
            match self.ensure_space(block) {
                Ok(()) | Err(ApplyFault::Unreadable(_)) => {}
                Err(fault) => return Err(absent(fault)),
            }
        }
        Ok(())
    }

    /// Takes a block for each changed node.
    fn reserve_nodes(&mut self) -> Result<Vec<PoolBlock>, CutFault> {
        let count = u32::try_from(self.store.dirty()).expect("nodes in memory");
        let mut places = Vec::with_capacity(self.store.dirty());
        if count == 0 {
            return Ok(places);
        }
        let runs = self
            .space
            .reserve(&self.geometry, self.node_hint, count)
            .map_err(|fault| match fault {
                ReserveFault::Absent(node) => CutFault::Absent(MissingBlock::Space(node)),
                ReserveFault::NoSpace => CutFault::NoSpace,
            })?;
        for run in &runs {
            self.space
                .own(&self.geometry, *run)
                .expect("the run was reserved just now");
            places.extend((0..u64::from(run.count)).map(|offset| run.start.plus(offset)));
            self.node_hint = run.start.plus(run.count.into());
        }
        // Places are taken from the end: children, which come first, get the lowest.
        places.reverse();
        self.node_blocks += u64::from(count);
        Ok(places)
    }
}

fn single(block: PoolBlock) -> Run {
    Run {
        start: block,
        count: 1,
    }
}

fn absent(fault: ApplyFault) -> CutFault {
    match fault {
        ApplyFault::Absent(what) => CutFault::Absent(what),
        ApplyFault::Damaged(_) | ApplyFault::Unreadable(_) | ApplyFault::Conflict => {
            CutFault::Conflict
        }
    }
}
