//! What a core hosts: the engine's shard and the controllers that live there.
//!
//! A pool lives on one core, its home, and is a guest on every other. A controller lives on one
//! core, which polls it; queues on it may be anywhere.
//!
//! A completion that nobody waits for asleep still costs the kernel an interrupt, and letting a
//! vector rest and fire again costs two system calls. So interrupts go on firing after a sleep,
//! until a burst of work shows that they are of no use: at most the cost of that many interrupts
//! is added to it, and a core that sleeps between its requests makes no system call at all. While
//! they rest, the queues acknowledge completions as rarely as if they had no interrupts.

use std::sync::Arc;
use std::time::Duration;

use lode_engine::{
    Completion, ControlRequest, DataRequest, GuestSpec, PoolIdentity, PoolIndex, Port, Shard, Token,
};
use lode_extent::{Pool, PoolState};
use lode_reactor::Hosted;
use lode_server::PoolManagerError;
use lode_units::{CoreId, Instant, NamespaceId};

use crate::drive::{Device, Drive, Left, Opener, Queue, QueueFigures};

/// The engine's shard and the controllers under it.
#[derive(Debug)]
pub(crate) struct Node {
    shard: Shard<Queue>,
    drives: Vec<Drive>,
    pools: Vec<OpenPool>,
    /// When the queues' figures are to be shown again, at the latest before the core sleeps.
    publish_due: Instant,
    /// Whether a poll has found something since the core slept.
    has_news: bool,
    interrupts: Interrupts,
    /// Polls that may find something before interrupts rest; they do rest at 0.
    polls_until_rest: u32,
}

/// When the interrupts of a core's drives rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupts {
    /// While the core is busy polling.
    RestWhenBusy,
    /// Never: the core sleeps whenever a poll finds nothing.
    Fire,
}

/// A pool, at home or as a guest, with what is known of its devices beside their queues, which the
/// shard has.
#[derive(Debug)]
struct OpenPool {
    index: PoolIndex,
    /// Whether one of its queues belongs to a controller of another core: it wakes nobody here.
    has_queues_elsewhere: bool,
    devices: Vec<Shown>,
}

impl Node {
    pub(crate) const fn new(shard: Shard<Queue>, interrupts: Interrupts) -> Self {
        Self {
            shard,
            drives: Vec::new(),
            pools: Vec::new(),
            publish_due: Instant::ZERO,
            has_news: false,
            interrupts,
            polls_until_rest: POLLS_UNTIL_REST,
        }
    }

    /// Connects this core's shard with that of another.
    pub(crate) fn connect(&mut self, peer: CoreId, port: Box<dyn Port>) {
        self.shard.connect(peer, port);
    }

    /// Takes a controller over, which is polled from now on.
    pub(crate) fn adopt(&mut self, drive: Drive) {
        self.drives.push(drive);
    }

    /// Opens a device on the controller of this name, with a queue for the core `core`; `None` when
    /// the controller does not live here.
    pub(crate) fn open(
        &mut self,
        controller: &str,
        device: &str,
        core: CoreId,
        wanted: Option<NamespaceId>,
        opener: &Opener,
    ) -> Option<Result<Device, PoolManagerError>> {
        let mut drives = self.drives.iter_mut();
        let drive = drives.find(|drive| drive.name() == controller)?;
        Some(drive.open(device, core, wanted, opener))
    }

    /// Opens another queue for the core `core` on a device that is open on a controller of this
    /// core; `None` when it lives elsewhere.
    pub(crate) fn open_more(
        &mut self,
        device: &Arc<QueueFigures>,
        core: CoreId,
        opener: &Opener,
    ) -> Option<Result<Device, PoolManagerError>> {
        self.drives
            .iter_mut()
            .find_map(|drive| drive.open_more(device, core, opener))
    }

    /// Forgets devices whose queues have been dropped; gives back the controllers on which none
    /// is left.
    pub(crate) fn close(&mut self, devices: &[Arc<QueueFigures>]) -> Vec<Drive> {
        let is_unused = |drive: &mut Drive| {
            let left = devices.iter().map(|device| drive.close(device));
            left.last() == Some(Left::None)
        };
        self.drives.extract_if(.., is_unused).collect()
    }

    /// Attaches a pool whose metadata machine has just been made for these devices: this core is
    /// its home.
    pub(crate) fn attach(&mut self, name: &str, devices: Vec<Device>, pool: Pool) -> PoolIndex {
        let (devices, queues) = apart(devices);
        let index = self.shard.attach(name, queues, pool);
        // Those of the other drives may rest; the new ones fire.
        self.acknowledge();
        self.let_interrupts_fire();
        self.remember(index, devices);
        index
    }

    /// Whether a pool that lives here serves.
    pub(crate) fn pool_state(&self, index: PoolIndex) -> Option<PoolState> {
        self.shard.pool_state(index).cloned()
    }

    /// Who a pool that lives here and serves is, with the figures that tell its devices from
    /// others.
    pub(crate) fn pool_identity(
        &self,
        index: PoolIndex,
    ) -> Option<(PoolIdentity, Vec<Arc<QueueFigures>>)> {
        let identity = self.shard.pool_identity(index)?;
        let pool = self.pools.iter().find(|pool| pool.index == index)?;
        let devices = pool.devices.iter().map(|(_, figures)| Arc::clone(figures));
        Some((identity, devices.collect()))
    }

    /// Takes the UUIDs by which pools know devices; those that live elsewhere are left out.
    pub(crate) fn take_uuids(&mut self, devices: &[(Arc<QueueFigures>, String)]) {
        for drive in &mut self.drives {
            for (device, uuid) in devices {
                drive.take_uuid(device, uuid);
            }
        }
    }

