//! What the core hosts: the engine's shard and the controllers under it.
//!
//! A completion that nobody waits for asleep still costs the kernel an interrupt, and letting a
//! vector rest and fire again costs two system calls. So interrupts go on firing after a sleep,
//! until a burst of work shows that they are of no use: at most the cost of that many interrupts
//! is added to it, and a core that sleeps between its requests makes no system call at all.

use lode_engine::{Completion, ControlRequest, DataRequest, PoolIdentity, PoolIndex, Shard, Token};
use lode_extent::{Pool, PoolState};
use lode_reactor::Hosted;
use lode_units::{Instant, MonotonicClock};

use crate::drive::{Drive, Due, Opened, Queue};

/// The engine's shard and the controllers under it.
#[derive(Debug)]
pub(crate) struct Node {
    shard: Shard<Queue>,
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

/// A pool with the controllers that belong to it.
#[derive(Debug)]
struct OpenPool {
    index: PoolIndex,
    drives: Vec<Drive>,
}

impl Node {
    pub(crate) const fn new(shard: Shard<Queue>, interrupts: Interrupts) -> Self {
        Self {
            shard,
            pools: Vec::new(),
            interrupts,
            polls_until_rest: POLLS_UNTIL_REST,
        }
    }

    /// Attaches a pool whose metadata machine has just been made for these devices.
    pub(crate) fn attach(&mut self, name: &str, devices: Vec<Opened>, pool: Pool) -> PoolIndex {
        let mut drives = Vec::with_capacity(devices.len());
        let mut queues = Vec::with_capacity(devices.len());
        for opened in devices {
            drives.push(opened.drive);
            queues.push((opened.name, opened.queue));
        }
        let index = self.shard.attach(name, queues, pool);
        // Those of the other drives may rest; the new ones fire.
        self.let_interrupts_fire();
        self.pools.push(OpenPool { index, drives });
        index
    }

    /// Whether an attached pool serves.
    pub(crate) fn pool_state(&self, index: PoolIndex) -> Option<PoolState> {
        self.shard.pool_state(index).cloned()
    }

    /// Who an attached pool that serves is. Its drives are told what it calls them.
    pub(crate) fn pool_identity(&mut self, index: PoolIndex) -> Option<PoolIdentity> {
        let identity = self.shard.pool_identity(index)?;
        let pool = self.pools.iter_mut().find(|pool| pool.index == index)?;
        for (drive, uuid) in pool.drives.iter_mut().zip(&identity.device_uuids) {
            drive.take_uuid(uuid.to_string());
        }
        Some(identity)
    }

    /// Begins to close a pool.
    pub(crate) fn export(&mut self, index: PoolIndex) {
        self.shard.export(index);
    }

    /// Takes a closed or failed pool off; `None` while it still has work to do.
    pub(crate) fn detach(&mut self, index: PoolIndex) -> Option<Vec<Opened>> {
        let queues = self.shard.detach(index)?;
        let position = self.pools.iter().position(|pool| pool.index == index)?;
        let pool = self.pools.swap_remove(position);
        let opened = pool
            .drives
            .into_iter()
            .zip(queues)
            .map(|(drive, queue)| Opened {
                name: drive.name().to_owned(),
                drive,
                queue,
            });
        Some(opened.collect())
    }

    /// From now on new requests are refused; those under way end.
    pub(crate) fn stop_admitting(&mut self) {
        self.shard.stop_admitting();
    }

    fn let_interrupts_fire(&mut self) {
        if self.polls_until_rest == 0 {
            self.drives_mut().for_each(Drive::fire_interrupt);
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
            self.drives_mut().for_each(Drive::rest_interrupt);
        }
    }

    fn drives_mut(&mut self) -> impl Iterator<Item = &mut Drive> {
        self.pools.iter_mut().flat_map(|pool| &mut pool.drives)
    }

    /// Requests under way.
    pub(crate) fn requests_in_flight(&self) -> usize {
        self.shard.requests_in_flight()
    }
}

/// Closes what detaching gave back: each controller is told that it will be used no more.
pub(crate) fn shut_down(devices: Vec<Opened>, clock: &MonotonicClock) {
    for opened in devices {
        // The queue goes first: nothing of it is in flight any more.
        drop(opened.queue);
        opened.drive.shut_down(clock);
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
        for pool in &mut self.pools {
            let mut is_due = false;
            for drive in &mut pool.drives {
                is_due |= drive.poll(now) == Due::Now;
            }
            if is_due {
                let queues = self.shard.devices_mut(pool.index);
                pool.drives
                    .iter()
                    .zip(queues)
                    .for_each(|(drive, queue)| drive.publish(queue));
            }
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
                || self
                    .pools
                    .iter()
                    .flat_map(|pool| &pool.drives)
                    .any(|drive| !drive.wakes()))
    }

    fn next_deadline(&self) -> Option<Instant> {
        let drives = self.pools.iter().flat_map(|pool| &pool.drives);
        drives
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
