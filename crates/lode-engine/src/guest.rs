//! A pool whose home is another core: its devices through this core's own queue pairs, and what
//! the home lets this core do by itself.
//!
//! A read or a write whose whole range is under lease goes to the device from here. A pure
//! overwrite that owes nothing completes on the spot; one that owes a flush or a commit sends for
//! that when its data are written. Everything else goes home whole. There is no way from here to
//! the pool's metadata: what completes inline on a guest cannot touch them.

mod settle;
mod start;
mod volumes;

use std::collections::VecDeque;

use lode_block::{BlockDevice, Completion};
use lode_extent::PoolLayout;
use lode_units::limits::CORE_REQUESTS_MAX;
use lode_units::{DeviceIndex, Instant};

use crate::classify::CacheFacts;
use crate::core::ShardCore;
use crate::host::{UNIT, units_to};
use crate::lane::Lane;
use crate::op::{Failure, OpIndex};
use crate::port::{Body, GuestSpec, PeerIndex, Recall, UnitRange};
use crate::request::PoolIndex;
use crate::stats::ShardStats;
use crate::tag::{CommandOwner, SECTOR_BYTES};

use volumes::GuestVolumes;

/// A pool whose home is another core.
#[derive(Debug)]
pub(crate) struct PoolGuest<D> {
    index: PoolIndex,
    name: String,
    home: PeerIndex,
    layout: PoolLayout,
    lanes: Vec<Lane<D>>,
    cache: CacheFacts,
    volumes: GuestVolumes,
    /// Recalls that wait for commands under way.
    recalls: Vec<Recall>,
    /// Requests whose commands have ended and that do not complete here.
    deferred: VecDeque<OpIndex>,
    /// Requests that have not ended.
    active: usize,
    is_closing: bool,
    completions: Vec<Completion>,
}

impl<D: BlockDevice> PoolGuest<D> {
    /// A guest with queues of its own, or without any: then everything goes home.
    pub(crate) fn new(spec: GuestSpec, home: PeerIndex, devices: Vec<(String, D)>) -> Self {
        let lanes: Vec<_> = devices
            .into_iter()
            .map(|(name, device)| Lane::new(name, device, CORE_REQUESTS_MAX))
            .collect();
        Self {
            index: spec.index,
            name: spec.name,
            home,
            layout: spec.layout,
            cache: CacheFacts::of_all(lanes.iter().map(Lane::geometry)),
            lanes,
            volumes: GuestVolumes::default(),
            recalls: Vec::new(),
            deferred: VecDeque::with_capacity(CORE_REQUESTS_MAX),
            active: 0,
            is_closing: false,
            completions: Vec::with_capacity(COMPLETIONS_PER_POLL),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) const fn home(&self) -> PeerIndex {
        self.home
    }

    /// Refuses new requests; those under way end.
    pub(crate) const fn close(&mut self) {
        self.is_closing = true;
    }

    /// Whether nothing of it is under way.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closing && self.active == 0 && self.recalls.is_empty() && self.in_flight() == 0
    }

    pub(crate) fn into_devices(mut self, core: &ShardCore) -> Vec<D> {
        self.volumes.clear(core);
        self.lanes.into_iter().map(Lane::into_device).collect()
    }

    pub(crate) fn devices_mut(&mut self) -> impl Iterator<Item = &mut D> {
        self.lanes.iter_mut().map(Lane::device_mut)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.lanes.iter().map(Lane::in_flight).sum()
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.lanes.iter().filter_map(Lane::next_deadline).min()
    }

    /// Every device's end that completes commands. Returns how much was found to do.
    #[inline]
    pub(crate) fn poll(&mut self, core: &mut ShardCore) -> usize {
        let mut found = 0;
        for lane in 0..self.lanes.len() {
            self.lanes[lane].kick(&core.stats);
            found += self.poll_lane(lane, core);
        }
        self.drain_deferred(core);
        found
    }

    /// Shows the devices what letters and waiters have led to; how many had something to be shown.
    #[inline]
    pub(crate) fn kick(&mut self, stats: &ShardStats) -> usize {
        let lanes = self.lanes.iter_mut();
        lanes.map(|lane| usize::from(lane.kick(stats))).sum()
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
            while let Some(index) = self.lanes[lane].next_waiter() {
                self.resume(index, core);
            }
        }
        found
    }

    #[inline]
    fn dispatch(&mut self, device: DeviceIndex, completion: &Completion, core: &mut ShardCore) {
        let CommandOwner::Op {
            index,
            sector,
            count,
        } = CommandOwner::of(completion.tag)
        else {
            debug_assert!(false, "a guest sends commands of requests only");
            return;
        };
        let op = core.ops.get_mut(index);
        op.outstanding -= 1;
        if let Err(error) = completion.result {
            op.fail(Failure {
                device,
                offset: op.start + u64::from(sector) * SECTOR_BYTES,
                length: u64::from(count) * SECTOR_BYTES,
                error,
            });
        }
        let (is_unused, is_done) = (op.outstanding == 0 && op.is_watched, op.is_step_done());
        if is_unused {
            self.heed_recalls(core);
        }
        if is_done {
            self.step_done(index, core);
        }
    }

    /// The home takes leases back.
    pub(crate) fn recall(&mut self, recall: Recall, core: &mut ShardCore) {
        self.volumes.recall(&recall, core);
        let mut is_used = false;
        for (_, op) in core.ops.iter_mut() {
            if uses(op, &recall) {
                op.is_watched = true;
                is_used = true;
            }
        }
        self.recalls.push(recall);
        if !is_used {
            self.heed_recalls(core);
        }
    }

    /// The home can promise nothing more.
    pub(crate) fn recall_pool(&mut self) {
        self.volumes.forget_leases();
    }

    /// Answers the recalls whose ranges no command uses any more.
    fn heed_recalls(&mut self, core: &mut ShardCore) {
        let (pool, home) = (self.index, self.home);
        self.recalls.retain(|recall| {
            if core.ops.iter_mut().any(|(_, op)| uses(op, recall)) {
                return true;
            }
            let serial = recall.serial;
            core.peers.post(home, Body::Recalled { pool, serial });
            false
        });
    }
}

/// Whether commands of a request are under way in the range of a recall.
fn uses(op: &crate::op::Op, recall: &Recall) -> bool {
    let units = units_of(op.start, op.end);
    op.outstanding > 0
        && op.volume == recall.volume
        && recall.units.overlaps(units.first, units.end)
}

#[inline]
const fn units_of(start: u64, end: u64) -> UnitRange {
    UnitRange {
        first: start / UNIT,
        end: units_to(end),
    }
}

/// The most completions that are taken from one device before the others are looked at.
const COMPLETIONS_PER_POLL: usize = 128;
