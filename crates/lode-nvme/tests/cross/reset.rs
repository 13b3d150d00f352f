//! Resets under load: quarantine, retry, queues that go on.

use std::time::Duration;

use lode_block::{BlockDevice, ErrorKind, Operation, RejectReason, WriteCache};
use lode_nvme::{ControllerEvent, ControllerState, Failure, WriteCachePolicy};
use lode_nvme_emu::{Cache, DeviceFault};

use crate::rig::{Rig, RigSpec, bare, transfer};

#[test]
fn a_fatal_status_resets_and_what_was_in_flight_can_be_retried() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    rig.fault("queue=1 opcode=read -> delay=3600s");
    let data = rig.span(0, 512);
    for tag in 0..10 {
        queue
            .submit(transfer(Operation::Read, tag, 0, 1, data))
            .expect("a slot");
    }
    rig.turn(&mut queue);
    rig.emulator.clear_faults();
    rig.emulator.apply(DeviceFault::FatalStatus);
    let completions = rig.drain(&mut queue);
    assert_eq!(completions.len(), 10);
    for completion in &completions {
        let error = completion.result.expect_err("reset");
        assert_eq!((error.kind, error.status), (ErrorKind::Retry, None));
    }
    let again = rig.run(&mut queue, transfer(Operation::Read, 10, 0, 1, data));
    assert_eq!(again.result, Ok(()));
    let events: Vec<_> = std::iter::from_fn(|| rig.controller.take_event()).collect();
    let cause = Failure::FatalStatus;
    let begun = ControllerEvent::Resetting { cause };
    assert!(events.contains(&begun) && events.contains(&ControllerEvent::Recovered));
}

#[test]
fn memory_stays_quarantined_until_the_controller_is_disabled() {
    let mut spec = RigSpec::default();
    spec.emulator.disable_delay = Duration::from_secs(3);
    let mut rig = spec.build().ready();
    let mut queue = rig.open();
    rig.fault("queue=1 opcode=read -> drop");
    let data = rig.span(0, 512);
    queue
        .submit(transfer(Operation::Read, 1, 0, 1, data))
        .expect("a slot");
    rig.turn(&mut queue);
    rig.emulator.apply(DeviceFault::FatalStatus);
    rig.until_state(ControllerState::Disabling);
    let begin = rig.now;
    loop {
        let completions = rig.turn(&mut queue);
        if rig.controller.state() != ControllerState::Disabling {
            assert_eq!(completions.len(), 1, "now the device has let go");
            break;
        }
        assert_eq!(completions, [], "the device may still write");
    }
    let took = rig.now.saturating_duration_since(begin);
    assert!(took >= Duration::from_millis(2900), "{took:?}");
}

#[test]
fn requests_of_a_reset_are_held_and_then_carried_out() {
    let mut spec = RigSpec::default();
    spec.emulator.enable_delay = Duration::from_secs(2);
    let mut rig = spec.build().ready();
    let mut queue = rig.open();
    rig.emulator.apply(DeviceFault::FatalStatus);
    rig.until_state(ControllerState::Enabling);
    rig.turn(&mut queue);
    assert!(!queue.is_live());
    let data = rig.span(0, 512);
    for tag in 0..255 {
        queue
            .submit(transfer(Operation::Write, tag, tag, 1, data))
            .expect("held");
    }
    let refused = queue.submit(bare(Operation::Flush, 0, 0, 0));
    assert_eq!(refused.expect_err("full").reason, RejectReason::Full);
    let completions = rig.drain(&mut queue);
    assert_eq!(completions.len(), 255);
    assert!(
        completions
            .iter()
            .all(|completion| completion.result.is_ok())
    );
    assert_eq!(queue.stats().recovered, 0);
}

