//! Sleep and wake.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use futures_util::stream::{FuturesUnordered, StreamExt};
use lode_block::Durability;
use lode_engine::{Completion, ControlRequest, DataCompletion, DataRequest, Token};
use lode_reactor::{Built, Core, CoreHandle, CoreOptions, Hosted, PollMode, Signal, gateway};
use lode_units::Instant;

use crate::fake::{FakeHost, buffers, flush, on_core, options, run, spawn};

async fn until_asleep(core: &CoreHandle<FakeHost>, sleeps: u64) {
    while core.stats().sleeps.read() < sleeps {
        tokio::task::yield_now().await;
    }
}

/// Turns of a core while the test's thread does a fixed amount of other work.
fn turns_meanwhile(core: &CoreHandle<FakeHost>) -> u64 {
    let before = core.stats().polls.read();
    for _ in 0..20_000 {
        std::thread::yield_now();
    }
    core.stats().polls.read() - before
}

#[test]
fn an_idle_core_polls_no_more_and_one_that_never_sleeps_does() {
    run(async {
        let idle = spawn(options(), FakeHost::new(8, usize::MAX));
        until_asleep(&idle, 1).await;
        assert_eq!(turns_meanwhile(&idle), 0);

        let mut always = options();
        always.poll = PollMode::Always;
        let always = spawn(always, FakeHost::new(8, usize::MAX));
        assert!(turns_meanwhile(&always) > 0);
        assert_eq!(always.stats().sleeps.read(), 0);
    });
}

#[test]
fn a_sleeping_core_wakes_for_a_request_and_sleeps_again() {
    run(async {
        let core = spawn(options(), FakeHost::new(8, usize::MAX));
        for round in 1..20 {
            until_asleep(&core, round).await;
            let answer = on_core(&core, || async {
                gateway::submit(flush()).expect("room").await.result
            });
            assert_eq!(answer.await, Ok(Durability::None));
        }
        assert!(core.stats().wake_latency.snapshot().count() > 0);
    });
}

/// A host with a deadline, polled for nothing else.
struct Alarm {
    at: Instant,
    rang: Arc<AtomicBool>,
}

impl Hosted for Alarm {
    fn submit(&mut self, request: DataRequest) -> Result<(), DataRequest> {
        Err(request)
    }

    fn control(&mut self, _token: Token, request: ControlRequest) -> Result<(), ControlRequest> {
        Err(request)
    }

    fn poll(&mut self, now: Instant, _completions: &mut Vec<Completion>) -> usize {
        if now >= self.at {
            self.rang.store(true, Ordering::Release);
            self.at = Instant::FAR_FUTURE;
        }
        0
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn next_deadline(&self) -> Option<Instant> {
        (self.at < Instant::FAR_FUTURE).then_some(self.at)
    }

    fn arm(&mut self) {}

    fn disarm(&mut self) {}
}

#[test]
fn a_sleeping_core_wakes_for_the_hosts_deadline() {
    run(async {
        let rang = Arc::new(AtomicBool::new(false));
        let core = {
            let rang = Arc::clone(&rang);
            Core::spawn(options(), move |_context| {
                let at = Instant::from_nanos(20_000_000);
                Ok(Built {
                    hosted: Alarm { at, rang },
                    buffers: buffers(),
                })
            })
        };
        let core = core.expect("a core");
        while !rang.load(Ordering::Acquire) {
            tokio::task::yield_now().await;
        }
        assert!(core.stats().sleeps.read() > 0, "it slept meanwhile");
    });
}

/// A host whose device has an interrupt, routed into the core's signal.
struct Interrupting {
    is_fired: Arc<AtomicBool>,
    is_armed: Arc<AtomicBool>,
    found: Arc<AtomicBool>,
}

impl Hosted for Interrupting {
    fn submit(&mut self, request: DataRequest) -> Result<(), DataRequest> {
        Err(request)
    }

    fn control(&mut self, _token: Token, request: ControlRequest) -> Result<(), ControlRequest> {
        Err(request)
    }

    fn poll(&mut self, _now: Instant, _completions: &mut Vec<Completion>) -> usize {
        if self.is_fired.swap(false, Ordering::AcqRel) {
            self.found.store(true, Ordering::Release);
            return 1;
        }
        0
    }

    fn in_flight(&self) -> usize {
        1
    }

