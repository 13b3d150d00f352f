//! Queues on threads of their own, their controller on another, resets in between.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use lode_block::{BlockDevice, Completion, ErrorKind, Operation};
use lode_bus::DmaSpan;
use lode_nvme::ControllerState;
use lode_nvme_emu::{DeviceFault, Latency};
use lode_units::{Clock, Instant, MonotonicClock};

use crate::rig::{Queue, Rig, RigSpec, bare, transfer};

const RESETS: u64 = 20;
/// Requests that must succeed between two resets.
const REQUESTS_BETWEEN: u64 = 100;

/// What the threads tell each other.
#[derive(Default)]
struct Progress {
    done: AtomicU64,
    is_over: AtomicBool,
}

/// Sends reads until the test is over and all have ended; returns how many must be repeated.
fn traffic(mut queue: Queue, data: DmaSpan, clock: MonotonicClock, progress: &Progress) -> u64 {
    let mut completions: Vec<Completion> = Vec::with_capacity(64);
    let mut retried = 0;
    let mut next = 0;
    loop {
        let is_over = progress.is_over.load(Ordering::Relaxed);
        while !is_over && queue.in_flight() < 16 {
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
                    progress.done.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::Retry);
                    retried += 1;
                }
            }
        }
        if is_over && queue.in_flight() == 0 {
            break;
        }
    }
    assert_eq!(queue.stats().completed_total(), next);
    retried
}

/// Polls the controller and resets it each time that some requests have succeeded.
fn upset(rig: &mut Rig, clock: MonotonicClock, progress: &Progress) {
    let mut resets = 0;
    let mut due = REQUESTS_BETWEEN;
    let hopeless = clock.now() + Duration::from_secs(120);
    while !progress.is_over.load(Ordering::Relaxed) {
        let state = rig.controller.poll(clock.now());
        assert_ne!(state, ControllerState::Gone, "{:?}", rig.controller);
        assert!(clock.now() < hopeless, "no progress: {:?}", rig.controller);
        thread::yield_now();
        let done = progress.done.load(Ordering::Relaxed);
        if done < due || rig.controller.stats().resets_completed < resets {
            continue;
        }
        due = done + REQUESTS_BETWEEN;
        if resets == RESETS {
            progress.is_over.store(true, Ordering::Relaxed);
        } else {
            rig.emulator.apply(DeviceFault::FatalStatus);
            resets += 1;
        }
    }
}

#[test]
fn queues_on_other_threads_survive_resets_and_lose_nothing() {
    let mut spec = RigSpec::default();
    // Commands take a while, so that every reset meets some.
    spec.emulator.latency = Latency::fixed(Duration::from_micros(500));
    spec.driver.reset_attempts_max = u32::try_from(RESETS).expect("few") + 1;
    spec.driver.watch_interval = Duration::from_millis(1);
    let mut rig = spec.build();
    let clock = MonotonicClock::new();
    rig.controller.bring_up(&clock).expect("ready");
    rig.now = clock.now();
    let queues = [rig.open(), rig.open()];
    let data = rig.span(0, 512);
    let progress = Progress::default();
    let retried = thread::scope(|scope| {
        let progress = &progress;
        let runners =
            queues.map(|queue| scope.spawn(move || traffic(queue, data, clock, progress)));
        upset(&mut rig, clock, progress);
        // What is in flight still needs a controller that is polled.
        while runners.iter().any(|runner| !runner.is_finished()) {
            rig.controller.poll(clock.now());
            thread::yield_now();
        }
        let ends = runners.map(|runner| runner.join().expect("no panic"));
        ends.iter().sum::<u64>()
    });
    assert_eq!(rig.controller.stats().resets_completed, RESETS);
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
