//! What crosses the rings: doorbells counted, completions that nobody sent for.

use lode_block::{BlockDevice, Operation, RejectReason};
use lode_nvme::QueueOptions;
use lode_nvme_emu::DeviceFault;

use crate::rig::{Queue, Rig, RigSpec, bare, transfer};

/// Reads `count` blocks in one batch, which one poll must find completed.
fn batch(rig: &mut Rig, queue: &mut Queue, count: usize) {
    let data = rig.span(0, 512);
    for tag in 0..count as u64 {
        queue
            .submit(transfer(Operation::Read, tag, tag, 1, data))
            .expect("a slot");
    }
    queue.kick();
    queue.kick();
    let mut completions = Vec::with_capacity(count);
    rig.now += crate::rig::TICK;
    assert_eq!(queue.poll(rig.now, &mut completions), count);
}

#[test]
fn a_batch_costs_one_submission_doorbell_and_half_a_ring_one_completion_doorbell() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open_with(QueueOptions {
        entries: 256,
        ..QueueOptions::default()
    });
    let before = (queue.stats(), rig.emulator.counters());
    for round in 1..=40 {
        batch(&mut rig, &mut queue, 32);
        let stats = queue.stats();
        let seen = rig.emulator.counters();
        for submission in [
            stats.submission_doorbells - before.0.submission_doorbells,
            seen.submission_doorbells - before.1.submission_doorbells,
        ] {
            assert_eq!(submission, round);
        }
        for completion in [
            stats.completion_doorbells - before.0.completion_doorbells,
            seen.completion_doorbells - before.1.completion_doorbells,
        ] {
            assert_eq!(completion, round / 4, "128 completions each");
        }
    }
}

#[test]
fn completions_that_interrupt_are_acknowledged_by_the_poll_that_finds_them() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open_with(QueueOptions {
        interrupt_vector: Some(0),
        ..QueueOptions::default()
    });
    let before = queue.stats().completion_doorbells;
    for round in 1..=10 {
        batch(&mut rig, &mut queue, 3);
        assert_eq!(queue.stats().completion_doorbells - before, round);
    }
}

#[test]
fn interrupts_that_nobody_heeds_are_acknowledged_by_the_half_ring() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open_with(QueueOptions {
        interrupt_vector: Some(0),
        ..QueueOptions::default()
    });
    batch(&mut rig, &mut queue, 1);
    queue.disregard_interrupt();
    let told = |queue: &Queue| queue.stats().completion_doorbells;
    let before = told(&queue);
    for round in 1..=16 {
        batch(&mut rig, &mut queue, 32);
        assert_eq!(told(&queue) - before, round / 4, "128 completions each");
    }
    // Whoever waits for an interrupt leaves nothing unacknowledged.
    batch(&mut rig, &mut queue, 5);
    let before = told(&queue);
    queue.heed_interrupt();
    assert_eq!(told(&queue) - before, 1);
    queue.heed_interrupt();
    assert_eq!(told(&queue) - before, 1, "there is nothing to tell");
    for round in 2..=10 {
        batch(&mut rig, &mut queue, 3);
        assert_eq!(told(&queue) - before, round);
    }
}

#[test]
fn a_queue_in_a_reset_is_not_acknowledged() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open_with(QueueOptions {
        interrupt_vector: Some(0),
        ..QueueOptions::default()
    });
    queue.disregard_interrupt();
    batch(&mut rig, &mut queue, 5);
    let before = queue.stats().completion_doorbells;
    rig.emulator.apply(DeviceFault::FatalStatus);
    rig.until(|rig| rig.controller.stats().resets_completed == 1);
    // The queue itself has not been polled since.
    queue.heed_interrupt();
    assert_eq!(queue.stats().completion_doorbells, before);
    let completion = rig.run(&mut queue, bare(Operation::Flush, 1, 0, 0));
    assert_eq!(completion.result, Ok(()));
    assert_eq!(queue.stats().completion_doorbells - before, 1);
}

#[test]
fn a_device_finds_room_for_everything_that_it_was_given() {
    for entries in 2..=20_u16 {
        for few in 1..entries {
            let mut rig = Rig::new().ready();
            let mut queue = rig.open_with(QueueOptions {
                entries,
                ..QueueOptions::default()
            });
            // What is taken first is not acknowledged at once; all slots are used then.
            for _ in 0..3 {
                batch(&mut rig, &mut queue, usize::from(few));
                batch(&mut rig, &mut queue, usize::from(entries) - 1);
            }
        }
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
    // One for each submission, and one for 128 completions.
    assert_eq!(registers[0], 1000 + 1000 / 128);
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
