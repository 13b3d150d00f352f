//! One pool on this shard: its devices, its metadata machine, its volumes, and the requests that
//! are under way on them.
//!
//! ```text
//!  check.rs     what a request says about itself
//!  foresee.rs   whether it may owe more than its commands
//!  start.rs     admit → look up → classify
//!  reserve.rs   space and units for what is not in place
//!  edges.rs     blocks smaller than the device's
//!  transfer.rs  cut into commands → submit
//!  settle.rs    completed: inline ─► out
//!               completed: deferred ─► (deferred.rs) record → flush, commit ─► out
//!  control.rs   create, resize, delete, list
//!  guests.rs    errands and leases of other cores
//! ```

mod check;
mod control;
mod deferred;
mod edges;
mod foresee;
mod guests;
mod report;
mod reserve;
mod settle;
mod start;
mod transfer;

pub(crate) use check::check_range;
pub(crate) use edges::{deliver_edges, edge_offset, fetched, take_edges};
pub(crate) use start::{UNIT, units_to};

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lode_block::{BlockDevice, Completion, Durability};
use lode_extent::{Piece, Pool, PoolState, Ticket};
use lode_units::limits::CORE_REQUESTS_MAX;
use lode_units::{DeviceIndex, Instant};
use smallvec::SmallVec;

use crate::classify::CacheFacts;
use crate::control::PoolIdentity;
use crate::core::ShardCore;
use crate::flush::FlushGroups;
use crate::lane::Lane;
use crate::metadata::MetadataPump;
use crate::op::{Failure, OpIndex, Step};
use crate::request::PoolIndex;
use crate::stats::PoolStats;
use crate::tag::{CommandOwner, SECTOR_BYTES};
use crate::volume::VolumeTable;

use control::ControlTable;
use guests::Recalls;

/// How a range is mapped, as a lookup gives it.
pub(crate) type Pieces = SmallVec<[Piece; 4]>;

/// One pool on this shard.
#[derive(Debug)]
pub(crate) struct PoolHost<D> {
    index: PoolIndex,
    name: String,
    lanes: Vec<Lane<D>>,
    pool: Pool,
    cache: CacheFacts,
    /// The largest block of its devices, in bytes.
    device_block_bytes: u32,
    volumes: VolumeTable,
    controls: ControlTable,
    recalls: Recalls,
    metadata: MetadataPump,
    flushes: FlushGroups,
    /// Requests whose data are written and whose metadata work is not done.
    deferred: VecDeque<OpIndex>,
    /// Requests that wait for a change to become durable, in the order of their tickets.
    committing: VecDeque<(Ticket, OpIndex)>,
    /// Requests that wait for metadata to be read, or for room in the journal.
    metadata_waiters: VecDeque<OpIndex>,
    /// Requests that wait for a commit to free space.
    space_waiters: VecDeque<(Ticket, OpIndex)>,
    commit_wanted: bool,
    /// When the oldest change that is not durable was recorded.
    uncommitted_since: Option<Instant>,
    /// When metadata that could not be read are asked for anew.
    recall_at: Option<Instant>,
    /// A flush failed: nothing more can be promised.
    flush_failed: bool,
    is_exporting: bool,
    stats: Arc<PoolStats>,
    completions: Vec<Completion>,
}

