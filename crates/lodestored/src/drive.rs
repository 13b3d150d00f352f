//! From a device's name in the configuration to a controller that serves: opened and brought up
//! away from the core, which takes it over afterwards.

mod figures;

use std::sync::Arc;

use lode_api::v1::{DeviceHealth, DeviceState};
use lode_bus::{DmaMemory, IovaSpace};
use lode_nvme::{
    Controller, ControllerEvent, ControllerOptions, ControllerState, NamespaceQueue, QueueOptions,
};
use lode_nvme_emu::{EmulatedController, EmulatorError, EmulatorSpec};
use lode_nvme_spec::log_page::HealthLog;
use lode_server::{DeviceDetails, PoolManagerError};
use lode_units::{Instant, MonotonicClock};

use crate::registry::Registry;

pub(crate) use figures::{Devices, DevicesSource};
use figures::{Figures, saturated};

/// The queue of one device on the core.
pub(crate) type Queue = NamespaceQueue<EmulatedController>;

/// A controller in use, as the core that polls it sees it.
#[derive(Debug)]
pub(crate) struct Drive {
    name: String,
    controller: Controller<EmulatedController>,
    /// When the controller itself wants to be polled, beside its queue.
    due: Instant,
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
        let spec: EmulatorSpec =
            name.parse()
                .map_err(|error: EmulatorError| PoolManagerError::InvalidDevice {
                    device: name.to_owned(),
                    message: error.to_string(),
                })?;
        let emulated = EmulatedController::open(&spec).map_err(|error| refused(name, &error))?;
        let failed = |message: String| PoolManagerError::DeviceFailed {
            device: name.to_owned(),
            message,
        };
        let mut controller = Controller::new(emulated, ControllerOptions::default(), &self.space)
            .map_err(|error| failed(chain(&error)))?;
        self.bring_up(&mut controller)
            .map_err(|error| failed(chain(&error)))
            .and_then(|queue| {
                let queue = queue.ok_or_else(|| failed("it has no usable namespace".to_owned()))?;
                self.registry.show(name, details(&controller));
                let figures = Arc::new(Figures::new(name));
                self.registry.devices().show(Arc::clone(&figures));
                let drive = Drive {
                    name: name.to_owned(),
                    controller,
                    due: Instant::ZERO,
                    registry: Arc::clone(&self.registry),
                    figures,
                    uuid: String::new(),
                };
                Ok(Opened {
                    name: name.to_owned(),
                    drive,
                    queue,
                })
            })
    }

    fn bring_up(
        &self,
        controller: &mut Controller<EmulatedController>,
    ) -> Result<Option<Queue>, lode_nvme::NvmeError> {
        controller.bring_up(&self.clock)?;
        for memory in self.memories.iter() {
            controller.map_memory(memory)?;
        }
        let Some(namespace) = controller
            .namespaces()
            .first()
            .map(|namespace| namespace.id)
        else {
            return Ok(None);
        };
        let queue = controller.open_queue(namespace, QueueOptions::default(), &self.space)?;
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

    /// Tells the device that it will be used no more, so that it keeps what it has cached.
    /// Blocks, for the shutdown's deadline at most; its queue must be idle.
    pub(crate) fn shut_down(mut self, clock: &MonotonicClock) {
        if let Err(error) = self.controller.shut_down(clock) {
            tracing::warn!(device = self.name, error = chain(&error), "shutdown failed");
        }
        self.registry.hide(&self.name);
        self.registry.devices().hide(&self.figures);
    }

    fn note(&self, event: &ControllerEvent) {
        match event {
            ControllerEvent::HealthRead | ControllerEvent::ErrorLogRead => {
                tracing::debug!(device = self.name, ?event, "controller event");
            }
            _ => tracing::warn!(device = self.name, ?event, "controller event"),
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

fn refused(name: &str, error: &EmulatorError) -> PoolManagerError {
    let device = name.to_owned();
    match error {
        EmulatorError::InUse { .. } => PoolManagerError::DeviceInUse { device },
        EmulatorError::Open { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            PoolManagerError::DeviceNotFound { device }
        }
        EmulatorError::Syntax { .. } | EmulatorError::Option { .. } => {
            PoolManagerError::InvalidDevice {
                device,
                message: chain(error),
            }
        }
        _ => PoolManagerError::DeviceFailed {
            device,
            message: chain(error),
        },
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

fn details(controller: &Controller<EmulatedController>) -> DeviceDetails {
    let mut details = DeviceDetails {
        is_emulated: true,
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
