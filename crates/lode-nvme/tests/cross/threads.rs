//! Queues on threads of their own, their controller on another: resets, hanging commands, removal.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use lode_block::{BlockDevice, Completion, ErrorKind, Operation};
use lode_bus::DmaSpan;
use lode_nvme::{ControllerState, Failure, QueueOptions};
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

/// A clock that moves only when every queue's thread has polled since: time does not run away from
/// a thread that the system holds up.
struct Pace {
    now_ns: AtomicU64,
    polls: [AtomicU64; 2],
    /// Commands of each queue that passed their deadline.
    late: [AtomicU64; 2],
}

impl Pace {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.now_ns.load(Ordering::Acquire))
    }

    /// A millisecond passes, and the controller is polled.
    fn step(&self, rig: &mut Rig, is_finished: impl Fn(usize) -> bool) {
        for (index, polls) in self.polls.iter().enumerate() {
            let before = polls.load(Ordering::Acquire);
            while polls.load(Ordering::Acquire) == before && !is_finished(index) {
                thread::yield_now();
            }
        }
        rig.now = self.now() + Duration::from_millis(1);
        self.now_ns.store(rig.now.as_nanos(), Ordering::Release);
        rig.controller.poll(rig.now);
    }
}

/// Sends reads until the device is gone and all have ended; returns how many ended with that.
fn traffic_to_the_end(mut queue: Queue, data: DmaSpan, pace: &Pace, index: usize) -> u64 {
    let mut completions: Vec<Completion> = Vec::with_capacity(64);
    let (mut accepted, mut gone, mut is_over) = (0, 0, false);
    while !is_over || queue.in_flight() > 0 {
        while !is_over && queue.in_flight() < 16 {
            let request = transfer(Operation::Read, accepted, accepted % 64, 1, data);
            is_over |= queue.submit(request).is_err();
            accepted += u64::from(!is_over);
        }
        queue.kick();
        completions.clear();
        queue.poll(pace.now(), &mut completions);
        pace.polls[index].fetch_add(1, Ordering::Release);
        thread::yield_now();
        for error in completions.iter().filter_map(|end| end.result.err()) {
            match error.kind {
                ErrorKind::TimedOut => {
                    pace.late[index].fetch_add(1, Ordering::Release);
                }
                ErrorKind::Gone => {
                    gone += 1;
                    is_over = true;
                }
                other => assert_eq!(other, ErrorKind::Retry),
            }
        }
    }
    assert_eq!(queue.stats().completed_total(), accepted, "each once");
    gone
}

#[test]
fn queues_on_other_threads_outlast_hanging_commands_and_end_with_the_device() {
    // Short deadlines: each of their milliseconds costs a turn of three threads.
    let mut spec = RigSpec::default();
    spec.driver.watch_interval = Duration::from_millis(10);
    spec.driver.all_ones_tolerance = Duration::from_millis(20);
    let mut rig = spec.build().ready();
    let options = QueueOptions {
        command_timeout: Duration::from_millis(100),
        abort_timeout: Duration::from_millis(50),
        ..QueueOptions::default()
    };
    let queues = [rig.open_with(options), rig.open_with(options)];
    for queue in [1, 2] {
        rig.fault(&format!(
            "queue={queue} opcode=read every=100 count=4 -> drop"
        ));
    }
    let data = rig.span(0, 512);
    let pace = Pace {
        now_ns: AtomicU64::new(rig.now.as_nanos()),
        polls: Default::default(),
        late: Default::default(),
    };
    let gone = thread::scope(|scope| {
        let pace = &pace;
        let mut index = 0;
        let runners = queues.map(|queue| {
            let own = index;
            index += 1;
            scope.spawn(move || traffic_to_the_end(queue, data, pace, own))
        });
        let late = |index: usize| pace.late[index].load(Ordering::Acquire);
        // Three seconds of the rig's time are more than every deadline together.
        let hopeless = pace.now() + Duration::from_secs(3);
        while late(0).min(late(1)) < 4 {
            pace.step(&mut rig, |index| runners[index].is_finished());
            assert!(pace.now() < hopeless, "commands hang: {:?}", rig.controller);
        }
        rig.emulator.apply(DeviceFault::Remove);
        while runners.iter().any(|runner| !runner.is_finished()) {
            pace.step(&mut rig, |index| runners[index].is_finished());
        }
        runners.map(|runner| runner.join().expect("no panic"))
    });
    assert!(gone.iter().all(|gone| *gone > 0), "{gone:?}");
    assert_eq!(rig.controller.state(), ControllerState::Gone);
    assert_eq!(rig.controller.failure(), Some(Failure::Removed));
    assert_eq!(rig.controller.stats().aborts_sent, 8);
    assert_eq!(rig.controller.stats().resets, 0);
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
