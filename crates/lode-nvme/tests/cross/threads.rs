//! Queues on threads of their own, their controller on another, resets in between.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use lode_block::{BlockDevice, Completion, ErrorKind, Operation};
use lode_nvme::ControllerState;
use lode_nvme_emu::DeviceFault;
use lode_units::{Clock, Instant, MonotonicClock};

use crate::rig::{Queue, Rig, RigSpec, bare, transfer};
use lode_bus::DmaSpan;

const REQUESTS: u64 = 20_000;
const RESETS: u64 = 20;

/// Sends reads until `REQUESTS` of them succeeded; returns how many had to be repeated.
fn traffic(mut queue: Queue, data: DmaSpan, clock: MonotonicClock, done: &AtomicU64) -> u64 {
    let mut completions: Vec<Completion> = Vec::with_capacity(64);
    let mut fine = 0;
    let mut retried = 0;
    let mut next = 0;
    while fine < REQUESTS {
        while queue.in_flight() < 16 {
            let request = transfer(Operation::Read, next, next % 64, 1, data);
            if queue.submit(request).is_err() {
                break;
            }
            next += 1;
        }
        queue.kick();
        completions.clear();
        if queue.poll(clock.now(), &mut completions) == 0 {
            thread::yield_now();
        }
        for completion in &completions {
            match completion.result {
                Ok(()) => {
                    fine += 1;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::Retry);
                    retried += 1;
                }
            }
        }
    }
    let stats = queue.stats();
    assert_eq!(
        stats.completed_total() + u64::try_from(queue.in_flight()).expect("few"),
        next
    );
    retried
}

#[test]
fn queues_on_other_threads_survive_resets_and_lose_nothing() {
    let mut spec = RigSpec::default();
    spec.driver.reset_attempts_max = u32::try_from(RESETS).expect("few") + 1;
    spec.driver.watch_interval = Duration::from_millis(1);
    let mut rig = spec.build();
    let clock = MonotonicClock::new();
    rig.controller.bring_up(&clock).expect("ready");
    rig.now = clock.now();
    let queues = [rig.open(), rig.open()];
    let data = rig.span(0, 512);
    let done = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    let retried = thread::scope(|scope| {
        let (done, is_over) = (&done, &is_over);
        let runners = queues.map(|queue| scope.spawn(move || traffic(queue, data, clock, done)));
        let controller = &mut rig.controller;
        let emulator = rig.emulator.clone();
        let driver = scope.spawn(move || {
            let mut applied = 0;
            while !is_over.load(Ordering::Relaxed) {
                let state = controller.poll(clock.now());
                assert_ne!(state, ControllerState::Gone, "{:?}", controller.failure());
                // A reset each time a share of the requests is done.
                let due = done.load(Ordering::Relaxed) / (2 * REQUESTS / RESETS);
                let has_recovered = controller.stats().resets_completed == applied;
                if applied < due && has_recovered && state == ControllerState::Ready {
                    emulator.apply(DeviceFault::FatalStatus);
                    applied += 1;
                }
                thread::yield_now();
            }
            controller.stats()
        });
        let retried: u64 = runners
            .into_iter()
            .map(|runner| runner.join().expect("no panic"))
            .sum();
        is_over.store(true, Ordering::Relaxed);
        let stats = driver.join().expect("no panic");
        assert!(stats.resets_completed + 2 >= RESETS, "{stats:?}");
        retried
    });
    assert!(retried > 0, "no reset met a request in flight");
}

#[test]
fn a_queue_may_outlive_its_controller_on_another_thread() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    queue
        .submit(bare(Operation::Flush, 1, 0, 0))
        .expect("a slot");
    let queue = thread::spawn(move || {
        drop(rig);
        queue
    });
    let mut queue = queue.join().expect("no panic");
    let mut completions = Vec::with_capacity(1);
    queue.poll(Instant::ZERO, &mut completions);
    assert_eq!(completions.len(), 1);
    assert!(
        completions[0]
            .result
            .is_err_and(|error| error.kind == ErrorKind::Gone)
    );
}
