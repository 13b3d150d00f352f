//! What a person is told of a controller.

use lode_api::v1::{DeviceHealth, DeviceState};
use lode_nvme::{Controller, ControllerState};
use lode_nvme_spec::log_page::HealthLog;
use lode_server::DeviceDetails;

use super::figures::saturated;
use crate::any_bus::AnyBus;

/// What is known of `controller` itself.
pub(super) fn of(controller: &Controller<AnyBus>) -> DeviceDetails {
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
