//! One controller: its life from the first register read to its shutdown or its end.

mod bring_up;
mod drive;
mod events;
mod identity;
mod links;
mod open;
mod recovery;
mod scan;
mod start;
mod state;
mod watch;

use std::fmt;
use std::os::fd::RawFd;
use std::sync::Arc;

use lode_bus::{Bus, BusError, DmaMemory, IovaSpace, PagePreference};
use lode_nvme_spec::log_page::{ErrorEntry, HealthLog};
use lode_nvme_spec::registers::{Capabilities, Configuration};
use lode_units::{Instant, NamespaceId};

use crate::admin::AdminQueue;
use crate::error::{Failure, NvmeError};
use crate::gate::Shared;
use crate::namespace::{Namespace, Refusal};
use crate::options::{ControllerOptions, QueueOptions};
use crate::queue::NamespaceQueue;
use crate::stats::ControllerStats;

pub use events::ControllerEvent;
pub use identity::ControllerIdentity;
pub use state::ControllerState;

use events::EventLog;
use identity::Facts;
use links::LinkEntry;
use recovery::Recovery;
use scan::Scan;
use start::{Purpose, Step};
use watch::Watch;

/// One NVMe controller. Driven by [`Controller::poll`] from the thread that holds it.
///
/// Dropping it disables the controller, hides all memory from it and ends its queues; requests
/// in flight complete with [`lode_block::ErrorKind::Gone`]. [`Controller::shut_down`] first is
/// kinder: the device then writes its caches back.
pub struct Controller<B: Bus> {
    shared: Arc<Shared<B>>,
    registers: B::Registers,
    options: ControllerOptions,
    admin: AdminQueue<Purpose>,
    state: ControllerState,
    state_deadline: Instant,
    /// The status register is not read before this moment.
    status_after: Instant,
    /// Since when registers read as all ones.
    all_ones_since: Option<Instant>,
    configuration: Configuration,
    capabilities: Capabilities,
    facts: Facts,
    scan: Scan,
    /// The step of bring-up or scan that waits for a free admin slot.
    next_step: Option<Step>,
    /// Whether the volatile write cache is to be on, decided at the first start.
    cache_target: Option<bool>,
    aborts_in_flight: usize,
    namespaces: Vec<Namespace>,
    refused: Vec<(NamespaceId, Refusal)>,
    links: Vec<LinkEntry>,
    /// Memory that callers had mapped.
    mapped: Vec<DmaMemory>,
    recovery: Recovery,
    watch: Watch,
    events: EventLog,
    failure: Option<Failure>,
    stats: ControllerStats,
    bus_due: Option<Instant>,
    now: Instant,
}

impl<B: Bus> Controller<B> {
    /// Takes the controller behind `bus`; touches no register yet.
    ///
    /// # Errors
    /// When memory for the admin queue cannot be allocated or mapped.
    pub fn new(bus: B, options: ControllerOptions, space: &IovaSpace) -> Result<Self, NvmeError> {
        let memory = space.allocate(
            AdminQueue::<Purpose>::MEMORY_BYTES,
            PagePreference::Ordinary,
        )?;
        bus.map(&memory)?;
        let registers = bus.registers();
        Ok(Self {
            shared: Arc::new(Shared::new(bus)),
            registers,
            watch: Watch::new(&options),
            options,
            admin: AdminQueue::new(memory),
            state: ControllerState::Created,
            state_deadline: Instant::FAR_FUTURE,
            status_after: Instant::ZERO,
            all_ones_since: None,
            configuration: Configuration::default(),
            capabilities: Capabilities::default(),
            facts: Facts::default(),
            scan: Scan::default(),
            next_step: None,
            cache_target: None,
            aborts_in_flight: 0,
            namespaces: Vec::new(),
            refused: Vec::new(),
            links: Vec::new(),
            mapped: Vec::new(),
            recovery: Recovery::default(),
            events: EventLog::new(),
            failure: None,
            stats: ControllerStats::default(),
            bus_due: None,
            now: Instant::ZERO,
        })
    }

    /// Moves the controller on: bring-up, admin completions, events, health, aborts, resets,
    /// shutdown. Does not block, except that a reset of the whole function, the last resort,
    /// may take some hundred milliseconds. Allocates only while namespaces are identified.
    pub fn poll(&mut self, now: Instant) -> ControllerState {
        self.now = self.now.max(now);
        self.bus_due = self.shared.bus.advance(self.now);
        match self.state {
            ControllerState::Created => self.begin(),
            ControllerState::Probing => self.probe(),
            ControllerState::Disabling => self.await_disabled(),
            ControllerState::Enabling => self.await_enabled(),
            ControllerState::Starting => self.run(),
            ControllerState::Ready => {
                self.run();
                if self.state == ControllerState::Ready {
                    self.serve();
                }
            }
            ControllerState::ShuttingDown => self.await_shutdown(),
            ControllerState::Stopping => self.await_stopped(),
            ControllerState::Stopped | ControllerState::Gone => {}
        }
        self.state
    }

    /// The moment at which [`Controller::poll`] has something to do, at the latest.
    pub fn next_deadline(&self) -> Instant {
        let own = match self.state {
            ControllerState::Stopped | ControllerState::Gone => return Instant::FAR_FUTURE,
            ControllerState::Ready if self.is_busy() => self.now + BUSY_POLL_INTERVAL,
            ControllerState::Ready if self.awaits_queues() => {
                self.watch.next_due().min(self.now + FOLLOW_POLL_INTERVAL)
            }
            ControllerState::Ready => self.watch.next_due(),
            _ => self.now + BUSY_POLL_INTERVAL,
        };
        self.bus_due.map_or(own, |due| due.min(own))
    }

