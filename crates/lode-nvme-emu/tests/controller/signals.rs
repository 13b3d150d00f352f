//! Interrupts and shadow doorbells: how the two sides learn of each other's work.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::atomic::Ordering;

use lode_bus::{Bus, BusError, DmaMemory, Registers};
use lode_nvme_emu::{
    Access, Cache, ControllerOptions, EmulatedController, Media, NamespaceOptions, SignalPolicy,
};
use lode_nvme_spec::command::{DoorbellBufferConfig, flush};
use lode_nvme_spec::registers as at;
use lode_nvme_spec::{GenericStatus, Status};
use lode_units::{BlockSize, Iova};

use crate::host::{Host, NSID, Pair};

fn with(options: ControllerOptions) -> Host {
    Host::with_memory(options, BlockSize::B512, 4096)
}

/// Whether a descriptor has fired since the last look.
fn has_fired(controller: &EmulatedController, vector: u16) -> bool {
    read_counter(controller.enable_interrupt(vector).expect("a vector"))
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
    // The second look is the one that takes what its own thread neglects.
    std::thread::spawn(move || [(); 2].map(|()| controller.advance(now)))
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
        cache: Cache::Host,
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
        if host.controller.access(NSID) == Some(Access::FileBlocking) {
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

struct Shadowed {
    host: Host,
    pair: Pair,
    values: DmaMemory,
    indexes: DmaMemory,
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
    values.store_u32(8, 5, Ordering::Release);
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
            shadow: Iova::new(shadow),
            event_index: Iova::new(event_index),
        };
        let status = host.admin(command.encode()).status();
        assert_eq!(status.code_bits(), Status::from(expected).raw());
    }
}
