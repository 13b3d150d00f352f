//! One core's part of the engine.

mod admission;
mod letters;
mod limits;

use std::sync::Arc;

use lode_block::BlockDevice;
use lode_bus::{BusError, DmaMemory, IovaSpace, PagePreference};
use lode_extent::{DeviceSpec, Pool, PoolState, Usage};
use lode_units::Instant;

use crate::control::{Asker, Completion, ControlError, ControlRequest, PoolIdentity, VolumeName};
use crate::core::ShardCore;
use crate::error::IoError;
use crate::guest::PoolGuest;
use crate::host::PoolHost;
use crate::op::Owner;
use crate::request::{DataRequest, PoolIndex, Token};
use crate::route::Routing;
use crate::stats::ShardStats;

use letters::Listings;
pub use limits::{METADATA_OPERATIONS_MAX, ShardLimits};

/// One core's part of the engine: its pools and the requests on them.
///
/// Submit, poll with the present time, take completions; nothing blocks. After
/// [`Shard::attach`] the data path allocates nothing: reads, pure overwrites and flushes live in
/// tables made at the start.
#[derive(Debug)]
pub struct Shard<D> {
    core: ShardCore,
    /// Pools that live here.
    pools: Vec<Option<PoolHost<D>>>,
    /// Pools that live on another core. A place holds a host or a guest.
    guests: Vec<Option<PoolGuest<D>>>,
    listings: Listings,
    is_stopping: bool,
}

impl<D: BlockDevice> Shard<D> {
    /// A shard without pools. Allocates all memory that requests will use beside their own
    /// buffers; `space` gives it addresses.
    ///
    /// # Errors
    /// When the system has no memory.
    pub fn new(space: &IovaSpace, preference: PagePreference) -> Result<Self, BusError> {
        Self::with_limits(space, preference, ShardLimits::default())
    }

    /// The same with other limits than the default ones.
    ///
    /// # Errors
    /// When the system has no memory.
    pub fn with_limits(
        space: &IovaSpace,
        preference: PagePreference,
        limits: ShardLimits,
    ) -> Result<Self, BusError> {
        let core = ShardCore::new(space, preference, limits)?;
        Ok(Self {
            core,
            pools: Vec::new(),
            guests: Vec::new(),
            listings: Listings::default(),
            is_stopping: false,
        })
    }

    /// Every memory that must be mapped for a device before it is attached.
    pub fn memories(&self) -> impl Iterator<Item = &DmaMemory> {
        self.core.memories()
    }

    /// The figures of this shard.
    #[must_use]
    pub fn stats(&self) -> Arc<ShardStats> {
        Arc::clone(&self.core.stats)
    }

    /// Attaches a pool over `devices`: `pool` has just been made for what [`device_spec`] says of
    /// them, in the same order. `name` is what it is called until the name on its devices is known.
    /// It serves once [`Shard::pool_state`] says that it is ready;
    /// polling takes it there.
    pub fn attach(&mut self, name: &str, devices: Vec<(String, D)>, pool: Pool) -> PoolIndex {
        let is_free = |position: usize| {
            let is_guest = self.guests.get(position).is_some_and(Option::is_some);
            !is_guest && self.pools.get(position).is_none_or(Option::is_none)
        };
        let mut position = 0;
        while !is_free(position) {
            position += 1;
        }
        if position >= self.pools.len() {
            self.pools.resize_with(position + 1, || None);
        }
        let index = PoolIndex(u16::try_from(position).unwrap_or(u16::MAX));
        let host = PoolHost::new(index, name.to_owned(), devices, pool, &self.core);
        self.pools[position] = Some(host);
        index
    }

    /// Whether an attached pool serves; `None` when nothing is attached there.
    #[must_use]
    pub fn pool_state(&self, index: PoolIndex) -> Option<&PoolState> {
        self.host(index).map(PoolHost::state)
    }

    /// How the space of a pool that lives here is used; `None` when there is none.
    #[must_use]
    pub fn pool_usage(&self, index: PoolIndex) -> Option<Usage> {
        self.host(index).map(PoolHost::usage)
    }

    /// Who an attached pool is; `None` before that is known.
    #[must_use]
    pub fn pool_identity(&self, index: PoolIndex) -> Option<PoolIdentity> {
        self.host(index)?.identity()
    }

    /// Begins to close a pool cleanly: new requests are refused, those under way end, well or not.
    /// [`Shard::detach`] takes it off when it is closed.
    pub fn export(&mut self, index: PoolIndex) {
        if let Some(host) = self.host_mut(index) {
            host.export();
        }
    }

