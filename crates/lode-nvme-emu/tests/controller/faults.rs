//! The fault script, aborts, and the latency model.

use std::time::Duration;

use lode_bus::{Bus, Registers};
use lode_nvme_emu::{ControllerOptions, DeviceFault, FaultRule, Latency};
use lode_nvme_spec::command::{Abort, BlockFlags, DeleteQueue, flush};
use lode_nvme_spec::registers as at;
use lode_nvme_spec::{GenericStatus, MediaStatus, NvmOpcode, Status};
use lode_units::{BlockSize, CommandId, Instant, QueueId};

use crate::host::{Host, NSID, Pair, block, pattern};

fn with_rule(rule: &str) -> (Host, Pair) {
    let mut host = Host::ready();
    let pair = host.create_pair(1, 16);
    let rule: FaultRule = rule.parse().expect("a rule");
    host.controller.install_fault(rule).expect("room");
    (host, pair)
}

fn abort(host: &mut Host, queue: u16, command_id: CommandId) -> u32 {
    let command = Abort {
        queue: QueueId::new(queue),
        command_id,
    };
    host.admin_ok(command.encode()).dword_0.get()
}

#[test]
fn a_status_fault_ends_the_command_without_executing_it() {
    let (host, mut pair) = with_rule("opcode=write lba=0..8 nth=2 -> status=0x280");
    let write = |host: &Host, pair: &mut Pair, byte: u8| {
        let buffer = host.allocate(512);
        buffer.copy_from_slice(0, &[byte; 512]);
        let entry = block(NvmOpcode::Write, 0, 1, BlockFlags::empty());
        host.run(pair, entry.with_data(host.pages(&buffer, 0, 512)))
            .status()
    };
    assert_eq!(write(&host, &mut pair, 1), Status::SUCCESS);
    assert_eq!(write(&host, &mut pair, 2), MediaStatus::WriteFault.into());
    assert_eq!(host.read(&mut pair, 0, 512), [1; 512]);
    assert_eq!(host.controller.counters().faults_injected, 1);
}

#[test]
fn a_dropped_command_hangs_until_it_is_aborted() {
    let (mut host, mut pair) = with_rule("queue=1 opcode=flush nth=1 -> drop");
    let id = host.submit(&mut pair, flush(NSID));
    host.pass(Duration::from_secs(3600));
    assert_eq!(host.advance(), None);
    assert!(host.next(&mut pair).is_none());
    assert_eq!(host.controller.outstanding_count(), 1);
    assert_eq!(abort(&mut host, 1, id), 0, "aborted");
    let completion = host.wait(&mut pair);
    assert_eq!(completion.command_id(), id);
    assert_eq!(completion.status(), GenericStatus::AbortRequested.into());
    assert_eq!(host.controller.outstanding_count(), 0);
    assert_eq!(abort(&mut host, 1, id), 1, "nothing to abort");
}

#[test]
fn aborting_what_is_not_there_says_so() {
    let mut host = Host::ready();
    for queue in [0, 1, 999] {
        assert_eq!(abort(&mut host, queue, CommandId::new(77)), 1);
    }
}

#[test]
fn a_delayed_command_moves_its_data_when_its_time_has_come() {
    let (mut host, mut pair) = with_rule("opcode=read -> delay=5ms");
    host.write(&mut pair, 0, &pattern(1, 512), BlockFlags::empty());
    let buffer = host.allocate(512);
    let read = block(NvmOpcode::Read, 0, 1, BlockFlags::empty());
    host.submit(&mut pair, read.with_data(host.pages(&buffer, 0, 512)));
    let due = host.advance().expect("a moment to come back at");
    assert_eq!(due, host.now + Duration::from_millis(5));
    host.pass(Duration::from_millis(4));
    host.advance();
    assert!(host.next(&mut pair).is_none());
    assert!(buffer.equals(0, &[0; 512]), "no byte has moved yet");
    host.pass(Duration::from_millis(1));
    assert_eq!(host.advance(), None);
    assert_eq!(host.next(&mut pair).expect("due").status(), Status::SUCCESS);
    assert!(buffer.equals(0, &pattern(1, 512)));
}

#[test]
fn a_delayed_command_can_be_aborted_and_then_moves_nothing() {
    let (mut host, mut pair) = with_rule("opcode=write -> delay=1s");
    let buffer = host.allocate(512);
    buffer.copy_from_slice(0, &[9; 512]);
    let write = block(NvmOpcode::Write, 3, 1, BlockFlags::empty());
    let id = host.submit(&mut pair, write.with_data(host.pages(&buffer, 0, 512)));
    host.advance();
    assert_eq!(abort(&mut host, 1, id), 0);
    let status = host.wait(&mut pair).status();
    assert_eq!(status, GenericStatus::AbortRequested.into());
    host.pass(Duration::from_secs(2));
    host.advance();
    assert!(host.next(&mut pair).is_none());
    assert_eq!(host.read(&mut pair, 3, 512), [0; 512]);
}

#[test]
fn completions_are_lost_doubled_or_misnamed_on_request() {
    let (host, mut pair) = with_rule("nth=1 queue=io -> lose");
    for rule in ["nth=2 queue=io -> duplicate", "nth=3 queue=io -> wrong_id"] {
        // Each rule counts from its installation, and the first has seen nothing yet.
        let rule: FaultRule = rule.parse().expect("a rule");
        host.controller.install_fault(rule).expect("room");
    }
    let ids: Vec<_> = (0..4).map(|_| host.queue(&mut pair, flush(NSID))).collect();
    host.ring(&pair);
    host.advance();
    let seen: Vec<_> = std::iter::from_fn(|| host.next(&mut pair))
        .map(|completion| completion.command_id())
        .collect();
    let wrong = seen[2];
    assert_eq!(seen, [ids[1], ids[1], wrong, ids[3]]);
    assert!(!ids.contains(&wrong));
}

