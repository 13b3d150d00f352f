//! From a device's name in the configuration to a controller that serves: opened and brought up
//! away from the core, which takes it over afterwards.

mod figures;
mod interrupt;

use std::sync::Arc;
use std::time::Duration;

use lode_api::v1::{DeviceHealth, DeviceState};
use lode_bus::{DmaMemory, IovaSpace};
use lode_nvme::{
    Controller, ControllerEvent, ControllerOptions, ControllerState, NamespaceQueue, QueueOptions,
};
use lode_nvme_spec::log_page::HealthLog;
use lode_reactor::Signal;
use lode_server::{DeviceDetails, PoolManagerError};
use lode_units::{Instant, MonotonicClock, NamespaceId};

use crate::any_bus::AnyBus;
use crate::device_name::DeviceSpec;
use crate::registry::Registry;

pub(crate) use figures::{Devices, DevicesSource};
use figures::{Figures, saturated};
pub(crate) use interrupt::Interrupt;

/// The queue of one device on the core.
pub(crate) type Queue = NamespaceQueue<AnyBus>;

/// A controller in use, as the core that polls it sees it.
#[derive(Debug)]
pub(crate) struct Drive {
    name: String,
    controller: Controller<AnyBus>,
    /// When the controller itself wants to be polled, beside its queue.
    due: Instant,
    interrupt: Interrupt,
    removal: Removal,
    registry: Arc<Registry>,
    figures: Arc<Figures>,
    /// What its pool calls it; empty before that is known.
    uuid: String,
}

/// What opening a drive needs.
#[derive(Clone, Debug)]
pub(crate) struct Opener {
    /// Addresses for the rings.
    pub(crate) space: Arc<IovaSpace>,
    /// The memory that requests will use.
    pub(crate) memories: Arc<[DmaMemory]>,
    pub(crate) clock: MonotonicClock,
    pub(crate) registry: Arc<Registry>,
    /// Where interrupts go; `None` for a core that only polls.
    pub(crate) signal: Option<Arc<Signal>>,
    /// How controllers are driven.
    pub(crate) controller: ControllerOptions,
    /// How their queues are made, apart from the interrupt.
    pub(crate) queue: QueueOptions,
}

/// A drive that serves.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) name: String,
    pub(crate) drive: Drive,
    pub(crate) queue: Queue,
}

impl Opener {
    /// Opens and brings up the device of this name. Blocks, for the deadlines of bring-up at
    /// most.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(crate) fn open(&self, name: &str) -> Result<Opened, PoolManagerError> {
        let spec: DeviceSpec = name
            .parse()
            .map_err(|message| PoolManagerError::InvalidDevice {
                device: name.to_owned(),
                message,
            })?;
        let bus = spec.open(name, self.clock)?;
        let failed = |message: String| PoolManagerError::DeviceFailed {
            device: name.to_owned(),
            message,
        };
        let mut controller = Controller::new(bus, self.controller.clone(), &self.space)
            .map_err(|error| failed(chain(&error)))?;
        let interrupt = Interrupt::prepare(controller.bus(), self.signal.as_ref());
        let queue = self
            .bring_up(&mut controller, spec.namespace(), interrupt.vector())
            .map_err(|error| failed(chain(&error)))?
            .ok_or_else(|| failed(no_namespace(spec.namespace())))?;
        self.registry.show(name, details(&controller));
        let figures = Arc::new(Figures::new(name));
        self.registry.devices().show(Arc::clone(&figures));
        let drive = Drive {
            name: name.to_owned(),
            controller,
            due: Instant::ZERO,
            interrupt,
            removal: Removal::NotRequested,
            registry: Arc::clone(&self.registry),
            figures,
            uuid: String::new(),
        };
        Ok(Opened {
            name: name.to_owned(),
            drive,
            queue,
        })
    }

    fn bring_up(
        &self,
        controller: &mut Controller<AnyBus>,
        wanted: Option<NamespaceId>,
        interrupt_vector: Option<u16>,
    ) -> Result<Option<Queue>, lode_nvme::NvmeError> {
        controller.bring_up(&self.clock)?;
        for memory in self.memories.iter() {
            controller.map_memory(memory)?;
        }
        let Some(namespace) = controller
            .namespaces()
            .iter()
            .map(|namespace| namespace.id)
            .find(|id| wanted.is_none_or(|wanted| wanted == *id))
        else {
            return Ok(None);
        };
        let options = QueueOptions {
            interrupt_vector,
            ..self.queue
        };
        let queue = controller.open_queue(namespace, options, &self.space)?;
        controller.settle(&self.clock)?;
        Ok(Some(queue))
    }
}