    /// Takes a closed or failed pool off the shard and gives its devices back; `None` while it
    /// still has work to do.
    pub fn detach(&mut self, index: PoolIndex) -> Option<Vec<D>> {
        let slot = self.pools.get_mut(usize::from(index.0))?;
        // A request may wait although no command is in flight: nobody would end it afterwards.
        if !slot.as_ref()?.is_closed() || self.core.ops.any_of(index) {
            return None;
        }
        let mut host = slot.take()?;
        host.end_controls(&mut self.core);
        Some(host.into_devices(&self.core))
    }

    /// Chooses which completions take the inline route, from now on.
    pub const fn set_routing(&mut self, routing: Routing) {
        self.core.routing = routing;
    }

    /// From now on new requests are refused with [`IoError::Stopping`], and so are those that wait
    /// for a slot or a limit; those under way end.
    pub fn stop_admitting(&mut self) {
        self.is_stopping = true;
        self.refuse_waiting();
    }

    /// Requests under way, those that wait included.
    #[must_use]
    pub fn requests_in_flight(&self) -> usize {
        self.core.ops.in_use() + self.core.room.len()
    }

    /// Whether work is under way that a poll will find: a poller that sleeps now delays it. A
    /// request that only waits for its volume's limit is not: [`Shard::next_deadline`] tells when.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.core.ops.in_use() > 0
            || !self.core.out.is_empty()
            || self.core.peers.has_work()
            || self.guests().any(|guest| guest.in_flight() > 0)
            || self
                .hosts()
                .any(|host| host.in_flight() > 0 || host.has_controls())
    }

    /// Commands in flight at the devices of all pools.
    #[must_use]
    pub fn commands_in_flight(&self) -> usize {
        let guests = self.guests().map(PoolGuest::in_flight);
        self.hosts().map(PoolHost::in_flight).chain(guests).sum()
    }

    /// The next moment at which polling has something to do although nothing completes.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let limit = self.core.room.next_look(self.core.now);
        let guests = self.guests().filter_map(PoolGuest::next_deadline);
        let hosts = self.hosts().filter_map(PoolHost::next_deadline);
        hosts.chain(guests).chain(limit).min()
    }

    /// The devices of a pool, in the order in which they were attached, for their owner's own
    /// questions.
    pub fn devices_mut(&mut self, index: PoolIndex) -> impl Iterator<Item = &mut D> {
        let guest = self.guests.get_mut(usize::from(index.0));
        let guest = guest.and_then(Option::as_mut).into_iter();
        let host = self.pools.get_mut(usize::from(index.0));
        let host = host.and_then(Option::as_mut).into_iter();
        host.flat_map(PoolHost::devices_mut)
            .chain(guest.flat_map(PoolGuest::devices_mut))
    }

    /// Takes a request. Its completion comes from [`Shard::poll`], also when it is refused.
    ///
    /// # Errors
    /// Gives the request back when neither a slot nor a place to wait is free: the caller tries
    /// again after a completion.
    #[inline]
    pub fn submit(&mut self, request: DataRequest) -> Result<(), DataRequest> {
        if self.is_stopping {
            self.core.refuse(request, IoError::Stopping);
            return Ok(());
        }
        let index = usize::from(request.volume.pool.0);
        let Some(Some(host)) = self.pools.get_mut(index) else {
            return self.submit_to_guest(request);
        };
        let checked = match host.check(&request) {
            Ok(checked) => checked,
            Err(error) => {
                self.core.refuse(request, error);
                return Ok(());
            }
        };
        if checked.is_limited || !self.core.is_uncontended() {
            return self.wait_turn(request, checked.is_limited);
        }
        let owner = Owner::Client(request.token);
        let (durability, now) = (checked.durability, self.core.now);
        let slot = self.core.ops.take_up(owner, request, durability, now);
        host.start(slot, &mut self.core);
        Ok(())
    }

    #[inline]
    fn submit_to_guest(&mut self, request: DataRequest) -> Result<(), DataRequest> {
        let index = usize::from(request.volume.pool.0);
        let Some(Some(guest)) = self.guests.get_mut(index) else {
            self.core.refuse(request, IoError::UnknownVolume);
            return Ok(());
        };
        let is_limited = guest.throttle(request.volume).is_some();
        if is_limited || !self.core.is_uncontended() {
            return self.wait_turn(request, is_limited);
        }
        let now = self.core.now;
        guest.submit(request, now, &mut self.core);
        Ok(())
    }

    /// Takes a control request. Its completion comes from [`Shard::poll`], also when it is
    /// refused.
    pub fn control(&mut self, token: Token, request: ControlRequest) {
        let result = match request {
            _ if self.is_stopping => Err(ControlError::Stopping),
            ControlRequest::ListPools => return self.list_pools(token),
            request => match self.find(&request) {
                Ok(position) => return self.control_at(position, token, request),
                Err(error) => Err(error),
            },
        };
        self.core.answer(Asker::Client(token), Box::new(result));
    }

    /// Looks at every device, carries on what can go on, and appends completions to
    /// `completions`. Returns how much was found to do.
    #[inline]
    pub fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) -> usize {
        self.core.now = now;
        // What is completed from here on goes straight into the caller's list.
        std::mem::swap(&mut self.core.out, completions);
        let before = self.core.out.len();
        if !completions.is_empty() {
            self.core.out.append(completions);
        }
        let mut found = self.receive();
        for host in self.pools.iter_mut().flatten() {
            found += host.poll(&mut self.core);
            if host.has_deferred_work() {
                found += host.poll_deferred(&mut self.core);
            }
        }
        for guest in self.guests.iter_mut().flatten() {
            found += guest.poll(&mut self.core);
        }
        found += self.run_ready();
        if !self.core.room.is_empty() {
            found += self.admit_waiting();
        }
        // What a device was just shown it may answer at the next poll, without a signal.
        for guest in self.guests.iter_mut().flatten() {
            found += guest.kick(&self.core.stats);
        }
        self.core.peers.flush();
        self.core.show_load();
        found += self.core.out.len() - before;
        std::mem::swap(&mut self.core.out, completions);
        found
    }

    /// Resumes the requests whose turn it is. Bounded by those that were ready at the start:
    /// what these make ready waits for the next poll.
    #[inline]
    fn run_ready(&mut self) -> usize {
        self.core.memory.wake(&mut self.core.ready);
        let count = self.core.ready.len();
        for _ in 0..count {
            let Some(index) = self.core.ready.pop_front() else {
                break;
            };
            let pool = usize::from(self.core.ops.get(index).volume.pool.0);
            if let Some(Some(host)) = self.pools.get_mut(pool) {
                host.resume(index, &mut self.core);
            } else if let Some(Some(guest)) = self.guests.get_mut(pool) {
                guest.resume(index, &mut self.core);
            }
        }
        count
    }

    /// The position of the pool that a control request concerns.
    fn find(&self, request: &ControlRequest) -> Result<usize, ControlError> {
        let name = match request {
            ControlRequest::ListPools => "",
            ControlRequest::OpenVolume {
                volume: VolumeName { pool, .. },
            }
            | ControlRequest::ResizeVolume {
                volume: VolumeName { pool, .. },
                ..
            }
            | ControlRequest::LimitVolume {
                volume: VolumeName { pool, .. },
                ..
            }
            | ControlRequest::DeleteVolume {
                volume: VolumeName { pool, .. },
                ..
            }
            | ControlRequest::CreateVolume { pool, .. }
            | ControlRequest::ListVolumes { pool, .. } => pool,
            ControlRequest::ListExtents { volume, .. } => return Ok(usize::from(volume.pool.0)),
        };
        let count = self.names().count();
        if name.is_empty() {
            let only = self.names().next().filter(|_| count == 1);
            return only
                .map(|(position, _)| position)
                .ok_or(ControlError::PoolNotNamed { count });
        }
        self.names()
            .find(|(_, found)| *found == name)
            .map(|(position, _)| position)
            .ok_or_else(|| ControlError::UnknownPool {
                name: name.to_owned(),
            })
    }

    /// The pools of this shard, wherever they live: place and name.
    fn names(&self) -> impl Iterator<Item = (usize, &str)> {
        let hosts = self.pools.iter().enumerate();
        let hosts = hosts.filter_map(|(at, host)| Some((at, host.as_ref()?.name())));
        let guests = self.guests.iter().enumerate();
        hosts.chain(guests.filter_map(|(at, guest)| Some((at, guest.as_ref()?.name()))))
    }

    fn guests(&self) -> impl Iterator<Item = &PoolGuest<D>> {
        self.guests.iter().flatten()
    }

    fn hosts(&self) -> impl Iterator<Item = &PoolHost<D>> {
        self.pools.iter().flatten()
    }

    fn host(&self, index: PoolIndex) -> Option<&PoolHost<D>> {
        self.pools.get(usize::from(index.0))?.as_ref()
    }

    fn host_mut(&mut self, index: PoolIndex) -> Option<&mut PoolHost<D>> {
        self.pools.get_mut(usize::from(index.0))?.as_mut()
    }
}

/// What a pool has to know of a device.
#[must_use]
pub fn device_spec<D: BlockDevice>(device: &D) -> DeviceSpec {
    let geometry = device.geometry();
    DeviceSpec {
        size_bytes: geometry.capacity_bytes(),
        has_volatile_cache: geometry.has_volatile_cache(),
        supports_fua: geometry.supports_write_through,
    }
}
