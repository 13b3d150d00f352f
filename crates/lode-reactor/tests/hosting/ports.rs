//! Letters between cores that sleep whenever a poll finds nothing.

use std::time::Duration;

use lode_engine::{Completion, ControlRequest, DataRequest, Token};
use lode_reactor::{Built, Core, CoreHandle, CoreOptions, CorePort, Hosted, PollMode};
use lode_units::{CoreId, Instant};
use tokio::sync::oneshot;

use crate::fake::{buffers, options, run};

/// Answers every letter with the next number, `width` of them under way, until one is the last.
#[derive(Default)]
struct Correspondent {
    port: Option<CorePort<u64>>,
    last: u64,
    is_over: Option<oneshot::Sender<u64>>,
    received: u64,
}

impl Correspondent {
    fn begin(&mut self, width: u64) {
        let port = self.port.as_mut().expect("connected");
        for number in 1..=width {
            port.send(number).expect("room");
        }
        port.flush();
    }
}

impl Hosted for Correspondent {
    fn submit(&mut self, request: DataRequest) -> Result<(), DataRequest> {
        Err(request)
    }

    fn control(&mut self, _token: Token, request: ControlRequest) -> Result<(), ControlRequest> {
        Err(request)
    }

    fn poll(&mut self, _now: Instant, _completions: &mut Vec<Completion>) -> usize {
        let Some(port) = self.port.as_mut() else {
            return 0;
        };
        let mut found = 0;
        while let Some(number) = port.receive() {
            found += 1;
            self.received += 1;
            if self.received == self.last {
                let told = self.is_over.take().expect("over once");
                told.send(number).expect("the test waits");
            }
            port.send(number + 1).expect("room");
        }
        port.flush();
        found
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn arm(&mut self) {}

    fn disarm(&mut self) {}
}

fn spawn(core: u16) -> CoreHandle<Correspondent> {
    let options = CoreOptions {
        core: CoreId::new(core),
        poll: PollMode::Interrupt,
        ..options()
    };
    Core::spawn(options, |_context| {
        Ok(Built {
            hosted: Correspondent::default(),
            buffers: buffers(),
        })
    })
    .expect("a core")
}

/// Lets `width` letters go back and forth until one core has received `count`; a letter that is
/// lost to a sleeper leaves the test stuck. Returns how often that core slept.
fn correspond(width: u64, count: u64) -> u64 {
    run(async {
        let (first, second) = (spawn(0), spawn(1));
        let (port, other) = CorePort::pair(first.signal(), second.signal());
        let (sender, over) = oneshot::channel();
        let connected = second.call(move |host| {
            host.port = Some(other);
            host.last = count;
            host.is_over = Some(sender);
        });
        connected.await.expect("the core runs");
        let begun = first.call(move |host| {
            host.port = Some(port);
            host.begin(width);
        });
        begun.await.expect("the core runs");
        over.await.expect("every letter arrives");
        for core in [&first, &second] {
            core.shutdown(Duration::ZERO).await;
        }
        second.stats().sleeps.read()
    })
}

#[test]
fn no_letter_is_lost_to_a_core_that_sleeps() {
    let sleeps = correspond(1, 100_000) + correspond(16, 400_000);
    assert!(
        sleeps > 1000,
        "the core went to sleep often enough to prove something: {sleeps}"
    );
}
