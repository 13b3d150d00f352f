//! What crosses the rings: doorbells counted, completions that nobody sent for.

use lode_block::{BlockDevice, Operation, RejectReason};
use lode_nvme::QueueOptions;

use crate::rig::{Rig, RigSpec, bare, transfer};

#[test]
fn a_batch_costs_one_submission_and_one_completion_doorbell() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    let before = (queue.stats(), rig.emulator.counters());
    let data = rig.span(0, 512);
    for round in 1..=10 {
        for tag in 0..32 {
            queue
                .submit(transfer(Operation::Read, tag, tag, 1, data))
                .expect("a slot");
        }
        queue.kick();
        queue.kick();
        let mut completions = Vec::with_capacity(32);
        rig.now += crate::rig::TICK;
        assert_eq!(queue.poll(rig.now, &mut completions), 32);
        let stats = queue.stats();
        assert_eq!(
            stats.submission_doorbells - before.0.submission_doorbells,
            round
        );
        assert_eq!(
            stats.completion_doorbells - before.0.completion_doorbells,
            round
        );
        let seen = rig.emulator.counters();
        assert_eq!(
            seen.submission_doorbells - before.1.submission_doorbells,
            round
        );
        assert_eq!(
            seen.completion_doorbells - before.1.completion_doorbells,
            round
        );
    }
}

#[test]
fn nothing_is_rung_without_a_request() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    let before = queue.stats();
    for _ in 0..10 {
        rig.turn(&mut queue);
    }
    assert_eq!(queue.stats(), before);
}

#[test]
fn a_poll_appends_no_more_than_there_is_room_for() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    for tag in 0..10 {
        queue
            .submit(bare(Operation::Flush, tag, 0, 0))
            .expect("a slot");
    }
    queue.kick();
    let mut none = Vec::new();
    assert_eq!(queue.poll(rig.now, &mut none), 0);
    let mut seen = Vec::new();
    while queue.in_flight() > 0 {
        let mut completions = Vec::with_capacity(3);
        let found = queue.poll(rig.now, &mut completions);
        assert!(found == completions.len() && found <= 3 && found > 0);
        assert_eq!(completions.capacity(), 3);
        seen.extend(completions.iter().map(|completion| completion.tag.0));
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..10).collect::<Vec<_>>());
}

#[test]
fn a_full_queue_gives_the_request_back_and_takes_it_after_a_completion() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open_with(QueueOptions {
        entries: 4,
        ..QueueOptions::default()
    });
    for tag in 0..3 {
        queue
            .submit(bare(Operation::Flush, tag, 0, 0))
            .expect("a slot");
    }
    let refused = queue
        .submit(bare(Operation::Flush, 3, 0, 0))
        .expect_err("full");
    assert_eq!(refused.reason, RejectReason::Full);
    assert_eq!(rig.drain(&mut queue).len(), 3);
    queue.submit(refused.request).expect("a slot");
    assert_eq!(rig.drain(&mut queue).len(), 1);
}

#[test]
fn a_duplicate_completion_is_counted_and_not_delivered() {
    let mut rig = Rig::new().ready();
    rig.fault("queue=1 -> duplicate");
    let mut queue = rig.open();
    let data = rig.span(0, 512);
    for tag in 0..600 {
        let completion = rig.run(&mut queue, transfer(Operation::Read, tag, 0, 1, data));
        assert_eq!(completion.tag.0, tag);
    }
    rig.turn(&mut queue);
    assert_eq!(queue.stats().stale_completions, 600);
    assert_eq!(queue.stats().completed_total(), 600);
}

#[test]
fn a_completion_for_another_command_ends_nobody() {
    let mut rig = Rig::new().ready();
    rig.fault("queue=1 nth=1 -> wrong_id");
    let mut queue = rig.open();
    queue
        .submit(bare(Operation::Flush, 1, 0, 0))
        .expect("a slot");
    for _ in 0..10 {
        assert_eq!(rig.turn(&mut queue), []);
    }
    assert_eq!(queue.stats().stale_completions, 1);
    assert_eq!(queue.in_flight(), 1);
    // The command whose completion went astray is aborted in the end, or dies with a reset.
    assert_eq!(rig.drain(&mut queue).len(), 1);
}

#[test]
fn shadow_doorbells_spare_register_writes_and_lose_nothing() {
    let mut registers = [0; 2];
    for (index, offered) in [false, true].into_iter().enumerate() {
        let mut spec = RigSpec::default();
        spec.emulator.shadow_doorbells = offered;
        let mut rig = spec.build().ready();
        let identity = rig.controller.identity().expect("identified");
        assert_eq!(identity.uses_shadow_doorbells, offered);
        let mut queue = rig.open();
        let data = rig.span(0, 512);
        for tag in 0..1000 {
            let completion = rig.run(&mut queue, transfer(Operation::Read, tag, 0, 1, data));
            assert_eq!(completion.result, Ok(()));
        }
        let stats = queue.stats();
        registers[index] = stats.submission_doorbells + stats.completion_doorbells;
    }
    assert_eq!(registers[0], 2000);
    assert!(registers[1] < registers[0], "{registers:?}");
}

#[test]
fn doorbells_keep_their_distance_where_the_controller_asks_for_it() {
    for stride in [1, 4, 9] {
        let mut spec = RigSpec::default();
        spec.emulator.doorbell_stride = stride;
        spec.emulator.shadow_doorbells = true;
        let mut rig = spec.build().ready();
        let mut queues = [rig.open(), rig.open()];
        let data = rig.span(0, 512);
        for queue in &mut queues {
            for tag in 0..5 {
                let completion = rig.run(queue, transfer(Operation::Read, tag, 0, 1, data));
                assert_eq!(completion.result, Ok(()));
            }
        }
    }
}
