//! Reset, shutdown, removal, events, interrupts and shadow doorbells.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::time::Duration;

use lode_bus::{Bus, BusError, Registers};
use lode_nvme_emu::{
    ControllerOptions, DeviceFault, EmulatedController, EmulatedRegisters, Latency, Media,
    NamespaceOptions, SignalPolicy,
};
use lode_nvme_spec::command::{BlockFlags, DoorbellBufferConfig, GetLogPage, SetFeatures, flush};
use lode_nvme_spec::feature::{EventMask, FeatureId};
use lode_nvme_spec::log_page::{CriticalWarning, LogPageId};
use lode_nvme_spec::registers::{
    self as at, Configuration, ShutdownNotification, ShutdownStatus, completion_doorbell,
    submission_doorbell,
};
use lode_nvme_spec::{
    AdminOpcode, AsyncEvent, ErrorEvent, EventType, GenericStatus, HealthEvent, NoticeEvent,
    NvmOpcode, SpecificStatus, Status, SubmissionEntry,
};
use lode_units::{BlockSize, NamespaceId, QueueId};

use crate::host::{Host, NSID, Pair, block, pattern};

fn with(options: ControllerOptions) -> Host {
    Host::with_memory(options, BlockSize::B512, 4096)
}

#[test]
fn after_a_reset_no_command_of_before_completes() {
    let mut host = with(ControllerOptions {
        latency: Latency::fixed(Duration::from_millis(1)),
        disable_delay: Duration::from_millis(3),
        ..ControllerOptions::default()
    });
    let mut pair = host.create_pair(1, 8);
    for _ in 0..5 {
        host.submit(&mut pair, flush(NSID));
    }
    host.advance();
    host.configure(Configuration::default());
    host.advance();
    assert!(host.status().ready, "the delay is not over");
    host.pass(Duration::from_millis(3));
    host.advance();
    assert!(!host.status().ready);
    host.pass(Duration::from_secs(1));
    host.advance();
    assert!(host.next(&mut pair).is_none());
    let counters = host.controller.counters();
    assert_eq!((counters.resets, counters.commands_vanished), (1, 5));
    assert_eq!(host.controller.outstanding_count(), 0);
}

#[test]
fn a_controller_is_reset_and_enabled_a_hundred_times() {
    let mut host = with(ControllerOptions::default());
    for round in 0..100 {
        let mut pair = host.create_pair(1, 8);
        host.write(&mut pair, round, &pattern(round, 512), BlockFlags::empty());
        host.disable();
        host.enable();
    }
    let mut pair = host.create_pair(1, 8);
    for round in 0..100 {
        assert_eq!(host.read(&mut pair, round, 512), pattern(round, 512));
    }
}

#[test]
fn enabling_again_before_the_reset_is_over_still_resets() {
    let mut host = with(ControllerOptions::default());
    let mut pair = host.create_pair(1, 8);
    host.configure(Configuration::default());
    host.configure(Host::enabled());
    host.advance();
    assert!(host.status().ready);
    host.submit(&mut pair, flush(NSID));
    host.advance();
    assert!(host.next(&mut pair).is_none(), "the queue is gone");
}

#[test]
fn a_controller_set_up_impossibly_fails_instead_of_becoming_ready() {
    for configuration in [
        Configuration {
            page_size: 9,
            ..Host::enabled()
        },
        Configuration {
            command_set: 5,
            ..Host::enabled()
        },
    ] {
        let mut host = with(ControllerOptions::default());
        host.disable();
        host.configure(configuration);
        host.advance();
        assert!(host.status().fatal && !host.status().ready);
        host.disable();
        host.enable();
    }
}

#[test]
fn a_shutdown_goes_through_its_states() {
    let mut host = with(ControllerOptions {
        shutdown_delay: Duration::from_millis(2),
        ..ControllerOptions::default()
    });
    host.configure(Configuration {
        shutdown: ShutdownNotification::Normal,
        ..Host::enabled()
    });
    let due = host.advance().expect("a moment to come back at");
    assert_eq!(host.status().shutdown, ShutdownStatus::Occurring);
    host.now = due;
    host.advance();
    assert_eq!(host.status().shutdown, ShutdownStatus::Complete);
    host.disable();
    assert_eq!(host.status().shutdown, ShutdownStatus::Normal);
    host.enable();
}

