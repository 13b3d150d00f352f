//! Reading the object table and the request table, which stay in memory.

use crate::catalog::Volume;
use crate::format::object::VolumeRecord;
use crate::format::request::{REQUESTS_MAX, RequestRecord};
use crate::load::MissingBlock;
use crate::pool::Pool;
use crate::pool::start::Start;
use crate::pool::start::replay::Replay;
use crate::tree::{KEY_END, Tree, TreeFault};
use crate::types::VolumeId;

/// What one step over a table found.
enum Step {
    /// A node has to be read.
    Absent { key: u64 },
    /// The keys before this one are done.
    Done { next: u64 },
}

impl Pool {
    /// Goes on from these keys until both tables are in memory, then to the journal. A leaf that
    /// cannot be read costs the volumes in it; the rest of the pool serves.
    pub(super) fn load_tables(&mut self, mut objects: u64, mut requests: u64) {
        let core = self.core.as_mut().expect("the pool was found");
        let missing = loop {
            if objects < KEY_END {
                match step(&core.objects, &core.store, objects, &mut |key, value| {
                    let record = VolumeRecord::decode(value).expect("a checked leaf");
                    let id = VolumeId::new(key);
                    let blocks = record.allocated_blocks;
                    let is_new = core.catalog.insert(id, Volume::new(id, record));
                    core.data_blocks += u64::from(is_new) * blocks;
                }) {
                    Step::Absent { key } => break Some(MissingBlock::Objects { key }),
                    Step::Done { next } => objects = next,
                }
            } else if requests < KEY_END {
                match step(&core.requests, &core.store, requests, &mut |key, value| {
                    let record = RequestRecord::decode(value).expect("a checked leaf");
                    core.request_log.remember(key, record, REQUESTS_MAX);
                }) {
                    Step::Absent { key } => break Some(MissingBlock::Requests { key }),
                    Step::Done { next } => requests = next,
                }
            } else {
                break None;
            }
        };
        match missing {
            Some(what) => {
                self.start = Some(Start::Tables { objects, requests });
                self.request(what);
            }
            None => {
                core.is_replaying = true;
                let replay = Replay::new(core.superblock.journal_tail);
                self.replay(replay);
            }
        }
    }
}

/// Shows every entry of the leaf of `key` to `each`.
fn step(
    table: &Tree,
    store: &crate::tree::store::Store,
    key: u64,
    each: &mut dyn FnMut(u64, &[u8]),
) -> Step {
    match table.leaf(store, key) {
        Ok(None) => Step::Done { next: KEY_END },
        Err(TreeFault::Absent { key }) => Step::Absent { key },
        Err(TreeFault::Damaged { end, .. }) => Step::Done { next: end },
        Ok(Some(leaf)) => {
            let node = store.node(leaf.node);
            for position in 0..node.count() {
                each(node.key(position), node.value(position));
            }
            Step::Done { next: leaf.high }
        }
    }
}