    fn needs_polling(&self) -> bool {
        false
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn arm(&mut self) {
        self.is_armed.store(true, Ordering::SeqCst);
    }

    fn disarm(&mut self) {
        self.is_armed.store(false, Ordering::SeqCst);
    }
}

/// Has the device fire `rounds` times, each time when the core sleeps; with or without something
/// to find.
async fn interrupt(options: CoreOptions, rounds: u64, finds: bool) -> CoreHandle<Interrupting> {
    let flags: [Arc<AtomicBool>; 3] = Default::default();
    let [is_fired, is_armed, found] = flags.clone();
    let host = Interrupting {
        is_fired,
        is_armed,
        found,
    };
    let core = Core::spawn(options, move |_context| {
        Ok(Built {
            hosted: host,
            buffers: buffers(),
        })
    });
    let core = core.expect("a core");
    let [is_fired, is_armed, found] = flags;
    for round in 1..=rounds {
        while core.stats().sleeps.read() < round || !is_armed.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
        is_fired.store(finds, Ordering::Release);
        // As an interrupt does: without a look at whether anybody sleeps.
        rustix::io::write(&**core.signal(), &1_u64.to_ne_bytes()).expect("counted");
        while finds && !found.swap(false, Ordering::AcqRel) {
            tokio::task::yield_now().await;
        }
    }
    core
}

#[test]
fn a_core_that_sleeps_with_a_command_in_flight_wakes_for_its_interrupt_every_time() {
    run(async {
        for poll in [PollMode::Adaptive, PollMode::Interrupt] {
            let options = CoreOptions { poll, ..options() };
            let core = interrupt(options, 20, true).await;
            assert!(core.stats().wakes_by_signal.read() >= 20);
        }
    });
}

#[test]
fn a_wake_up_that_finds_nothing_is_counted_as_spurious() {
    run(async {
        let core = interrupt(options(), 5, false).await;
        while core.stats().sleeps.read() < 6 {
            tokio::task::yield_now().await;
        }
        assert_eq!(core.stats().wakes_spurious.read(), 5);
        assert_eq!(core.stats().wakes_by_signal.read(), 5);
    });
}

#[test]
fn a_core_whose_command_in_flight_wakes_nobody_does_not_sleep() {
    run(async {
        for poll in [PollMode::Adaptive, PollMode::Interrupt] {
            let core = spawn(CoreOptions { poll, ..options() }, FakeHost::new(8, 0));
            let release = core.call(|host| Arc::clone(&host.release)).await;
            let release = release.expect("the core runs");
            let answer = on_core(&core, || async {
                gateway::submit(flush()).expect("room").await.result
            });
            let looks = async {
                while core.call(|host| host.held.len()).await.expect("a core") == 0 {}
                let before = core.stats().sleeps.read();
                assert!(turns_meanwhile(&core) > 0);
                assert_eq!(core.stats().sleeps.read(), before);
                release.fetch_add(1, Ordering::AcqRel);
            };
            let (answer, ()) = tokio::join!(answer, looks);
            assert_eq!(answer, Ok(Durability::None));
        }
    });
}

/// A device on a thread of its own: takes tokens, gives them back, signals when asked to.
struct RemoteDevice {
    submitted: ArrayQueue<Token>,
    completed: ArrayQueue<Token>,
    is_over: AtomicBool,
}

impl RemoteDevice {
    fn work(&self, signal: &Signal) {
        while !self.is_over.load(Ordering::Acquire) {
            match self.submitted.pop() {
                Some(token) => {
                    self.completed
                        .push(token)
                        .expect("as long as the other queue");
                    signal.notify();
                }
                None => std::thread::yield_now(),
            }
        }
    }
}

/// The core's end of the remote device.
struct RemoteHost {
    device: Arc<RemoteDevice>,
    in_flight: usize,
}

impl Hosted for RemoteHost {
    fn submit(&mut self, request: DataRequest) -> Result<(), DataRequest> {
        if self.device.submitted.push(request.token).is_err() {
            return Err(request);
        }
        self.in_flight += 1;
        Ok(())
    }

    fn control(&mut self, _token: Token, request: ControlRequest) -> Result<(), ControlRequest> {
        Err(request)
    }

    fn poll(&mut self, _now: Instant, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        while let Some(token) = self.device.completed.pop() {
            completions.push(Completion::Data(DataCompletion {
                token,
                result: Ok(Durability::None),
                buffer: None,
            }));
        }
        let found = completions.len() - before;
        self.in_flight -= found;
        found
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn needs_polling(&self) -> bool {
        false
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn arm(&mut self) {}

    fn disarm(&mut self) {}
}

/// Sends `count` requests, `depth` at a time, through a core that sleeps whenever a poll finds
/// nothing. A lost wake-up leaves it asleep and the test stuck.
fn stress(count: usize, depth: usize) -> u64 {
    let device = Arc::new(RemoteDevice {
        submitted: ArrayQueue::new(depth),
        completed: ArrayQueue::new(depth),
        is_over: AtomicBool::new(false),
    });
    let options = CoreOptions {
        poll: PollMode::Interrupt,
        ..options()
    };
    let host = RemoteHost {
        device: Arc::clone(&device),
        in_flight: 0,
    };
    let core = Core::spawn(options, move |_context| {
        Ok(Built {
            hosted: host,
            buffers: buffers(),
        })
    })
    .expect("a core");
    let signal = Arc::clone(core.signal());
    let worker = {
        let device = Arc::clone(&device);
        std::thread::spawn(move || device.work(&signal))
    };
    let (sender, receiver) = tokio::sync::oneshot::channel();
    run(async {
        core.spawn_local(move || async move {
            let mut under_way = FuturesUnordered::new();
            for _ in 0..count {
                if under_way.len() == depth {
                    under_way.next().await;
                }
                under_way.push(gateway::submit(flush()).expect("room"));
            }
            while under_way.next().await.is_some() {}
            sender.send(()).expect("the test waits");
        })
        .await
        .expect("the core runs");
        receiver.await.expect("every request is answered");
        core.shutdown(Duration::from_secs(1)).await;
    });
    device.is_over.store(true, Ordering::Release);
    worker.join().expect("the device ends");
    core.stats().sleeps.read()
}

#[test]
fn a_million_requests_of_a_device_on_another_thread_lose_no_wake_up() {
    let sleeps = stress(50_000, 1) + stress(950_000, 16);
    assert!(
        sleeps > 1000,
        "the core went to sleep often enough to prove something: {sleeps}"
    );
}
