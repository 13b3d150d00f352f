//! Controllers in use. Each is opened and brought up away from the cores; one takes it over and
//! opens a queue on it for each device that a pool names, and one more for every other core:
//! several namespaces of one controller may belong to one pool or to several. The last device that
//! goes takes its controller with it.

mod details;
mod figures;
mod interrupt;
mod open;

use std::sync::Arc;
use std::time::Duration;

use lode_api::v1::DeviceState;
use lode_nvme::{Controller, ControllerEvent, NamespaceQueue, NvmeError, QueueOptions};
use lode_server::{DeviceDetails, PoolManagerError};
use lode_units::{CoreId, Instant, MonotonicClock, NamespaceId};

use crate::any_bus::AnyBus;
use crate::registry::Registry;

pub(crate) use figures::QueueFigures;
use figures::{ControllerFigures, QueuePairs};
pub(crate) use figures::{Devices, DevicesSource, PairFigures};
pub(crate) use interrupt::Interrupt;
pub(crate) use open::Opener;

/// The queue of one device on one core.
pub(crate) type Queue = NamespaceQueue<AnyBus>;

/// A controller in use, as the core that polls it sees it.
#[derive(Debug)]
pub(crate) struct Drive {
    /// What names of its devices have in common.
    name: String,
    controller: Controller<AnyBus>,
    /// When the controller itself wants to be polled, beside its queues.
    due: Instant,
    site: Site,
    removal: Removal,
    registry: Arc<Registry>,
    figures: Arc<ControllerFigures>,
    /// The devices that are open on it.
    users: Vec<User>,
}

/// Where a controller lives.
#[derive(Debug)]
struct Site {
    core: CoreId,
    /// What wakes that core. The queues of other cores have no interrupt.
    interrupt: Interrupt,
}

/// A device that is open on a controller.
#[derive(Debug)]
struct User {
    device: String,
    namespace: NamespaceId,
    /// What its pool calls it; empty before that is known.
    uuid: String,
    figures: Arc<QueueFigures>,
    /// The queues of other cores.
    more: Vec<Arc<QueueFigures>>,
}

/// A namespace of a controller in use, with a queue of its own. Its figures are what tells it from
/// every other one: two devices in memory may have the same name.
#[derive(Debug)]
pub(crate) struct Device {
    /// Its name, as in the configuration.
    pub(crate) name: String,
    pub(crate) queue: Queue,
    pub(crate) figures: Arc<QueueFigures>,
}

impl Drive {
    /// A controller that has been brought up; no device is open on it yet.
    fn new(
        name: String,
        controller: Controller<AnyBus>,
        site: Site,
        registry: Arc<Registry>,
    ) -> Self {
        let figures = Arc::new(ControllerFigures::new(&name, controller.identity()));
        registry.devices().show_controller(Arc::clone(&figures));
        Self {
            name,
            controller,
            due: Instant::ZERO,
            site,
            removal: Removal::NotRequested,
            registry,
            figures,
            users: Vec::new(),
        }
    }

    /// What names of its devices have in common.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Where the device with these figures is among those that are open on it.
    fn position(&self, device: &Arc<QueueFigures>) -> Option<usize> {
        self.users
            .iter()
            .position(|user| Arc::ptr_eq(&user.figures, device))
    }

    /// Whether the device with these figures is open here, with a queue for this core.
    pub(crate) fn is_home_of(&self, device: &Arc<QueueFigures>) -> bool {
        self.position(device).is_some() && device.core() == self.site.core
    }

    /// Opens a device on this controller, with a queue for the core `core`: the namespace that is
    /// `wanted`, or the first one that can be used. Allocates; does not wait: the queue takes
    /// requests at once.
    ///
    /// # Errors
    /// When there is no such namespace, it is open already, or the controller has no queue left.
    pub(crate) fn open(
        &mut self,
        device: &str,
        core: CoreId,
        wanted: Option<NamespaceId>,
        opener: &Opener,
    ) -> Result<Device, PoolManagerError> {
        let failed = |message: String| PoolManagerError::DeviceFailed {
            device: device.to_owned(),
            message,
        };
        let first = || self.controller.namespaces().first().map(|first| first.id);
        let namespace = wanted
            .or_else(first)
            .ok_or_else(|| failed("it has no usable namespace".to_owned()))?;
        if self.users.iter().any(|user| user.namespace == namespace) {
            return Err(PoolManagerError::DeviceInUse {
                device: device.to_owned(),
            });
        }
        let vector = self.site.interrupt.vector();
        let options = QueueOptions {
            interrupt_vector: vector.filter(|_| core == self.site.core),
            ..opener.queue
        };
        let queue = self
            .controller
            .open_queue(namespace, options, &opener.space)
            .map_err(|error: NvmeError| failed(chain(&error)))?;
        let device = self.show(device, core, queue);
        self.users.push(User {
            device: device.name.clone(),
            namespace,
            uuid: String::new(),
            figures: Arc::clone(&device.figures),
            more: Vec::new(),
        });
        self.registry
            .show(&device.name, self.details(namespace, ""));
        Ok(device)
    }

    /// Opens another queue, for the core `core`, on the device with these figures, if it is open
    /// here. Allocates; does not wait.
    pub(crate) fn open_more(
        &mut self,
        device: &Arc<QueueFigures>,
        core: CoreId,
        opener: &Opener,
    ) -> Option<Result<Device, PoolManagerError>> {
        let position = self.position(device)?;
        let user = &self.users[position];
        let (name, namespace) = (user.device.clone(), user.namespace);
        let opened = self
            .controller
            .open_queue(namespace, opener.queue, &opener.space);
        Some(match opened {
            Ok(queue) => {
                let device = self.show(&name, core, queue);
                self.users[position].more.push(Arc::clone(&device.figures));
                Ok(device)
            }
            Err(error) => Err(PoolManagerError::DeviceFailed {
                device: name,
                message: chain(&error),
            }),
        })
    }

