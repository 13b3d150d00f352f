//! The state of a pool that has been found: everything that records change and checkpoints
//! write. It does no I/O and asks for none.

mod admit;
mod apply;
mod cut;
mod kept;
mod resident;

use uuid::Uuid;

use crate::catalog::{Catalog, RequestLog};
use crate::format::block::BlockKind;
use crate::format::geometry::Geometry;
use crate::format::object::OBJECT_BYTES;
use crate::format::request::REQUEST_BYTES;
use crate::format::superblock::{Superblock, fold};
use crate::journal::Journal;
use crate::load::MissingBlock;
use crate::space::Space;
use crate::tree::store::Store;
use crate::tree::{Shape, Tree};
use crate::types::{PoolBlock, VolumeId};

pub(crate) use admit::Admission;
pub(crate) use cut::{Cut, CutFault};
pub(crate) use kept::Kept;

/// Owner of the object table's blocks.
const OBJECTS_OWNER: u64 = 1;
/// Owner of the request table's blocks.
const REQUESTS_OWNER: u64 = 2;

/// What never changes about a pool.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) uuid: Uuid,
    pub(crate) name: String,
    pub(crate) created_unix_seconds: u64,
}

/// The state of a pool.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) identity: Identity,
    pub(crate) geometry: Geometry,
    pub(crate) space: Space,
    pub(crate) store: Store,
    pub(crate) objects: Tree,
    pub(crate) requests: Tree,
    pub(crate) catalog: Catalog,
    pub(crate) request_log: RequestLog,
    pub(crate) journal: Journal,
    /// What the journal holds and the state does not.
    pub(crate) kept: Kept,
    /// The newest superblock that was begun.
    pub(crate) superblock: Superblock,
    pub(crate) next_object: u64,
    pub(crate) next_request: u64,
    pub(crate) epoch: u32,
    /// Blocks taken by tree nodes, those on their way out included.
    pub(crate) node_blocks: u64,
    /// Blocks of nodes that the last checkpoint could not give back.
    pub(crate) leaked_nodes: u64,
    /// Where the next tree nodes go.
    pub(crate) node_hint: PoolBlock,
    /// Where the next volume without a hint begins.
    pub(crate) volume_rotor: PoolBlock,
    /// Blocks that data of volumes takes.
    pub(crate) data_blocks: u64,
    /// The journal is being replayed: blocks are claimed rather than owned, and freed at once.
    pub(crate) is_replaying: bool,
}

/// Why a record could not be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApplyFault {
    /// A block has to be read first; nothing was changed.
    Absent(MissingBlock),
    /// The volume's map cannot be read; nothing was changed.
    Damaged(VolumeId),
    /// This block of the space map cannot be read; nothing was changed.
    Unreadable(PoolBlock),
    /// The record contradicts the state: only from damaged metadata.
    Conflict,
}

impl Core {
    /// The state that `superblock` describes; nothing is in memory yet.
    pub(crate) fn new(superblock: Superblock, geometry: Geometry, incarnation: u64) -> Self {
        let shape = |kind, owner, value_bytes| Shape {
            kind,
            owner,
            value_bytes,
        };
        let objects = shape(BlockKind::ObjectTable, OBJECTS_OWNER, OBJECT_BYTES);
        let requests = shape(BlockKind::RequestTable, REQUESTS_OWNER, REQUEST_BYTES);
        let groups = geometry.groups();
        let tail = superblock.journal_tail;
        Self {
            identity: Identity {
                uuid: superblock.pool_uuid,
                name: superblock.name.clone(),
                created_unix_seconds: superblock.created_unix_seconds,
            },
            space: Space::new(superblock.space, superblock.free_blocks),
            store: Store::default(),
            objects: Tree::new(objects, superblock.objects),
            requests: Tree::new(requests, superblock.requests),
            catalog: Catalog::default(),
            request_log: RequestLog::default(),
            journal: Journal::new(
                geometry.journal_blocks,
                fold(superblock.pool_uuid),
                incarnation,
                (tail, tail),
                superblock.ticket,
            ),
            kept: Kept::default(),
            next_object: superblock.next_object,
            next_request: superblock.next_request,
            epoch: superblock.epoch,
            node_blocks: superblock.node_blocks,
            leaked_nodes: 0,
            // Nodes at the far end, data from the start: neither cuts the other's runs up.
            node_hint: geometry.group_start(groups - 1),
            volume_rotor: geometry.group_start(0),
            data_blocks: 0,
            is_replaying: false,
            geometry,
            superblock,
        }
    }

    /// The pool's uuid as its blocks carry it.
    pub(crate) fn fold(&self) -> u64 {
        fold(self.identity.uuid)
    }

    /// Checks what can be checked without walking the trees.
    pub(crate) fn check_account(&self) -> Result<(), &'static str> {
        self.journal.check()?;
        self.space.check(&self.geometry)
    }
}