#[test]
fn a_function_reset_clears_every_register() {
    let mut host = with(ControllerOptions::default());
    let mut pair = host.create_pair(1, 8);
    host.submit(&mut pair, flush(NSID));
    host.controller
        .reset_function()
        .expect("the device is there");
    let registers = host.controller.registers();
    for offset in [at::CC, at::CSTS, at::AQA, at::ASQ, at::ACQ] {
        assert_eq!(registers.read_u32(offset), 0);
    }
    host.advance();
    assert!(host.next(&mut pair).is_none());
    host.enable();
}

#[test]
fn a_removed_controller_reads_as_ones_and_does_nothing_more() {
    let mut host = with(ControllerOptions::default());
    let mut pair = host.create_pair(1, 8);
    let buffer = host.allocate(4096);
    host.controller.apply(DeviceFault::Remove);
    host.submit(&mut pair, flush(NSID));
    host.advance();
    assert!(host.next(&mut pair).is_none());
    let registers = host.controller.registers();
    assert_eq!(registers.read_u32(at::CSTS), u32::MAX);
    assert_eq!(registers.read_u64(at::CAP), u64::MAX);
    assert!(!host.controller.is_present());
    assert!(matches!(host.controller.map(&buffer), Err(BusError::Gone)));
    assert!(matches!(
        host.controller.reset_function(),
        Err(BusError::Gone)
    ));
    assert!(matches!(
        host.controller.enable_interrupt(0),
        Err(BusError::Gone)
    ));
    host.controller.reinsert();
    host.enable();
}

// Events.

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
    let mut host = with(ControllerOptions::default());
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
    let mut host = with(ControllerOptions::default());
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
    let mut host = with(ControllerOptions::default());
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
    let mut host = with(ControllerOptions::default());
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
    let mut host = with(ControllerOptions::default());
    let ids: Vec<_> = (0..4).map(|_| host.admin_submit(event_request())).collect();
    assert_eq!(next_event(&mut host), None);
    let status = host.admin(event_request()).status();
    let expected = Status::from(SpecificStatus::AsyncEventLimitExceeded);
    assert_eq!(status.code_bits(), expected.raw());
    let abort = lode_nvme_spec::command::Abort {
        queue: QueueId::new(0),
        command_id: ids[2],
    };
    host.admin_submit(abort.encode());
    let aborted = host.admin_next().expect("the request ends");
    assert_eq!(aborted.command_id(), ids[2]);
    assert_eq!(aborted.status(), GenericStatus::AbortRequested.into());
    assert_eq!(host.admin_next().expect("the abort ends").dword_0.get(), 0);
}

// Interrupts.

/// Whether a descriptor has fired since the last look.
fn has_fired(controller: &EmulatedController, vector: u16) -> bool {
    let descriptor = controller.enable_interrupt(vector).expect("a vector");
    let link = format!("/proc/self/fd/{descriptor}");
    // An eventfd cannot be opened through the link, so a duplicate is read instead.
    assert!(std::fs::read_link(link).is_ok());
    read_counter(descriptor)
}

fn read_counter(descriptor: RawFd) -> bool {
    let mut file = duplicate(descriptor);
    let mut counter = [0; 8];
    // The descriptor does not block: it says at once that nothing has fired.
    file.read(&mut counter).is_ok()
}

#[expect(unsafe_code, reason = "a raw descriptor is all that the bus hands out")]
fn duplicate(descriptor: RawFd) -> File {
    // SAFETY: the bus keeps the descriptor open for as long as the controller lives, and the
    // borrow ends within this function.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    File::from(borrowed.try_clone_to_owned().expect("a descriptor"))
}