impl Drive {
    /// The device's name, as in the configuration.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Moves the controller on where it is due. Its queue lets a device inside this process work.
    pub(crate) fn poll(&mut self, now: Instant) -> Due {
        if now < self.due {
            return Due::Not;
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
        Due::Now
    }

    /// Takes the UUID by which its pool knows it.
    pub(crate) fn take_uuid(&mut self, uuid: String) {
        self.uuid = uuid;
        self.registry.show(&self.name, self.details());
    }

    /// Shows what the device's queue and controller have counted.
    pub(crate) fn publish(&self, queue: &Queue) {
        self.figures.set(&queue.stats(), &self.controller.stats());
    }

    /// When it wants to be polled although nothing was submitted.
    pub(crate) const fn next_deadline(&self) -> Instant {
        self.due
    }

    /// Whether a completion of its queue wakes the core that armed it.
    pub(crate) const fn wakes(&self) -> bool {
        !matches!(self.interrupt, Interrupt::None)
    }

    /// Has its queue signal completions. May enter the kernel.
    pub(crate) fn fire_interrupt(&mut self) {
        self.interrupt.fire(self.controller.bus());
    }

    /// Has its queue signal nothing. May enter the kernel.
    pub(crate) fn rest_interrupt(&mut self) {
        self.interrupt.rest(self.controller.bus());
    }

    /// Tells the device that it will be used no more, so that it keeps what it has cached.
    /// Blocks, for the shutdown's deadline at most; its queue must be idle.
    pub(crate) fn shut_down(mut self, clock: &MonotonicClock) {
        if let Err(error) = self.controller.shut_down(clock) {
            tracing::warn!(device = self.name, error = chain(&error), "shutdown failed");
        }
        self.registry.hide(&self.name);
        self.registry.devices().hide(&self.figures);
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
        self.registry.show(&self.name, self.details());
    }

    fn details(&self) -> DeviceDetails {
        DeviceDetails {
            uuid: self.uuid.clone(),
            ..details(&self.controller)
        }
    }
}

/// Whether the controller itself was polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// It was.
    Now,
    /// It had nothing to do.
    Not,
}

/// Whether the kernel has asked for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    NotRequested,
    Requested,
}

fn no_namespace(wanted: Option<NamespaceId>) -> String {
    match wanted {
        Some(id) => format!("it has no usable namespace {}", id.get()),
        None => "it has no usable namespace".to_owned(),
    }
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

fn details(controller: &Controller<AnyBus>) -> DeviceDetails {
    let mut details = DeviceDetails {
        is_emulated: controller.bus().is_emulated(),
        state: state_of(controller.state()),
        health: controller.health().map(health_of),
        ..DeviceDetails::default()
    };
    if let Some(identity) = controller.identity() {
        details.model.clone_from(&identity.model_number);
        details.serial.clone_from(&identity.serial_number);
        details.firmware.clone_from(&identity.firmware_revision);
    }
    details
}

const fn state_of(state: ControllerState) -> DeviceState {
    match state {
        ControllerState::Ready => DeviceState::Online,
        ControllerState::Stopped | ControllerState::Gone => DeviceState::Gone,
        _ => DeviceState::Resetting,
    }
}

fn health_of(log: &HealthLog) -> DeviceHealth {
    let kelvin = i32::from(log.temperature_kelvin.get());
    DeviceHealth {
        critical_warning: u32::from(log.critical_warning),
        temperature_celsius: (kelvin > 0).then_some(kelvin - 273),
        available_spare_percent: u32::from(log.available_spare_percent),
        percentage_used: u32::from(log.used_percent),
        media_error_count: saturated(log.media_errors.get()),
        unsafe_shutdown_count: saturated(log.unsafe_shutdowns.get()),
        power_on_hours: saturated(log.power_on_hours.get()),
    }
}

/// How often a real device is asked whether the kernel wants it back.
const REMOVAL_INTERVAL: Duration = Duration::from_secs(1);
