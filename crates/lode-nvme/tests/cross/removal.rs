//! The device disappears, or seems to, at any step.

use std::time::Duration;

use lode_block::{BlockDevice, ErrorKind, Operation, RejectReason};
use lode_nvme::{ControllerState, Failure};
use lode_nvme_emu::DeviceFault;

use crate::rig::{Rig, RigSpec, bare, transfer};

#[test]
fn removal_at_every_register_access_of_bring_up_is_an_error_and_no_hang() {
    let mut accesses = 1;
    loop {
        let mut rig = Rig::new();
        rig.fault(&format!("on=register nth={accesses} -> remove"));
        rig.until(|rig| {
            matches!(
                rig.controller.state(),
                ControllerState::Ready | ControllerState::Gone
            )
        });
        if rig.controller.state() == ControllerState::Ready {
            break;
        }
        assert_eq!(
            rig.controller.failure(),
            Some(Failure::Removed),
            "access {accesses}"
        );
        accesses += 1;
    }
    assert!(
        accesses > 8,
        "bring-up reads and writes more registers than {accesses}"
    );
}

#[test]
fn removal_at_every_admin_command_of_bring_up_is_an_error_and_no_hang() {
    let mut commands = 1;
    loop {
        let mut rig = Rig::new();
        rig.fault(&format!("queue=admin nth={commands} -> remove"));
        rig.until(|rig| {
            matches!(
                rig.controller.state(),
                ControllerState::Ready | ControllerState::Gone
            )
        });
        if rig.controller.state() == ControllerState::Ready {
            break;
        }
        assert_eq!(
            rig.controller.failure(),
            Some(Failure::Removed),
            "command {commands}"
        );
        commands += 1;
    }
    assert!(commands > 5, "bring-up sends more commands than {commands}");
}

#[test]
fn a_failed_admin_command_of_bring_up_is_retried_or_done_without() {
    let mut commands = 1;
    loop {
        let mut rig = Rig::new();
        rig.fault(&format!("queue=admin nth={commands} -> status=0x006"));
        rig.until_state(ControllerState::Ready);
        if rig.emulator.counters().faults_injected == 0 {
            break;
        }
        commands += 1;
    }
    assert!(commands > 5, "bring-up sends more commands than {commands}");
}

#[test]
fn a_lost_admin_command_of_bring_up_costs_a_reset_and_no_more() {
    let mut commands = 1;
    loop {
        let mut rig = Rig::new();
        rig.fault(&format!("queue=admin nth={commands} -> drop"));
        rig.until_state(ControllerState::Ready);
        if rig.emulator.counters().faults_injected == 0 {
            break;
        }
        assert_eq!(
            rig.controller.stats().admin_timeouts,
            1,
            "command {commands}"
        );
        commands += 1;
    }
    assert!(commands > 5, "bring-up sends more commands than {commands}");
}

#[test]
fn a_removed_device_ends_its_requests_with_gone() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    rig.fault("queue=1 opcode=read -> drop");
    let data = rig.span(0, 512);
    for tag in 0..20 {
        queue
            .submit(transfer(Operation::Read, tag, 0, 1, data))
            .expect("a slot");
    }
    rig.turn(&mut queue);
    let begin = rig.now;
    rig.emulator.apply(DeviceFault::Remove);
    let completions = rig.drain(&mut queue);
    assert_eq!(completions.len(), 20);
    for completion in completions {
        assert_eq!(completion.result.expect_err("gone").kind, ErrorKind::Gone);
    }
    let took = rig.now.saturating_duration_since(begin);
    assert!(took < Duration::from_secs(2), "{took:?}");
    let refused = queue.submit(bare(Operation::Flush, 1, 0, 0));
    assert_eq!(refused.expect_err("gone").reason, RejectReason::Gone);
    assert_eq!(rig.controller.failure(), Some(Failure::Removed));
}

#[test]
fn registers_that_read_as_all_ones_for_a_moment_are_forgiven() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    rig.emulator.apply(DeviceFault::AllOnes(20));
    rig.run_for(Duration::from_secs(5));
    assert_eq!(rig.controller.state(), ControllerState::Ready);
    assert_eq!(rig.controller.stats().all_ones_reads, 20);
    assert_eq!(rig.controller.stats().resets, 0);
    let data = rig.span(0, 512);
    let completion = rig.run(&mut queue, transfer(Operation::Read, 1, 0, 1, data));
    assert_eq!(completion.result, Ok(()));
}

#[test]
fn all_ones_during_bring_up_are_waited_out() {
    let mut rig = Rig::new();
    rig.fault("on=register nth=3 -> all_ones=5");
    rig.until_state(ControllerState::Ready);
    assert!(rig.controller.stats().all_ones_reads > 0);
}

#[test]
fn registers_that_stay_all_ones_are_a_removal() {
    let mut rig = Rig::new().ready();
    let begin = rig.now;
    rig.emulator.apply(DeviceFault::AllOnes(u32::MAX));
    rig.until_state(ControllerState::Gone);
    assert_eq!(rig.controller.failure(), Some(Failure::Removed));
    let took = rig.now.saturating_duration_since(begin);
    assert!(
        took >= Duration::from_secs(1) && took < Duration::from_secs(2),
        "{took:?}"
    );
}

#[test]
fn a_dropped_controller_ends_its_queues() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    rig.fault("queue=1 -> drop");
    let data = rig.span(0, 512);
    queue
        .submit(transfer(Operation::Write, 5, 0, 1, data))
        .expect("a slot");
    queue.kick();
    let now = rig.now;
    drop(rig);
    let mut completions = Vec::with_capacity(4);
    queue.poll(now, &mut completions);
    assert_eq!(completions.len(), 1);
    let error = completions[0].result.expect_err("gone");
    assert_eq!(error.kind, ErrorKind::Gone);
    assert!(queue.is_gone());
}

#[test]
fn a_device_that_comes_back_is_driven_by_a_new_controller() {
    let mut rig = Rig::new().ready();
    rig.emulator.apply(DeviceFault::Remove);
    rig.until_state(ControllerState::Gone);
    rig.emulator.reinsert();
    let mut again = Rig::over(rig.emulator.clone(), RigSpec::default().driver).ready();
    let mut queue = again.open();
    let completion = again.run(&mut queue, bare(Operation::Flush, 1, 0, 0));
    assert_eq!(completion.result, Ok(()));
}
