//! Reset, shutdown, removal, and memory that is not there.

use std::time::Duration;

use lode_bus::{Bus, BusError, Registers};
use lode_nvme_emu::{ControllerOptions, DeviceFault, Latency};
use lode_nvme_spec::command::{BlockFlags, CreateCompletionQueue, CreateSubmissionQueue, flush};
use lode_nvme_spec::registers::{self as at, Configuration, ShutdownNotification, ShutdownStatus};
use lode_nvme_spec::{DataPointer, GenericStatus, NvmOpcode, Status};
use lode_units::{BlockSize, Iova, QueueId};

use crate::host::{Host, NSID, block, pattern};

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
}

#[test]
fn data_pointers_that_cannot_be_are_refused() {
    let mut host = with(ControllerOptions::default());
    let mut pair = host.create_pair(1, 8);
    let base = host.allocate(65536).iova().get();
    let offset = GenericStatus::InvalidPrpOffset;
    let fault = GenericStatus::DataTransferError;
    for (prp1, prp2, expected) in [
        (base + 1, 0, offset),
        (base, base + 8, offset),
        (base, 0x1000, fault),
        (u64::MAX - 4095, u64::MAX - 4095, fault),
        (0, 0, fault),
    ] {
        let read = block(NvmOpcode::Read, 0, 16, BlockFlags::empty());
        let status = host
            .run(&mut pair, read.with_data(DataPointer::new(prp1, prp2)))
            .status();
        let expected = Status::from(expected);
        assert_eq!(status.code_bits(), expected.raw(), "{prp1:#x} {prp2:#x}");
    }
}

#[test]
fn blocks_beyond_the_end_are_refused_even_where_the_sum_wraps() {
    let mut host = with(ControllerOptions::default());
    let mut pair = host.create_pair(1, 8);
    for (lba, count) in [(4096, 1), (4095, 2), (u64::MAX, 1), (u64::MAX - 7, 16)] {
        let entry = block(NvmOpcode::Verify, lba, count, BlockFlags::empty());
        let status = host.run(&mut pair, entry).status();
        let expected = Status::from(GenericStatus::LbaOutOfRange);
        assert_eq!(status.code_bits(), expected.raw(), "{count} at {lba}");
    }
    host.run_ok(
        &mut pair,
        block(NvmOpcode::Verify, 4095, 1, BlockFlags::empty()),
    );
}

#[test]
fn queues_at_the_end_of_the_address_space_are_faults_and_not_panics() {
    let base = Iova::new(u64::MAX - 4095);
    let queue = QueueId::new(1);
    for hidden_completions in [false, true] {
        let mut host = with(ControllerOptions::default());
        let pair = host.pair_memory(queue, 512, 512);
        let completion = CreateCompletionQueue {
            base: if hidden_completions {
                base
            } else {
                pair.completion.iova()
            },
            queue,
            entries: 512,
            is_contiguous: true,
            enables_interrupts: false,
            interrupt_vector: 0,
        };
        host.admin_ok(completion.encode());
        let submission = CreateSubmissionQueue {
            base: if hidden_completions {
                pair.submission.iova()
            } else {
                base
            },
            queue,
            entries: 512,
            is_contiguous: true,
            priority: 0,
            completion_queue: queue,
        };
        host.admin_ok(submission.encode());
        let doorbell = at::submission_doorbell(queue, 0);
        host.controller.registers().write_u32(doorbell, 300);
        host.advance();
        assert!(host.status().fatal);
        host.disable();
        host.enable();
    }
}