#[test]
fn a_queue_that_slept_through_a_reset_loses_and_doubles_nothing() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    rig.fault("queue=1 opcode=read count=5 -> drop");
    let data = rig.span(0, 512);
    for tag in 0..5 {
        queue
            .submit(transfer(Operation::Read, tag, 0, 1, data))
            .expect("a slot");
    }
    rig.turn(&mut queue);
    // Two resets come and go while nobody polls the queue.
    for count in 1..=2 {
        rig.emulator.apply(DeviceFault::FatalStatus);
        rig.until(|rig| rig.controller.stats().resets_completed == count);
    }
    queue.kick();
    let completions = rig.drain(&mut queue);
    let mut tags: Vec<_> = completions
        .iter()
        .map(|completion| completion.tag.0)
        .collect();
    tags.sort_unstable();
    assert_eq!(tags, [0, 1, 2, 3, 4]);
    let again = rig.run(&mut queue, transfer(Operation::Read, 9, 0, 1, data));
    assert_eq!(again.result, Ok(()));
}

#[test]
fn a_write_cache_that_was_switched_off_stays_off_through_a_reset() {
    let mut spec = RigSpec {
        cache: Cache::MODELLED,
        ..RigSpec::default()
    };
    spec.driver.write_cache = WriteCachePolicy::Disable;
    let mut rig = spec.build().ready();
    let mut queue = rig.open();
    rig.emulator.apply(DeviceFault::FatalStatus);
    rig.until(|rig| rig.controller.stats().resets_completed == 1);
    let geometry = &rig.controller.namespaces()[0].geometry;
    assert_eq!(geometry.write_cache, WriteCache::Disabled);
    let data = rig.span(0, 512);
    let completion = rig.run(&mut queue, transfer(Operation::Write, 1, 0, 1, data));
    assert_eq!(completion.result, Ok(()));
    assert_eq!(rig.emulator.unflushed_count(crate::rig::FIRST), Some(0));
}

#[test]
fn shadow_doorbells_are_set_up_anew_after_a_reset() {
    let mut spec = RigSpec::default();
    spec.emulator.shadow_doorbells = true;
    let mut rig = spec.build().ready();
    let mut queue = rig.open();
    let data = rig.span(0, 512);
    for round in 0..4 {
        for tag in 0..50 {
            let completion = rig.run(&mut queue, transfer(Operation::Read, tag, 0, 1, data));
            assert_eq!(completion.result, Ok(()), "round {round}");
        }
        rig.emulator.apply(DeviceFault::FatalStatus);
        rig.until(|rig| rig.controller.stats().resets_completed == round + 1);
        // Long enough that the resets before are forgotten.
        rig.run_for(Duration::from_secs(61));
    }
}

#[test]
fn a_stuck_ready_bit_is_ended_by_a_function_reset() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    rig.emulator.apply(DeviceFault::StuckReady);
    rig.emulator.apply(DeviceFault::FatalStatus);
    rig.until(|rig| rig.controller.stats().resets_completed == 1);
    assert_eq!(rig.controller.stats().function_resets, 1);
    let data = rig.span(0, 512);
    let completion = rig.run(&mut queue, transfer(Operation::Read, 1, 0, 1, data));
    assert_eq!(completion.result, Ok(()));
}

#[test]
fn a_controller_that_fails_again_and_again_is_given_up() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    rig.fault("queue=admin opcode=identify -> fatal");
    rig.emulator.apply(DeviceFault::FatalStatus);
    let data = rig.span(0, 512);
    queue
        .submit(transfer(Operation::Read, 1, 0, 1, data))
        .expect("held");
    let completions = rig.drain(&mut queue);
    assert_eq!(completions.len(), 1);
    let error = completions[0].result.expect_err("given up");
    assert!(matches!(error.kind, ErrorKind::Gone | ErrorKind::Retry));
    rig.until_state(ControllerState::Gone);
    assert_eq!(rig.controller.failure(), Some(Failure::FatalStatus));
    assert_eq!(rig.controller.stats().function_resets, 1);
    rig.turn(&mut queue);
    let refused = queue.submit(bare(Operation::Flush, 2, 0, 0));
    assert_eq!(refused.expect_err("gone").reason, RejectReason::Gone);
}

#[test]
fn a_queue_pair_that_is_refused_after_a_reset_ends_and_the_others_go_on() {
    let mut rig = Rig::new().ready();
    let mut first = rig.open();
    let mut second = rig.open();
    rig.fault("queue=admin opcode=create_sq nth=1 -> status=0x102");
    rig.emulator.apply(DeviceFault::FatalStatus);
    rig.until(|rig| rig.controller.stats().resets_completed == 1);
    let mut spare = Vec::with_capacity(1);
    first.poll(rig.now, &mut spare);
    rig.run_for(Duration::from_millis(10));
    first.poll(rig.now, &mut spare);
    assert!(first.is_gone());
    rig.until_live(&mut second);
}

