//! Commands that do not come back: abort, then reset, each bounded and counted.

use std::time::Duration;

use lode_block::{BlockDevice, ErrorKind, Operation};
use lode_nvme::{ControllerState, QueueOptions, Quirks};
use lode_units::Instant;

use crate::rig::{Queue, Rig, RigSpec, TICK, bare, transfer};

/// A queue whose first read hangs, with that read and one behind it submitted.
fn hung(rig: &mut Rig) -> Queue {
    rig.fault("queue=1 opcode=read nth=1 -> drop");
    let mut queue = rig.open();
    let data = rig.span(0, 512);
    for tag in [1, 2] {
        queue
            .submit(transfer(Operation::Read, tag, 0, 1, data))
            .expect("a slot");
    }
    queue
}

#[test]
fn a_hung_command_is_aborted_at_its_deadline_and_times_out() {
    let mut rig = Rig::new().ready();
    let mut queue = hung(&mut rig);
    let begin = rig.now;
    let completions = rig.drain(&mut queue);
    let [fine, late] = completions.as_slice() else {
        panic!("two completions: {completions:?}");
    };
    assert_eq!((fine.tag.0, fine.result), (2, Ok(())));
    assert_eq!(late.tag.0, 1);
    assert_eq!(late.result.expect_err("aborted").kind, ErrorKind::TimedOut);
    let took = rig.now.saturating_duration_since(begin);
    assert!(
        took >= Duration::from_secs(8) && took < Duration::from_millis(8100),
        "{took:?}"
    );
    assert_eq!(queue.stats().timeouts, 1);
    assert_eq!(rig.controller.stats().aborts_sent, 1);
    assert_eq!(rig.controller.stats().resets, 0);
}

#[test]
fn a_command_that_is_merely_slow_is_left_alone() {
    let mut rig = Rig::new().ready();
    rig.fault("queue=1 opcode=read -> delay=7900ms");
    let mut queue = rig.open();
    let data = rig.span(0, 512);
    let completion = rig.run(&mut queue, transfer(Operation::Read, 1, 0, 1, data));
    assert_eq!(completion.result, Ok(()));
    assert_eq!(queue.stats().timeouts, 0);
}

#[test]
fn a_queue_that_was_idle_for_long_does_not_time_out_at_once() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    let data = rig.span(0, 512);
    rig.run(&mut queue, transfer(Operation::Read, 1, 0, 1, data));
    // Nobody polls the queue for an hour.
    rig.now += Duration::from_secs(3600);
    rig.fault("queue=1 opcode=read -> delay=1s");
    let completion = rig.run(&mut queue, transfer(Operation::Read, 2, 0, 1, data));
    assert_eq!(completion.result, Ok(()));
    assert_eq!(queue.stats().timeouts, 0);
}

#[test]
fn an_abort_that_does_not_help_leads_to_a_reset_and_a_retryable_error() {
    let mut rig = Rig::new().ready();
    rig.fault("queue=admin opcode=abort -> status=0x006");
    let mut queue = hung(&mut rig);
    let begin = rig.now;
    let completions = rig.drain(&mut queue);
    let late = completions.last().expect("a completion");
    assert_eq!(late.result.expect_err("reset").kind, ErrorKind::Retry);
    // Eight seconds to its deadline, four for the abort, then the reset.
    let took = rig.now.saturating_duration_since(begin);
    assert!(took < Duration::from_secs(13), "{took:?}");
    let stats = rig.controller.stats();
    assert_eq!(
        (stats.aborts_sent, stats.aborts_refused, stats.resets),
        (1, 1, 1)
    );
    assert_eq!(queue.stats().recovered, 1);
    // And the queue goes on.
    let data = rig.span(0, 512);
    let completion = rig.run(&mut queue, transfer(Operation::Read, 3, 0, 1, data));
    assert_eq!(completion.result, Ok(()));
    assert_eq!(rig.controller.stats().resets_completed, 1);
}

#[test]
fn a_device_that_must_not_be_sent_aborts_is_reset_instead() {
    let mut spec = RigSpec::default();
    spec.driver.quirks = Quirks::NO_ABORT;
    let mut rig = spec.build().ready();
    let mut queue = hung(&mut rig);
    let completions = rig.drain(&mut queue);
    let late = completions.last().expect("a completion");
    assert_eq!(late.result.expect_err("reset").kind, ErrorKind::Retry);
    let stats = rig.controller.stats();
    assert_eq!((stats.aborts_sent, stats.resets), (0, 1));
}

#[test]
fn many_hung_commands_on_several_queues_all_end() {
    let mut rig = Rig::new().ready();
    rig.fault("queue=io opcode=write -> drop");
    let options = QueueOptions {
        command_timeout: Duration::from_secs(2),
        abort_timeout: Duration::from_secs(1),
        ..QueueOptions::default()
    };
    let mut queues = [rig.open_with(options), rig.open_with(options)];
    let data = rig.span(0, 512);
    for queue in &mut queues {
        for tag in 0..200 {
            queue
                .submit(transfer(Operation::Write, tag, tag, 1, data))
                .expect("a slot");
        }
    }
    let begin = rig.now;
    let mut ends = [0; 2];
    while ends != [200; 2] {
        for (queue, count) in queues.iter_mut().zip(&mut ends) {
            *count += rig.turn(queue).len();
        }
        let took = rig.now.saturating_duration_since(begin);
        assert!(took < Duration::from_secs(10), "{ends:?} after {took:?}");
    }
    for queue in &queues {
        assert_eq!(queue.stats().completed_total(), 200);
        assert_eq!(queue.stats().timeouts, 200);
    }
    // Never more aborts at once than the controller takes: none was turned down for that.
    assert_eq!(rig.controller.stats().admin_errors, 0);
}

#[test]
fn a_hung_admin_command_resets_the_controller() {
    let mut rig = Rig::new().ready();
    rig.run_for(Duration::from_millis(10));
    rig.fault("queue=admin opcode=get_log_page count=1 -> drop");
    rig.controller.request_health();
    rig.until(|rig| rig.controller.stats().resets_completed == 1);
    assert_eq!(rig.controller.stats().admin_timeouts, 1);
    assert_eq!(rig.controller.state(), ControllerState::Ready);
}

#[test]
fn the_next_deadline_tells_when_a_hung_command_needs_attention() {
    let mut rig = Rig::new().ready();
    rig.fault("queue=1 opcode=flush nth=1 -> drop");
    let mut queue = rig.open();
    assert_eq!(queue.next_deadline(), None, "nothing in flight");
    queue
        .submit(bare(Operation::Flush, 1, 0, 0))
        .expect("a slot");
    queue.kick();
    let mut completions = Vec::with_capacity(4);
    queue.poll(rig.now, &mut completions);
    let begin = rig.now;
    // Following only the deadlines, the clock leaps; the request still ends.
    let mut leaps = 0;
    while queue.in_flight() > 0 {
        let device = queue.next_deadline().expect("a deadline");
        rig.now = device
            .min(rig.controller.next_deadline())
            .max(rig.now + TICK);
        rig.controller.poll(rig.now);
        queue.poll(rig.now, &mut completions);
        leaps += 1;
        assert!(
            leaps < 1000,
            "{:?}",
            rig.now.saturating_duration_since(begin)
        );
    }
    assert_eq!(completions.len(), 1);
    assert!(rig.now < begin + Duration::from_secs(9));
    assert!(rig.now > Instant::ZERO + Duration::from_secs(8));
}
