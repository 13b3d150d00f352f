//! From a device's name in the configuration to a controller that works.

use std::sync::Arc;

use lode_bus::{DmaMemory, IovaSpace};
use lode_nvme::{Controller, ControllerOptions, NvmeError, QueueOptions};
use lode_reactor::Signal;
use lode_server::PoolManagerError;
use lode_units::{CoreId, MonotonicClock};

use super::{Device, Drive, Interrupt, Site, chain};
use crate::any_bus::AnyBus;
use crate::device_name::DeviceSpec;
use crate::registry::Registry;

/// What opening a device needs.
#[derive(Clone, Debug)]
pub(crate) struct Opener {
    /// Addresses for the rings.
    pub(crate) space: Arc<IovaSpace>,
    /// The memory that requests will use.
    pub(crate) memories: Arc<[DmaMemory]>,
    pub(crate) clock: MonotonicClock,
    pub(crate) registry: Arc<Registry>,
    /// Whether controllers wake their cores; not where cores only poll.
    pub(crate) uses_interrupts: bool,
    /// How controllers are driven.
    pub(crate) controller: ControllerOptions,
    /// How their queues are made, apart from the interrupt.
    pub(crate) queue: QueueOptions,
}

impl Opener {
    /// Opens and brings up the controller of the device called `name`, which is to live on the core
    /// `core` with this signal, and the device on it with a queue for that core. Blocks, for the
    /// deadlines of bring-up at most.
    ///
    /// # Errors
    /// Why it cannot be used. The controller is shut down again.
    pub(crate) fn open(
        &self,
        name: &str,
        core: CoreId,
        signal: &Arc<Signal>,
        spec: &DeviceSpec,
    ) -> Result<(Drive, Device), PoolManagerError> {
        let bus = spec.open(name, self.clock)?;
        let failed = |error: NvmeError| PoolManagerError::DeviceFailed {
            device: name.to_owned(),
            message: chain(&error),
        };
        let mut controller =
            Controller::new(bus, self.controller.clone(), &self.space).map_err(failed)?;
        let signal = Some(signal).filter(|_| self.uses_interrupts);
        let interrupt = Interrupt::prepare(controller.bus(), signal);
        self.bring_up(&mut controller).map_err(failed)?;
        let site = Site { core, interrupt };
        let common = DeviceSpec::controller(name).unwrap_or_else(|| name.to_owned());
        let mut drive = Drive::new(common, controller, site, Arc::clone(&self.registry));
        match self.open_first(&mut drive, name, core, spec) {
            Ok(device) => Ok((drive, device)),
            Err(error) => {
                drive.shut_down(&self.clock);
                Err(error)
            }
        }
    }

    /// Opens the first device of a controller and waits until its queue is created.
    fn open_first(
        &self,
        drive: &mut Drive,
        name: &str,
        core: CoreId,
        spec: &DeviceSpec,
    ) -> Result<Device, PoolManagerError> {
        let device = drive.open(name, core, spec.namespace(), self)?;
        if let Err(error) = drive.controller.settle(&self.clock) {
            drive.close(&device.figures);
            return Err(PoolManagerError::DeviceFailed {
                device: device.name,
                message: chain(&error),
            });
        }
        Ok(device)
    }

    fn bring_up(&self, controller: &mut Controller<AnyBus>) -> Result<(), NvmeError> {
        controller.bring_up(&self.clock)?;
        for memory in self.memories.iter() {
            controller.map_memory(memory)?;
        }
        Ok(())
    }
}