#[test]
fn no_delete_command_is_sent_to_a_controller_that_is_being_reset() {
    let mut rig = Rig::new().ready();
    let queue = rig.open();
    rig.emulator.apply(DeviceFault::FatalStatus);
    rig.until_state(ControllerState::Disabling);
    drop(queue);
    rig.until(|rig| rig.controller.stats().resets_completed == 1);
    let before = rig.controller.stats().admin_commands;
    rig.run_for(Duration::from_millis(50));
    assert_eq!(
        rig.controller.stats().admin_commands,
        before + 4,
        "nothing but the asynchronous event requests of every start"
    );
    // Its identifier is free again.
    let again = rig.open();
    assert_eq!(again.id().get(), 1);
}

#[test]
fn resets_during_random_traffic_end_every_request_exactly_once() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    let data = rig.span(0, 4096);
    let mut ended = vec![0_u32; 3000];
    let mut next = 0;
    for round in 0_u64.. {
        while next < 3000 && next % 7 != round % 7 {
            let operation = [Operation::Read, Operation::Write][usize::from(next % 2 == 0)];
            let request = transfer(operation, next, next % 64, 8, data);
            if queue.submit(request).is_err() {
                break;
            }
            next += 1;
        }
        next += u64::from(next < 3000 && next % 7 == round % 7);
        if round % 97 == 50 {
            rig.emulator.apply(DeviceFault::FatalStatus);
        }
        for completion in rig.turn(&mut queue) {
            let at = usize::try_from(completion.tag.0).expect("small");
            ended[at] += 1;
            let is_fine = completion.result.is_ok();
            let is_retry = completion
                .result
                .is_err_and(|error| error.kind == ErrorKind::Retry);
            assert!(is_fine || is_retry, "{completion:?}");
        }
        // A reset now and then is forgotten; many in a row would end the controller.
        rig.now += Duration::from_secs(1);
        if next >= 3000 && queue.in_flight() == 0 {
            break;
        }
        assert!(round < 100_000, "{queue:?} {:?}", rig.controller);
    }
    let submitted = queue.stats().submitted;
    assert_eq!(
        ended.iter().map(|count| u64::from(*count)).sum::<u64>(),
        submitted
    );
    assert!(ended.iter().all(|count| *count <= 1));
    assert!(rig.controller.stats().resets > 1);
}

#[test]
fn deadlines_alone_bring_a_queue_back_after_a_reset_without_spinning() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    rig.emulator.apply(DeviceFault::FatalStatus);
    let mut none = Vec::new();
    let begin = rig.now;
    let mut polls = 0;
    // The queue sleeps for a second, as an idle core does; then it wakes.
    while !queue.is_live() || rig.now < begin + Duration::from_secs(2) {
        rig.now = rig
            .controller
            .next_deadline()
            .max(rig.now + Duration::from_micros(1));
        rig.controller.poll(rig.now);
        if rig.now > begin + Duration::from_secs(1) {
            queue.poll(rig.now, &mut none);
        }
        polls += 1;
        assert!(rig.now < begin + Duration::from_secs(10), "{queue:?}");
    }
    // A hundred polls for the second in which the queue was behind, few for the other.
    assert!(polls < 200, "{polls}");
    assert_eq!(rig.controller.stats().resets_completed, 1);
}

#[test]
fn a_request_right_after_a_reset_that_the_queue_has_not_seen_is_carried_out() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    rig.emulator.apply(DeviceFault::FatalStatus);
    rig.until(|rig| rig.controller.stats().resets_completed == 1);
    let before = rig.emulator.counters().operations.flushes;
    let completion = rig.run(&mut queue, bare(Operation::Flush, 1, 0, 0));
    assert_eq!(completion.result, Ok(()));
    assert_eq!(rig.emulator.counters().operations.flushes, before + 1);
}
