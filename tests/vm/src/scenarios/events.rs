//! Asynchronous events of a controller.

use anyhow::{Context, Result, ensure};
use lode_nvme::{ControllerEvent, ControllerOptions};
use lode_nvme_spec::EventType;

use super::shadow;
use crate::host;
use crate::rig::{Rig, bind};

/// A SMART warning raises an event, the health log is read, and it names the warning.
pub(super) fn smart_warning() -> Result<String> {
    bind(shadow()?)?;
    let options = ControllerOptions {
        health_interval: None,
        ..ControllerOptions::default()
    };
    let mut rig = Rig::open(shadow()?, options)?;
    host::monitor_quietly("qom-set /machine/peripheral/shadow smart_critical_warning 4")?;
    let event = rig.event("health event", |event| {
        matches!(event, ControllerEvent::Async(event)
            if matches!(event.event, EventType::Health(_)))
    })?;
    rig.until("health log", |rig| Ok(rig.controller.health().is_some()))?;
    let health = rig.controller.health().context("a log")?;
    let warning = health.critical_warning;
    ensure!(warning == RELIABILITY, "critical warning {warning:#x}");
    let counted = rig.controller.stats().health_events;
    ensure!(counted >= 1, "{:?}", rig.controller.stats());
    host::monitor_quietly("qom-set /machine/peripheral/shadow smart_critical_warning 0")?;
    rig.close()?;
    Ok(format!(
        "{event:?}; critical warning {warning:#x} in the health log"
    ))
}

/// Bit 2: reliability is degraded (Base 2.0 figure 207).
const RELIABILITY: u8 = 1 << 2;