    /// Opens a queue pair for `namespace`. The queue takes requests at once; the controller
    /// sees them after its next polls have created the pair. Allocates and maps memory.
    ///
    /// # Errors
    /// When the controller is not ready, the namespace cannot be used, every queue pair is in
    /// use, or memory or the interrupt vector is refused.
    pub fn open_queue(
        &mut self,
        namespace: NamespaceId,
        options: QueueOptions,
        space: &IovaSpace,
    ) -> Result<NamespaceQueue<B>, NvmeError> {
        self.open_link(namespace, options, space)
    }

    /// Makes `memory` visible to the controller, for data of requests.
    ///
    /// # Errors
    /// When the bus refuses or the controller has ended.
    pub fn map_memory(&mut self, memory: &DmaMemory) -> Result<(), NvmeError> {
        self.check_alive()?;
        self.shared.bus.map(memory)?;
        self.mapped.push(memory.clone());
        Ok(())
    }

    /// Hides `memory` from the controller; no request in flight may name it.
    ///
    /// # Errors
    /// When the bus refuses.
    pub fn unmap_memory(&mut self, memory: &DmaMemory) -> Result<(), NvmeError> {
        self.mapped.retain(|held| held.iova() != memory.iova());
        Ok(self.shared.bus.unmap(memory)?)
    }

    /// Enables interrupt `vector` and returns the descriptor that becomes readable when it
    /// fires.
    ///
    /// # Errors
    /// When there is no such vector or the device is gone.
    pub fn enable_interrupt(&self, vector: u16) -> Result<RawFd, NvmeError> {
        Ok(self.shared.bus.enable_interrupt(vector)?)
    }

    /// The bus below.
    #[must_use]
    pub fn bus(&self) -> &B {
        &self.shared.bus
    }

    /// Where it stands.
    #[must_use]
    pub const fn state(&self) -> ControllerState {
        self.state
    }

    /// Why it is gone, when it is.
    #[must_use]
    pub const fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// The namespaces that can be used, in order of their identifiers.
    #[must_use]
    pub fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// The namespaces that cannot be used, and why.
    #[must_use]
    pub fn refused_namespaces(&self) -> &[(NamespaceId, Refusal)] {
        &self.refused
    }

    /// What the controller says of itself; `None` before it was identified.
    #[must_use]
    pub const fn identity(&self) -> Option<&ControllerIdentity> {
        self.facts.identity.as_ref()
    }

    /// How many I/O queue pairs the controller granted; may be fewer than were asked for.
    #[must_use]
    pub const fn queue_pairs_granted(&self) -> u16 {
        self.facts.queue_pairs
    }

    /// The newest health log, once one was read.
    #[must_use]
    pub const fn health(&self) -> Option<&HealthLog> {
        self.watch.health()
    }

    /// The newest error log, newest entry first; empty before it was read.
    #[must_use]
    pub fn error_log(&self) -> &[ErrorEntry] {
        self.watch.error_log()
    }

    /// Has the health log read soon.
    pub const fn request_health(&mut self) {
        self.watch.want_health();
    }

    /// Has the error log read soon.
    pub const fn request_error_log(&mut self) {
        self.watch.want_error_log();
    }

    /// Has the namespaces identified anew; a [`ControllerEvent::NamespacesChanged`] follows.
    pub const fn request_scan(&mut self) {
        self.watch.want_scan();
    }

    /// Takes the oldest event that was not taken yet.
    pub fn take_event(&mut self) -> Option<ControllerEvent> {
        self.events.take()
    }

    /// What it has gone through.
    #[must_use]
    pub const fn stats(&self) -> ControllerStats {
        self.stats
    }

    fn check_alive(&self) -> Result<(), NvmeError> {
        match (self.state, self.failure) {
            (_, Some(failure)) => Err(failure.into()),
            (ControllerState::Stopped, None) => Err(NvmeError::NotReady),
            _ => Ok(()),
        }
    }

    /// Hides everything from the device: what it still wants to write goes nowhere.
    fn hide_memory(&mut self) {
        let links = std::mem::take(&mut self.links);
        let mapped = std::mem::take(&mut self.mapped);
        let memories = links
            .iter()
            .map(|entry| &entry.link.memory)
            .chain(&mapped)
            .chain([self.admin.memory()]);
        for memory in memories {
            match self.shared.bus.unmap(memory) {
                Ok(()) | Err(BusError::Gone) => {}
                Err(_) => self.stats.unmap_failures += 1,
            }
        }
    }
}

impl<B: Bus> Drop for Controller<B> {
    fn drop(&mut self) {
        if !self.state.is_end() {
            self.fail(Failure::Abandoned);
        }
    }
}

impl<B: Bus> fmt::Debug for Controller<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Controller")
            .field("bus", &self.shared.bus.name())
            .field("state", &self.state)
            .field("failure", &self.failure)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

/// The base-two logarithm of the largest memory page that the driver lays out.
pub(crate) const PAGE_SHIFT_MAX: u32 = 16;

/// How soon a controller that waits for something wants to be polled again.
const BUSY_POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(1);

/// How soon a controller wants to be polled whose queues have not followed a reset yet.
const FOLLOW_POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(10);
