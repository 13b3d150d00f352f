//! What the core hosts: the engine's shard and the controllers under it.
//!
//! A completion that nobody waits for asleep still costs the kernel an interrupt, and letting a
//! vector rest and fire again costs two system calls. So interrupts go on firing after a sleep,
//! until a burst of work shows that they are of no use: at most the cost of that many interrupts
//! is added to it, and a core that sleeps between its requests makes no system call at all.

use std::sync::Arc;

use lode_engine::{Completion, ControlRequest, DataRequest, PoolIdentity, PoolIndex, Shard, Token};
use lode_extent::{Pool, PoolState};
use lode_reactor::Hosted;
use lode_server::PoolManagerError;
use lode_units::{Instant, NamespaceId};

use crate::drive::{Device, Drive, Due, Left, Opener, Queue, QueueFigures};

/// The engine's shard and the controllers under it.
#[derive(Debug)]
pub(crate) struct Node {
    shard: Shard<Queue>,
    drives: Vec<Drive>,
    pools: Vec<OpenPool>,
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

/// A pool with what is known of its devices beside their queues, which the shard has.
#[derive(Debug)]
struct OpenPool {
    index: PoolIndex,
    devices: Vec<(String, Arc<QueueFigures>)>,
}

impl Node {
    pub(crate) const fn new(shard: Shard<Queue>, interrupts: Interrupts) -> Self {
        Self {
            shard,
            drives: Vec::new(),
            pools: Vec::new(),
            interrupts,
            polls_until_rest: POLLS_UNTIL_REST,
        }
    }

    /// Takes a controller over, which is polled from now on.
    pub(crate) fn adopt(&mut self, drive: Drive) {
        self.drives.push(drive);
    }

    /// Opens a device on the controller of this name, if it is in use.
    pub(crate) fn open(
        &mut self,
        controller: &str,
        device: &str,
        wanted: Option<NamespaceId>,
        opener: &Opener,
    ) -> Option<Result<Device, PoolManagerError>> {
        let mut drives = self.drives.iter_mut();
        let drive = drives.find(|drive| drive.name() == controller)?;
        Some(drive.open(device, wanted, opener))
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

    /// Attaches a pool whose metadata machine has just been made for these devices.
    pub(crate) fn attach(&mut self, name: &str, devices: Vec<Device>, pool: Pool) -> PoolIndex {
        let mut shown = Vec::with_capacity(devices.len());
        let mut queues = Vec::with_capacity(devices.len());
        for device in devices {
            shown.push((device.name.clone(), device.figures));
            queues.push((device.name, device.queue));
        }
        let index = self.shard.attach(name, queues, pool);
        // Those of the other drives may rest; the new ones fire.
        self.let_interrupts_fire();
        let devices = shown;
        self.pools.push(OpenPool { index, devices });
        index
    }

    /// Whether an attached pool serves.
    pub(crate) fn pool_state(&self, index: PoolIndex) -> Option<PoolState> {
        self.shard.pool_state(index).cloned()
    }

    /// Who an attached pool that serves is. Its devices are told what it calls them.
    pub(crate) fn pool_identity(&mut self, index: PoolIndex) -> Option<PoolIdentity> {
        let identity = self.shard.pool_identity(index)?;
        let pool = self.pools.iter().find(|pool| pool.index == index)?;
        for ((_, device), uuid) in pool.devices.iter().zip(&identity.device_uuids) {
            let uuid = uuid.to_string();
            self.drives
                .iter_mut()
                .for_each(|drive| drive.take_uuid(device, &uuid));
        }
        Some(identity)
    }

    /// Begins to close a pool.
    pub(crate) fn export(&mut self, index: PoolIndex) {
        self.shard.export(index);
    }

    /// Takes a closed or failed pool off; `None` while it still has work to do.
    pub(crate) fn detach(&mut self, index: PoolIndex) -> Option<Vec<Device>> {
        let queues = self.shard.detach(index)?;
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
        let mut is_due = false;
        for drive in &mut self.drives {
            is_due |= drive.poll(now) == Due::Now;
        }
        if is_due {
            self.publish();
        }
        let found = self.shard.poll(now, completions);
        if found > 0 {
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
                || self.drives.iter().any(|drive| !drive.wakes()))
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.drives
            .iter()
            .map(Drive::next_deadline)
            .chain(self.shard.next_deadline())
            .min()
    }

    fn arm(&mut self) {
        self.let_interrupts_fire();
    }

    fn disarm(&mut self) {}
}

/// As many interrupts as cost about what letting them rest and fire again does.
const POLLS_UNTIL_REST: u32 = 32;

#[cfg(test)]
mod tests;