#[test]
fn a_completion_fires_the_vector_of_its_queue_where_that_is_enabled() {
    let mut host = with(ControllerOptions::default());
    let mut loud = host.create_pair_with(1, 8, Some(5));
    let mut quiet = host.create_pair(2, 8);
    assert!(!has_fired(&host.controller, 5));
    host.run_ok(&mut quiet, flush(NSID));
    assert!(!has_fired(&host.controller, 5));
    host.run_ok(&mut loud, flush(NSID));
    assert!(has_fired(&host.controller, 5));
    assert!(!has_fired(&host.controller, 5), "once for the batch");
    let registers = host.controller.registers();
    registers.write_u32(at::INTMS, 1 << 5);
    host.run_ok(&mut loud, flush(NSID));
    assert!(!has_fired(&host.controller, 5), "it is masked");
    registers.write_u32(at::INTMC, 1 << 5);
    host.run_ok(&mut loud, flush(NSID));
    assert!(has_fired(&host.controller, 5));
    let none = host.controller.enable_interrupt(9999);
    assert!(matches!(none, Err(BusError::NoVector { vector: 9999, .. })));
}

#[test]
fn a_vector_fires_into_the_descriptor_it_is_routed_to() {
    let mut host = with(ControllerOptions::default());
    let mut pair = host.create_pair_with(1, 8, Some(2));
    let own = host.controller.enable_interrupt(1).expect("a vector");
    let target = duplicate(own);
    host.controller
        .route_interrupt(2, target.as_fd())
        .expect("a vector");
    host.run_ok(&mut pair, flush(NSID));
    assert!(read_counter(own));
}

#[test]
fn the_thread_that_rang_and_works_itself_is_not_woken_when_only_others_are_to_be() {
    let mut host = with(ControllerOptions {
        signal_policy: SignalPolicy::OtherThreads,
        ..ControllerOptions::default()
    });
    let mut pair = host.create_pair_with(1, 8, Some(1));
    host.controller.enable_interrupt(1).expect("a vector");
    host.run_ok(&mut pair, flush(NSID));
    assert!(!has_fired(&host.controller, 1));
    host.submit(&mut pair, flush(NSID));
    let (controller, now) = (host.controller.clone(), host.now);
    std::thread::spawn(move || controller.advance(now))
        .join()
        .expect("a thread");
    assert!(has_fired(&host.controller, 1));
    assert!(host.next(&mut pair).is_some());
}

#[test]
fn a_finished_file_operation_fires_so_that_a_sleeper_comes_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let media = Media::create_file(&folder.path().join("disk"), 1 << 20, 512).expect("a file");
    let namespace = NamespaceOptions {
        cache: lode_nvme_emu::Cache::Host,
        ..NamespaceOptions::new(BlockSize::B512, media)
    };
    let options = ControllerOptions {
        signal_policy: SignalPolicy::OtherThreads,
        ..ControllerOptions::default()
    };
    let controller = EmulatedController::new(options, vec![namespace]).expect("options");
    let mut host = Host::over(controller);
    host.enable();
    for enable_first in [true, false] {
        let id = if enable_first { 1 } else { 2 };
        let descriptor = || host.controller.enable_interrupt(id).expect("a vector");
        if enable_first {
            descriptor();
        }
        let mut pair = host.create_pair_with(id, 8, Some(id));
        let descriptor = host.controller.enable_interrupt(id).expect("a vector");
        host.submit(&mut pair, flush(NSID));
        host.advance();
        if host.controller.access(NSID) == Some(lode_nvme_emu::Access::FileBlocking) {
            return;
        }
        wait_readable(descriptor);
        host.advance();
        assert_eq!(
            host.next(&mut pair).expect("it has ended").status(),
            Status::SUCCESS
        );
    }
}