    /// Shows the figures of a queue that was opened for the core `core`.
    fn show(&mut self, device: &str, core: CoreId, queue: Queue) -> Device {
        let figures = Arc::new(QueueFigures::new(device, core));
        self.registry.devices().show_queue(Arc::clone(&figures));
        // The controller has a queue to create.
        self.due = Instant::ZERO;
        Device {
            name: device.to_owned(),
            queue,
            figures,
        }
    }

    /// Forgets a queue that has been dropped, and its device with the first of its queues, if it
    /// was open here; says whether a device is left. The queues of other cores go first.
    pub(crate) fn close(&mut self, device: &Arc<QueueFigures>) -> Left {
        if let Some(position) = self.position(device) {
            let user = self.users.swap_remove(position);
            self.registry.hide(&user.device);
        }
        for user in &mut self.users {
            user.more.retain(|figures| !Arc::ptr_eq(figures, device));
        }
        self.registry.devices().hide_queue(device);
        // The controller may have a queue to delete.
        self.due = Instant::ZERO;
        if self.users.is_empty() {
            Left::None
        } else {
            Left::Some
        }
    }

    /// Moves the controller on where it is due. Its queues let a device inside this process work.
    pub(crate) fn poll(&mut self, now: Instant) {
        if now < self.due {
            return;
        }
        self.controller.poll(now);
        self.due = self.controller.next_deadline();
        if !self.controller.bus().is_emulated() {
            self.look_for_removal();
            self.due = self.due.min(now + REMOVAL_INTERVAL);
        }
        while let Some(event) = self.controller.take_event() {
            self.note(&event);
        }
        let queue_pairs = QueuePairs {
            granted: self.controller.queue_pairs_granted().into(),
            used: self.users.iter().map(|user| 1 + user.more.len()).sum(),
        };
        self.figures.set(&self.controller.stats(), queue_pairs);
    }

    /// Takes the UUID by which a pool knows a device, if that is one of this controller's.
    pub(crate) fn take_uuid(&mut self, device: &Arc<QueueFigures>, uuid: &str) {
        let Some(position) = self.position(device) else {
            return;
        };
        let details = self.details(self.users[position].namespace, uuid);
        let user = &mut self.users[position];
        uuid.clone_into(&mut user.uuid);
        self.registry.show(&user.device, details);
    }

    /// When it wants to be polled although nothing was submitted.
    pub(crate) const fn next_deadline(&self) -> Instant {
        self.due
    }

    /// Whether a completion of its queues wakes the core that armed it.
    pub(crate) const fn wakes(&self) -> bool {
        !matches!(self.site.interrupt, Interrupt::None)
    }

    /// Has its queues signal completions. May enter the kernel.
    pub(crate) fn fire_interrupt(&mut self) {
        self.site.interrupt.fire(self.controller.bus());
    }

    /// Has its queues signal nothing. May enter the kernel.
    pub(crate) fn rest_interrupt(&mut self) {
        self.site.interrupt.rest(self.controller.bus());
    }

    /// Tells the device that it will be used no more, so that it keeps what it has cached.
    /// Blocks, for the shutdown's deadline at most; no queue may be open.
    pub(crate) fn shut_down(mut self, clock: &MonotonicClock) {
        if let Err(error) = self.controller.shut_down(clock) {
            tracing::warn!(device = self.name, error = chain(&error), "shutdown failed");
        }
        self.registry.devices().hide_controller(&self.figures);
    }

    /// Tells the registry, once, that the kernel wants the device back.
    fn look_for_removal(&mut self) {
        if self.removal == Removal::Requested || !self.controller.bus().is_removal_requested() {
            return;
        }
        self.removal = Removal::Requested;
        tracing::warn!(device = self.name, "the kernel wants the device back");
        self.registry.request_removal(&self.name);
    }

    fn note(&self, event: &ControllerEvent) {
        match event {
            ControllerEvent::HealthRead | ControllerEvent::ErrorLogRead => {
                tracing::debug!(device = self.name, ?event, "controller event");
            }
            _ => {
                let loss = self.controller.bus().loss();
                tracing::warn!(device = self.name, ?event, loss, "controller event");
            }
        }
        if let Some(log) = self.controller.health() {
            self.figures.set_health(log);
        }
        for user in &self.users {
            let details = self.details(user.namespace, &user.uuid);
            for figures in user.more.iter().chain([&user.figures]) {
                figures.set_attached(self.is_attached(user.namespace));
            }
            self.registry.show(&user.device, details);
        }
    }

    /// Whether the controller listed the namespace when it was asked last.
    fn is_attached(&self, namespace: NamespaceId) -> bool {
        let mut found = self.controller.namespaces().iter();
        found.any(|found| found.id == namespace)
    }

    /// A device whose namespace was detached is gone, whatever becomes of its controller.
    fn details(&self, namespace: NamespaceId, uuid: &str) -> DeviceDetails {
        let mut details = details::of(&self.controller);
        uuid.clone_into(&mut details.uuid);
        if details.state == DeviceState::Online && !self.is_attached(namespace) {
            details.state = DeviceState::Gone;
        }
        details
    }
}

/// Whether devices are open on a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// At least one.
    Some,
    /// None: it can be shut down.
    None,
}

/// Whether the kernel has asked for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    NotRequested,
    Requested,
}

/// An error with all its causes, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// How often a real device is asked whether the kernel wants it back.
const REMOVAL_INTERVAL: Duration = Duration::from_secs(1);
