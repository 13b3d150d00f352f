//! Asynchronous events, health and error logs.

use std::time::Duration;

use lode_block::Operation;
use lode_nvme::{ControllerEvent, ControllerState};
use lode_nvme_emu::{Media, NamespaceOptions};
use lode_nvme_spec::log_page::CriticalWarning;
use lode_nvme_spec::{AsyncEvent, EventType};
use lode_units::{BlockSize, NamespaceId};

use crate::rig::{FIRST, Rig, RigSpec, transfer};

fn events(rig: &mut Rig) -> Vec<ControllerEvent> {
    std::iter::from_fn(|| rig.controller.take_event()).collect()
}

#[test]
fn a_health_warning_is_told_each_time_and_its_log_is_read() {
    let mut rig = Rig::new().ready();
    for (round, warning) in [CriticalWarning::SPARE, CriticalWarning::RELIABILITY]
        .into_iter()
        .enumerate()
    {
        rig.emulator.set_critical_warnings(warning);
        rig.run_for(Duration::from_millis(50));
        let told = events(&mut rig);
        let is_health = |event: &ControllerEvent| {
            let ControllerEvent::Async(AsyncEvent { event, .. }) = event else {
                return false;
            };
            matches!(event, EventType::Health(_))
        };
        assert!(told.iter().any(is_health), "round {round}: {told:?}");
        assert!(told.contains(&ControllerEvent::HealthRead), "round {round}");
        let health = rig.controller.health().expect("read");
        assert_eq!(health.warnings(), warning);
        rig.emulator.set_critical_warnings(CriticalWarning::empty());
        rig.run_for(Duration::from_millis(50));
        events(&mut rig);
    }
    assert_eq!(rig.controller.stats().health_events, 2);
}

#[test]
fn namespaces_that_come_and_go_are_noticed() {
    let mut rig = Rig::new().ready();
    let media = Media::memory(1 << 20).expect("memory");
    let added = rig
        .emulator
        .add_namespace(NamespaceOptions::new(BlockSize::B4096, media))
        .expect("room");
    rig.until(|rig| rig.controller.namespaces().len() == 2);
    assert_eq!(rig.controller.namespaces()[1].id, added);
    assert!(events(&mut rig).contains(&ControllerEvent::NamespacesChanged));
    assert!(rig.emulator.remove_namespace(FIRST));
    rig.until(|rig| rig.controller.namespaces().len() == 1);
    assert_eq!(rig.controller.namespaces()[0].id, NamespaceId::new(2));
    assert_eq!(rig.controller.stats().notice_events, 2);
}

#[test]
fn health_is_read_when_its_time_comes() {
    let mut spec = RigSpec::default();
    spec.driver.health_interval = Some(Duration::from_secs(60));
    let mut rig = spec.build().ready();
    rig.run_for(Duration::from_millis(20));
    assert!(rig.controller.health().is_some());
    events(&mut rig);
    rig.run_for(Duration::from_secs(121));
    let reads = events(&mut rig)
        .iter()
        .filter(|event| **event == ControllerEvent::HealthRead)
        .count();
    assert_eq!(reads, 2);
}

#[test]
fn the_error_log_names_what_failed() {
    let mut rig = Rig::new().ready();
    rig.fault("opcode=read lba=5..6 -> status=0x281");
    let mut queue = rig.open();
    let data = rig.span(0, 512);
    rig.run(&mut queue, transfer(Operation::Read, 1, 5, 1, data));
    rig.controller.request_error_log();
    rig.run_for(Duration::from_millis(20));
    assert!(events(&mut rig).contains(&ControllerEvent::ErrorLogRead));
    let newest = rig.controller.error_log().first().expect("an entry");
    assert_eq!(newest.status().code_bits(), 0x281);
    assert_eq!(newest.submission_queue_id.get(), 1);
}

#[test]
fn event_requests_are_sent_again_after_a_reset() {
    let mut rig = Rig::new().ready();
    rig.run_for(Duration::from_millis(20));
    rig.emulator.apply(lode_nvme_emu::DeviceFault::FatalStatus);
    rig.until(|rig| rig.controller.stats().resets_completed == 1);
    rig.until_state(ControllerState::Ready);
    rig.run_for(Duration::from_millis(20));
    rig.emulator.set_critical_warnings(CriticalWarning::SPARE);
    rig.run_for(Duration::from_millis(50));
    assert_eq!(rig.controller.stats().health_events, 1);
}
