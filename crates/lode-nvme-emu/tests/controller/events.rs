//! Asynchronous events: what is told, when, and how often.

use lode_bus::{Bus, Registers};
use lode_nvme_emu::{Media, NamespaceOptions};
use lode_nvme_spec::command::{Abort, GetLogPage, SetFeatures, flush};
use lode_nvme_spec::feature::{EventMask, FeatureId};
use lode_nvme_spec::log_page::{CriticalWarning, LogPageId};
use lode_nvme_spec::registers::{completion_doorbell, submission_doorbell};
use lode_nvme_spec::{
    AdminOpcode, AsyncEvent, ErrorEvent, EventType, GenericStatus, HealthEvent, NoticeEvent,
    SpecificStatus, Status, SubmissionEntry,
};
use lode_units::{BlockSize, NamespaceId, QueueId};

use crate::host::{Host, NSID};

fn event_request() -> SubmissionEntry {
    SubmissionEntry::new(AdminOpcode::AsyncEventRequest.raw())
}

fn enable_events(host: &mut Host) {
    let set = SetFeatures {
        feature: FeatureId::AsyncEventConfiguration,
        is_saved: false,
        value: EventMask::all().bits(),
    };
    host.admin_ok(set.encode());
}

fn read_log(host: &mut Host, page: LogPageId, length_bytes: u32) -> Vec<u8> {
    let command = GetLogPage {
        page,
        namespace: NamespaceId::new(u32::MAX),
        retains_event: false,
        length_bytes,
        offset_bytes: 0,
    };
    let buffer = host.allocate(4096);
    let entry = command.encode().with_data(host.pages(&buffer, 0, 4096));
    host.admin_ok(entry);
    let mut bytes = Vec::new();
    buffer.append_to(0, usize::try_from(length_bytes).expect("small"), &mut bytes);
    bytes
}

fn next_event(host: &mut Host) -> Option<AsyncEvent> {
    let completion = host.admin_next()?;
    assert_eq!(completion.status(), Status::SUCCESS);
    Some(AsyncEvent::from_dword(completion.dword_0.get()))
}

#[test]
fn a_health_warning_is_told_once_until_its_log_page_is_read() {
    let mut host = Host::ready();
    enable_events(&mut host);
    host.admin_submit(event_request());
    host.admin_submit(event_request());
    assert_eq!(next_event(&mut host), None);
    host.controller
        .set_critical_warnings(CriticalWarning::SPARE);
    let event = next_event(&mut host).expect("an event");
    assert_eq!(event.event, EventType::Health(HealthEvent::Spare));
    host.controller
        .set_critical_warnings(CriticalWarning::SPARE | CriticalWarning::RELIABILITY);
    assert_eq!(
        next_event(&mut host),
        None,
        "held back until the page is read"
    );
    let page = read_log(&mut host, LogPageId::Health, 512);
    assert_eq!(page[0], 0b101);
    let event = next_event(&mut host).expect("the second event");
    assert_eq!(event.event, EventType::Health(HealthEvent::Reliability));
}

#[test]
fn a_temperature_beyond_its_threshold_is_told() {
    let mut host = Host::ready();
    enable_events(&mut host);
    host.admin_submit(event_request());
    host.controller.set_temperature_kelvin(320);
    assert_eq!(next_event(&mut host), None);
    host.controller.set_temperature_kelvin(400);
    let event = next_event(&mut host).expect("an event");
    assert_eq!(event.event, EventType::Health(HealthEvent::Temperature));
    let page = read_log(&mut host, LogPageId::Health, 512);
    assert_eq!(u16::from_le_bytes([page[1], page[2]]), 400);
}

#[test]
fn namespaces_that_come_and_go_are_told_and_listed() {
    let mut host = Host::ready();
    enable_events(&mut host);
    host.admin_submit(event_request());
    let media = Media::memory(1 << 20).expect("memory");
    let added = host
        .controller
        .add_namespace(NamespaceOptions::new(BlockSize::B4096, media))
        .expect("room");
    assert_eq!(added, NamespaceId::new(2));
    let event = next_event(&mut host).expect("an event");
    assert_eq!(
        event.event,
        EventType::Notice(NoticeEvent::NamespaceAttributes)
    );
    assert_eq!(event.log_page, LogPageId::ChangedNamespaces.raw());
    assert_eq!(
        read_log(&mut host, LogPageId::ChangedNamespaces, 8),
        [2, 0, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(read_log(&mut host, LogPageId::ChangedNamespaces, 8), [0; 8]);
    let mut pair = host.create_pair(1, 8);
    host.run_ok(&mut pair, flush(added));
    assert!(host.controller.remove_namespace(added));
    assert!(!host.controller.remove_namespace(added));
    let status = host.run(&mut pair, flush(added)).status();
    assert_eq!(
        status.code_bits(),
        Status::from(GenericStatus::InvalidField).raw()
    );
}

#[test]
fn doorbells_that_cannot_be_are_told_as_error_events() {
    let mut host = Host::ready();
    let mut pair = host.create_pair(1, 8);
    host.admin_submit(event_request());
    let registers = host.controller.registers();
    registers.write_u32(submission_doorbell(pair.id, 0), 8);
    let event = next_event(&mut host).expect("an event");
    assert_eq!(
        event.event,
        EventType::Error(ErrorEvent::InvalidDoorbellValue)
    );
    read_log(&mut host, LogPageId::ErrorInformation, 64);
    host.admin_submit(event_request());
    registers.write_u32(completion_doorbell(QueueId::new(9), 0), 1);
    let event = next_event(&mut host).expect("an event");
    assert_eq!(event.event, EventType::Error(ErrorEvent::InvalidDoorbell));
    host.run_ok(&mut pair, flush(NSID));
}

#[test]
fn event_requests_are_bounded_and_can_be_aborted() {
    let mut host = Host::ready();
    let ids: Vec<_> = (0..4).map(|_| host.admin_submit(event_request())).collect();
    assert_eq!(next_event(&mut host), None);
    let status = host.admin(event_request()).status();
    let expected = Status::from(SpecificStatus::AsyncEventLimitExceeded);
    assert_eq!(status.code_bits(), expected.raw());
    let abort = Abort {
        queue: QueueId::new(0),
        command_id: ids[2],
    };
    host.admin_submit(abort.encode());
    let aborted = host.admin_next().expect("the request ends");
    assert_eq!(aborted.command_id(), ids[2]);
    assert_eq!(aborted.status(), GenericStatus::AbortRequested.into());
    assert_eq!(host.admin_next().expect("the abort ends").dword_0.get(), 0);
}