/// Sleeps until a descriptor is readable, as a poller does; at most ten seconds.
#[expect(unsafe_code, reason = "poll is a system call")]
fn wait_readable(descriptor: RawFd) {
    let mut entry = libc::pollfd {
        fd: descriptor,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry is handed in, and it outlives the call.
    let ready = unsafe { libc::poll(&raw mut entry, 1, 10_000) };
    assert_eq!(ready, 1, "the descriptor becomes readable");
}

// Shadow doorbells.

struct Shadowed {
    host: Host,
    pair: Pair,
    values: lode_bus::DmaMemory,
    indexes: lode_bus::DmaMemory,
}

fn shadowed(stride: u8) -> Shadowed {
    let mut host = with(ControllerOptions {
        shadow_doorbells: true,
        doorbell_stride: stride,
        ..ControllerOptions::default()
    });
    let values = host.allocate(4096);
    let indexes = host.allocate(4096);
    let pair = host.create_pair(1, 8);
    let command = DoorbellBufferConfig {
        shadow: values.iova(),
        event_index: indexes.iova(),
    };
    host.admin_ok(command.encode());
    Shadowed {
        host,
        pair,
        values,
        indexes,
    }
}

#[test]
fn shadow_doorbells_take_the_place_of_register_writes() {
    use std::sync::atomic::Ordering;
    for stride in [0, 2] {
        let Shadowed {
            host,
            mut pair,
            values,
            indexes,
        } = shadowed(stride);
        let distance = 4_usize << stride;
        let before = host.controller.counters().submission_doorbells;
        for round in 0..50_u32 {
            host.queue(&mut pair, flush(NSID));
            values.store_u32(2 * distance, pair.tail, Ordering::Release);
            host.advance();
            assert!(Host::peek(&pair).is_some(), "round {round}");
            // `next` writes the register, which no longer counts; the shadow does.
            host.next(&mut pair);
            values.store_u32(3 * distance, pair.head, Ordering::Release);
            let index = indexes.load_u32(2 * distance, Ordering::Acquire);
            assert_eq!(index, pair.tail.wrapping_sub(1) & 0xFFFF);
        }
        assert_eq!(host.controller.counters().submission_doorbells, before);
    }
}

#[test]
fn shadow_doorbells_end_with_a_reset() {
    let Shadowed {
        mut host, values, ..
    } = shadowed(0);
    host.disable();
    host.enable();
    let mut pair = host.create_pair(1, 8);
    values.store_u32(8, 5, std::sync::atomic::Ordering::Release);
    host.run_ok(&mut pair, flush(NSID));
    assert_eq!(host.controller.counters().operations.flushes, 1);
}

#[test]
fn doorbell_buffers_that_cannot_be_reached_are_refused() {
    let Shadowed { mut host, .. } = shadowed(0);
    let buffer = host.allocate(8192);
    for (shadow, event_index, expected) in [
        (
            buffer.iova().get() + 4,
            buffer.iova().get(),
            GenericStatus::InvalidField,
        ),
        (
            0x1000,
            buffer.iova().get(),
            GenericStatus::DataTransferError,
        ),
    ] {
        let command = DoorbellBufferConfig {
            shadow: lode_units::Iova::new(shadow),
            event_index: lode_units::Iova::new(event_index),
        };
        let status = host.admin(command.encode()).status();
        assert_eq!(status.code_bits(), Status::from(expected).raw());
    }
}

// Memory that is not there.

#[test]
fn a_hidden_queue_is_a_fatal_status_and_not_a_panic() {
    let mut host = with(ControllerOptions::default());
    let mut pair = host.create_pair(1, 8);
    host.controller
        .unmap(&pair.submission)
        .expect("the device is there");
    host.submit(&mut pair, flush(NSID));
    host.advance();
    assert!(host.status().fatal);
    assert_eq!(host.controller.counters().dma_faults, 1);
}

#[test]
fn data_in_unmapped_memory_fail_the_command_and_move_no_byte() {
    let mut host = with(ControllerOptions::default());
    let mut pair = host.create_pair(1, 8);
    host.write(&mut pair, 0, &pattern(1, 512), BlockFlags::empty());
    let buffer = host.allocate(4096);
    host.controller.unmap(&buffer).expect("the device is there");
    let read = block(NvmOpcode::Read, 0, 1, BlockFlags::empty());
    let status = host
        .run(&mut pair, read.with_data(host.pages(&buffer, 0, 512)))
        .status();
    assert_eq!(status, GenericStatus::DataTransferError.into());
    assert!(buffer.equals(0, &[0; 512]));
    assert_eq!(host.controller.counters().dma_faults, 1);
    assert_eq!(registers_length(&host.controller.registers()) % 4096, 0);
}

fn registers_length(registers: &EmulatedRegisters) -> u64 {
    registers.length_bytes()
}