#[test]
fn a_fatal_status_stops_everything_until_a_reset() {
    let (mut host, mut pair) = with_rule("opcode=flush queue=io nth=2 -> fatal");
    host.run_ok(&mut pair, flush(NSID));
    host.submit(&mut pair, flush(NSID));
    host.advance();
    assert!(host.status().fatal && host.status().ready);
    assert!(host.next(&mut pair).is_none());
    host.disable();
    assert!(!host.status().fatal);
    assert_eq!(host.controller.counters().commands_vanished, 1);
    host.enable();
    let mut pair = host.create_pair(1, 16);
    host.run_ok(&mut pair, flush(NSID));
}

#[test]
fn a_stuck_ready_bit_stays_until_it_is_released() {
    let (mut host, _pair) = with_rule("opcode=identify -> drop");
    host.controller.apply(DeviceFault::StuckReady);
    host.configure(lode_nvme_spec::registers::Configuration::default());
    host.pass(Duration::from_secs(60));
    assert_eq!(host.advance(), None);
    assert!(host.status().ready);
    host.controller.release_ready();
    host.advance();
    assert!(!host.status().ready);
    host.controller.apply(DeviceFault::StuckReady);
    host.start_enabling();
    host.advance();
    assert!(!host.status().ready, "the other way round too");
    host.controller
        .reset_function()
        .expect("the device is there");
    host.enable();
}

#[test]
fn registers_read_as_ones_for_a_while_and_come_back() {
    let mut host = Host::ready();
    host.controller.apply(DeviceFault::AllOnes(2));
    let registers = host.controller.registers();
    assert_eq!(registers.read_u32(at::CSTS), u32::MAX);
    assert_eq!(registers.read_u64(at::CAP), u64::MAX);
    assert!(host.status().ready);
    let mut pair = host.create_pair(1, 4);
    host.run_ok(&mut pair, flush(NSID));
}

#[test]
fn a_rule_on_register_accesses_counts_them() {
    let host = Host::ready();
    let rule: FaultRule = "on=register nth=3 -> remove".parse().expect("a rule");
    host.controller.install_fault(rule).expect("room");
    let registers = host.controller.registers();
    assert_ne!(registers.read_u32(at::CSTS), u32::MAX);
    registers.write_u32(at::INTMS, 0);
    assert_eq!(registers.read_u32(at::CSTS), u32::MAX);
    assert!(!host.controller.is_present());
}

#[test]
fn deleting_a_queue_ends_the_commands_that_are_held_back() {
    let (mut host, mut pair) = with_rule("queue=1 -> drop");
    let id = host.submit(&mut pair, flush(NSID));
    host.advance();
    let queue = QueueId::new(1);
    host.admin_ok(DeleteQueue { queue }.encode_submission());
    let completion = host.next(&mut pair).expect("ended before the deletion");
    assert_eq!(completion.command_id(), id);
    assert_eq!(
        completion.status(),
        GenericStatus::AbortedQueueDeletion.into()
    );
    host.admin_ok(DeleteQueue { queue }.encode_completion());
}

#[test]
fn every_command_takes_its_time_under_a_latency_model() {
    let options = ControllerOptions {
        latency: Latency {
            flush: Duration::from_micros(50),
            ..Latency::fixed(Duration::from_micros(100))
        },
        ..ControllerOptions::default()
    };
    let mut host = Host::with_memory(options, BlockSize::B512, 64);
    let mut pair = host.create_pair(1, 8);
    let buffer = host.allocate(512);
    let read = block(NvmOpcode::Read, 0, 1, BlockFlags::empty());
    let read = host.submit(&mut pair, read.with_data(host.pages(&buffer, 0, 512)));
    let flush = host.submit(&mut pair, flush(NSID));
    assert_eq!(host.advance(), Some(Instant::from_nanos(50_000)));
    let mut order = Vec::new();
    while let Some(due) = host.advance() {
        host.now = due;
        host.advance();
        order.extend(
            host.next(&mut pair)
                .map(|completion| completion.command_id()),
        );
    }
    assert_eq!(order, [flush, read]);
    assert_eq!(host.now.as_nanos(), 100_000);
}

#[test]
fn more_commands_than_one_queue_may_have_outstanding_wait_their_turn() {
    let options = ControllerOptions {
        queue_entries_max: 65536,
        latency: Latency::fixed(Duration::from_micros(10)),
        ..ControllerOptions::default()
    };
    let mut host = Host::with_memory(options, BlockSize::B512, 64);
    let mut pair = host.create_pair(1, 65536);
    for _ in 0..5000 {
        host.queue(&mut pair, flush(NSID));
    }
    host.ring(&pair);
    let mut seen = 0;
    loop {
        let due = host.advance();
        assert!(host.controller.outstanding_count() <= 1024);
        while host.next(&mut pair).is_some() {
            seen += 1;
        }
        match due {
            Some(due) => host.now = host.now.max(due),
            None => break,
        }
    }
    assert_eq!(seen, 5000);
}
