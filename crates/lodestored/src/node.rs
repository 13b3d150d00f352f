//! What the core hosts: the engine's shard and the controllers under it.

use std::os::fd::RawFd;

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
}

/// A pool with the controllers that belong to it.
#[derive(Debug)]
struct OpenPool {
    index: PoolIndex,
    drives: Vec<Drive>,
}

impl Node {
    pub(crate) const fn new(shard: Shard<Queue>) -> Self {
        Self {
            shard,
            pools: Vec::new(),
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
        self.shard.poll(now, completions)
    }

    fn in_flight(&self) -> usize {
        usize::from(self.shard.is_busy())
    }

    fn next_deadline(&self) -> Option<Instant> {
        let drives = self.pools.iter().flat_map(|pool| &pool.drives);
        drives
            .map(Drive::next_deadline)
            .chain(self.shard.next_deadline())
            .min()
    }

    fn arm(&mut self) {}

    fn disarm(&mut self) {}

    fn interrupt_fds(&self) -> Vec<RawFd> {
        // The core never sleeps while a command is in flight, so that no completion has to wake
        // it.
        Vec::new()
    }
}