    /// What other cores have to know of a pool that lives here.
    pub(crate) fn guest_spec(&self, index: PoolIndex) -> Option<GuestSpec> {
        self.shard.guest_spec(index)
    }

    /// Takes a pool that lives on the core `home` as a guest, over this core's own queues. Without
    /// any, everything is sent home.
    pub(crate) fn attach_guest(&mut self, home: CoreId, spec: GuestSpec, devices: Vec<Device>) {
        let index = spec.index();
        let (devices, queues) = apart(devices);
        self.shard.attach_guest(home, spec, queues);
        self.remember(index, devices);
    }

    fn remember(&mut self, index: PoolIndex, devices: Vec<Shown>) {
        let is_here = |figures| self.drives.iter().any(|drive| drive.is_home_of(figures));
        let has_queues_elsewhere = devices.iter().any(|(_, figures)| !is_here(figures));
        self.pools.push(OpenPool {
            index,
            has_queues_elsewhere,
            devices,
        });
    }

    /// Begins to take a guest off.
    pub(crate) fn close_guest(&mut self, index: PoolIndex) {
        self.shard.close_guest(index);
    }

    /// Takes a guest off that was closed; `None` while it still has work to do.
    pub(crate) fn detach_guest(&mut self, index: PoolIndex) -> Option<Vec<Device>> {
        let queues = self.shard.detach_guest(index)?;
        self.together(index, queues)
    }

    /// Begins to close a pool.
    pub(crate) fn export(&mut self, index: PoolIndex) {
        self.shard.export(index);
    }

    /// Takes a closed or failed pool off; `None` while it still has work to do.
    pub(crate) fn detach(&mut self, index: PoolIndex) -> Option<Vec<Device>> {
        let queues = self.shard.detach(index)?;
        self.together(index, queues)
    }

    /// The devices of a pool that was taken off.
    fn together(&mut self, index: PoolIndex, queues: Vec<Queue>) -> Option<Vec<Device>> {
        let position = self.pools.iter().position(|pool| pool.index == index)?;
        let pool = self.pools.swap_remove(position);
        let devices = pool.devices.into_iter().zip(queues);
        let devices = devices.map(|((name, figures), queue)| Device {
            name,
            queue,
            figures,
        });
        Some(devices.collect())
    }

    /// Shows what the queues have counted.
    fn publish(&mut self) {
        for pool in &self.pools {
            let queues = self.shard.devices_mut(pool.index);
            pool.devices
                .iter()
                .zip(queues)
                .for_each(|((_, figures), queue)| figures.set(&queue.stats()));
        }
    }

    /// From now on new requests are refused; those under way end.
    pub(crate) fn stop_admitting(&mut self) {
        self.shard.stop_admitting();
    }

    fn let_interrupts_fire(&mut self) {
        if self.polls_until_rest == 0 {
            self.drives.iter_mut().for_each(Drive::fire_interrupt);
        }
        self.polls_until_rest = POLLS_UNTIL_REST;
    }

    /// A poll has found something.
    fn note_work(&mut self) {
        if self.polls_until_rest == 0 || self.interrupts == Interrupts::Fire {
            return;
        }
        self.polls_until_rest -= 1;
        if self.polls_until_rest == 0 {
            self.drives.iter_mut().for_each(Drive::rest_interrupt);
            self.each_queue(Queue::disregard_interrupt);
        }
    }

    fn each_queue(&mut self, act: impl Fn(&mut Queue)) {
        for pool in &self.pools {
            self.shard.devices_mut(pool.index).for_each(&act);
        }
    }

    /// Requests under way.
    pub(crate) fn requests_in_flight(&self) -> usize {
        self.shard.requests_in_flight()
    }
}

impl Hosted for Node {
    fn submit(&mut self, request: DataRequest) -> Result<(), DataRequest> {
        self.shard.submit(request)
    }

    fn control(&mut self, token: Token, request: ControlRequest) -> Result<(), ControlRequest> {
        self.shard.control(token, request);
        Ok(())
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) -> usize {
        for drive in &mut self.drives {
            drive.poll(now);
        }
        if now >= self.publish_due {
            self.publish_due = now + PUBLISH_INTERVAL;
            self.publish();
        }
        let found = self.shard.poll(now, completions);
        if found > 0 {
            self.has_news = true;
            self.note_work();
        }
        found
    }

    fn in_flight(&self) -> usize {
        usize::from(self.shard.is_busy())
    }

    fn needs_polling(&self) -> bool {
        // Work that no device has in hand goes on only when it is polled.
        self.shard.is_busy()
            && (self.shard.commands_in_flight() == 0
                || self.pools.iter().any(|pool| pool.has_queues_elsewhere)
                || self.drives.iter().any(|drive| !drive.wakes()))
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.drives
            .iter()
            .map(Drive::next_deadline)
            .chain(self.shard.next_deadline())
            .min()
    }

    fn acknowledge(&mut self) {
        if self.polls_until_rest == 0 {
            self.each_queue(Queue::heed_interrupt);
        }
    }

    fn arm(&mut self) {
        if std::mem::take(&mut self.has_news) {
            self.publish();
        }
        self.let_interrupts_fire();
    }

    fn disarm(&mut self) {}
}

type Shown = (String, Arc<QueueFigures>);

/// Devices without their queues, and the queues.
fn apart(devices: Vec<Device>) -> (Vec<Shown>, Vec<(String, Queue)>) {
    devices
        .into_iter()
        .map(|device| {
            let name = device.name.clone();
            ((name, device.figures), (device.name, device.queue))
        })
        .unzip()
}

/// How often the queues' figures are shown.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(500);

/// As many interrupts as cost about what letting them rest and fire again does.
const POLLS_UNTIL_REST: u32 = 32;

#[cfg(test)]
mod tests;