impl<D: BlockDevice> PoolHost<D> {
    /// A pool over `devices`, whose metadata machine has just been made.
    pub(crate) fn new(
        index: PoolIndex,
        name: String,
        devices: Vec<(String, D)>,
        pool: Pool,
        core: &ShardCore,
    ) -> Self {
        let lanes: Vec<_> = devices
            .into_iter()
            .map(|(name, device)| Lane::new(name, device, CORE_REQUESTS_MAX))
            .collect();
        let cache = CacheFacts::of_all(lanes.iter().map(Lane::geometry));
        let blocks = lanes.iter().map(|lane| lane.geometry().block_size.bytes());
        let device_block_bytes = blocks.max().unwrap_or(0);
        let named = lanes.iter().map(|lane| (lane.name(), lane.geometry()));
        let stats = Arc::new(PoolStats::new(&name, named));
        core.stats.add_pool(Arc::clone(&stats));
        Self {
            index,
            name,
            lanes,
            pool,
            cache,
            device_block_bytes,
            volumes: VolumeTable::default(),
            controls: ControlTable::new(),
            recalls: Recalls::default(),
            metadata: MetadataPump::new(),
            flushes: FlushGroups::default(),
            deferred: VecDeque::with_capacity(CORE_REQUESTS_MAX),
            committing: VecDeque::with_capacity(CORE_REQUESTS_MAX),
            metadata_waiters: VecDeque::with_capacity(CORE_REQUESTS_MAX),
            space_waiters: VecDeque::with_capacity(CORE_REQUESTS_MAX),
            commit_wanted: false,
            uncommitted_since: None,
            recall_at: None,
            flush_failed: false,
            is_exporting: false,
            stats,
            completions: Vec::with_capacity(COMPLETIONS_PER_POLL),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Who the pool is, once that is known.
    pub(crate) fn identity(&self) -> Option<PoolIdentity> {
        Some(PoolIdentity {
            name: self.pool.name().to_owned(),
            uuid: self.pool.uuid()?,
            device_uuids: self.pool.device_uuids(),
        })
    }

    pub(crate) fn state(&self) -> &PoolState {
        self.pool.state()
    }

    /// Every device's end that completes commands, then the stages behind it. Returns how much
    /// was found to do.
    #[inline]
    pub(crate) fn poll(&mut self, core: &mut ShardCore) -> usize {
        let mut found = 0;
        for index in 0..self.lanes.len() {
            self.lanes[index].kick(&core.stats);
            found += self.poll_lane(index, core);
        }
        self.show_readiness(core);
        found
    }

    /// The stages that owe something: metadata work, recording, flushes, waiters, control.
    /// Returns how many requests or operations moved.
    pub(crate) fn poll_deferred(&mut self, core: &mut ShardCore) -> usize {
        self.recall_damaged(core.now);
        let durable_before = self.pool.durable();
        let mut moved = self.drain_deferred(core);
        moved += self.poll_controls(core);
        self.start_commit(core.now);
        self.metadata.pump(&mut self.pool, &mut self.lanes, core);
        let (flushes, group) = self.flushes.pump(&mut self.lanes);
        if flushes > 0 {
            self.count_flushes(flushes, core);
        }
        if let Some(group) = group {
            moved += 1;
            self.flushed(group, core);
        }
        moved += self.wake_committed(core);
        if matches!(self.pool.state(), PoolState::Ready) && self.name != self.pool.name() {
            self.take_name(core);
        }
        if self.pool.durable() != durable_before || moved > 0 {
            self.publish();
        }
        // What a device was just shown it may answer at the next poll, without a signal.
        let (stats, lanes) = (&*core.stats, self.lanes.iter_mut());
        let shown: usize = lanes.map(|lane| usize::from(lane.kick(stats))).sum();
        moved + shown
    }

    /// Whether [`PoolHost::poll_deferred`] may have something to do.
    #[inline]
    pub(crate) fn has_deferred_work(&self) -> bool {
        !self.deferred.is_empty()
            || !self.committing.is_empty()
            || self.commit_wanted
            || self.uncommitted_since.is_some()
            || !self.flushes.is_idle()
            || !self.metadata.is_idle()
            || !self.metadata_waiters.is_empty()
            || !self.space_waiters.is_empty()
            || !self.controls.is_empty()
            || self.is_exporting
            || matches!(self.pool.state(), PoolState::Starting)
            || self.pool.has_damage()
    }

    /// Commands in flight at the pool's devices.
    pub(crate) fn in_flight(&self) -> usize {
        self.lanes.iter().map(Lane::in_flight).sum()
    }

    /// Whether a control request has not ended.
    pub(crate) fn has_controls(&self) -> bool {
        !self.controls.is_empty()
    }

    /// When to poll although nothing completes.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let commit = self.uncommitted_since.map(|since| since + COMMIT_INTERVAL);
        self.lanes
            .iter()
            .filter_map(Lane::next_deadline)
            .chain(commit)
            .min()
    }

    #[inline]
    fn poll_lane(&mut self, lane: usize, core: &mut ShardCore) -> usize {
        let mut completions = std::mem::take(&mut self.completions);
        let found = self.lanes[lane].poll(core.now, &mut completions);
        let device = DeviceIndex::new(u16::try_from(lane).expect("a pool has few devices"));
        for completion in &completions {
            self.dispatch(device, completion, core);
        }
        completions.clear();
        self.completions = completions;
        if found > 0 {
            self.resume_lane_waiters(lane, core);
        }
        found
    }

    /// Sends a command's completion to whom it belongs.
    #[inline]
    fn dispatch(&mut self, device: DeviceIndex, completion: &Completion, core: &mut ShardCore) {
        match CommandOwner::of(completion.tag) {
            CommandOwner::Op {
                index,
                sector,
                count,
            } => {
                let op = core.ops.get_mut(index);
                op.outstanding -= 1;
                if let Err(error) = completion.result {
                    let offset = op.start + u64::from(sector) * SECTOR_BYTES;
                    let length = u64::from(count) * SECTOR_BYTES;
                    op.fail(Failure {
                        device,
                        offset,
                        length,
                        error,
                    });
                }
                if op.is_step_done() {
                    self.step_done(index, core);
                }
            }
            CommandOwner::Metadata(slot) => {
                self.metadata
                    .completed(slot, completion, &mut self.pool, core);
                core.wake_all(&mut self.metadata_waiters);
            }
            CommandOwner::Flush => {
                if let Some(group) = self.flushes.completed(completion.result, &self.lanes) {
                    self.flushed(group, core);
                }
            }
        }
    }

    /// Resumes a request that a queue held.
    pub(crate) fn resume(&mut self, index: OpIndex, core: &mut ShardCore) {
        let op = core.ops.get_mut(index);
        op.is_queued = false;
        match op.step {
            Step::Start => self.start(index, core),
            Step::Read | Step::Compare | Step::Merge | Step::Write | Step::Zero => {
                self.transfer(index, core);
            }
            Step::Unmap | Step::Record => {
                self.deferred.push_back(core.queued(index));
            }
            Step::Settle => self.settle(index, core),
            Step::Away => {}
        }
    }

    /// Lets the requests that wait for a slot of a device go on, as many as there is room for, the
    /// volumes by turns.
    fn resume_lane_waiters(&mut self, lane: usize, core: &mut ShardCore) {
        while let Some(index) = self.lanes[lane].next_waiter() {
            self.resume(index, core);
        }
    }

    /// Starts a group commit when someone waits for one, or when the oldest change has waited
    /// long enough.
    fn start_commit(&mut self, now: Instant) {
        let is_dirty = self.pool.recorded() > self.pool.durable();
        if !is_dirty {
            self.uncommitted_since = None;
            self.commit_wanted = false;
            return;
        }
        let since = *self.uncommitted_since.get_or_insert(now);
        if self.commit_wanted || now.saturating_duration_since(since) >= COMMIT_INTERVAL {
            self.commit_wanted = false;
            self.uncommitted_since = Some(now);
            self.pool.commit();
        }
    }

    /// Lets metadata that could not be read be asked for anew, once in a while: a medium that does
    /// not deliver a block now may do so later.
    fn recall_damaged(&mut self, now: Instant) {
        if !self.pool.has_damage() {
            self.recall_at = None;
        } else if now >= *self.recall_at.get_or_insert(now + RECALL_INTERVAL) {
            self.recall_at = None;
            self.pool.recall_damaged();
        }
    }

    /// Begins to close the pool cleanly: what is recorded becomes durable, and a checkpoint says
    /// that nothing has to be replayed. No request of it is in progress any more.
    pub(crate) fn export(&mut self) {
        self.is_exporting = true;
        self.pool.export();
    }

    /// Whether the pool needs no more polling: exported or failed, and no command in flight.
    pub(crate) fn is_closed(&self) -> bool {
        let ended = matches!(
            self.pool.state(),
            PoolState::Exported | PoolState::Failed(_)
        );
        ended && self.metadata.is_idle() && self.in_flight() == 0
    }

    /// Takes the pool off the shard and gives its devices back.
    pub(crate) fn into_devices(self, core: &ShardCore) -> Vec<D> {
        core.stats.remove_pool(&self.stats);
        self.volumes
            .iter()
            .for_each(|volume| core.stats.remove_volume(&volume.stats));
        self.lanes.into_iter().map(Lane::into_device).collect()
    }

    /// The devices, for their owner's own questions.
    pub(crate) fn devices_mut(&mut self) -> impl Iterator<Item = &mut D> {
        self.lanes.iter_mut().map(Lane::device_mut)
    }

    /// Whether the strongest promise still holds: durable requests are refused otherwise.
    #[inline]
    const fn can_promise(&self, durability: Durability) -> bool {
        matches!(durability, Durability::None) || !self.flush_failed
    }
}

/// The longest that a recorded change waits for company before it is committed although nobody
/// waits for it.
const COMMIT_INTERVAL: Duration = Duration::from_millis(100);
/// How long metadata that could not be read are not asked for again.
const RECALL_INTERVAL: Duration = Duration::from_secs(1);
/// The most completions that are taken from one device before the others are looked at.
const COMPLETIONS_PER_POLL: usize = 128;
