//! A host whose requests end when the test says so, and cores that run it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lode_block::{BufferPool, BufferPoolSpec, Durability};
use lode_bus::{IovaSpace, PagePreference};
use lode_engine::{
    Completion, ControlReply, ControlRequest, DataCompletion, DataOperation, DataRequest,
    PoolIndex, Token, VolumeHandle,
};
use lode_reactor::gateway::IoRequest;
use lode_reactor::{Built, Core, CoreHandle, CoreOptions, Hosted};
use lode_units::{CoreId, Instant, MonotonicClock};

/// Holds requests until `release` allows them to end, at most `slots` at once.
#[derive(Debug)]
pub(crate) struct FakeHost {
    pub(crate) held: VecDeque<DataRequest>,
    pub(crate) controls: Vec<Token>,
    pub(crate) slots: usize,
    /// How many more requests may end; the test may raise it from its own thread.
    pub(crate) release: Arc<AtomicUsize>,
}

impl FakeHost {
    pub(crate) fn new(slots: usize, release: usize) -> Self {
        Self {
            held: VecDeque::with_capacity(slots),
            controls: Vec::new(),
            slots,
            release: Arc::new(AtomicUsize::new(release)),
        }
    }
}

impl Hosted for FakeHost {
    fn submit(&mut self, request: DataRequest) -> Result<(), DataRequest> {
        if self.held.len() >= self.slots {
            return Err(request);
        }
        self.held.push_back(request);
        Ok(())
    }

    fn control(&mut self, token: Token, request: ControlRequest) -> Result<(), ControlRequest> {
        assert!(matches!(request, ControlRequest::ListPools));
        self.controls.push(token);
        Ok(())
    }

    fn poll(&mut self, _now: Instant, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        for token in self.controls.drain(..) {
            let result = Ok(ControlReply::Done);
            let result = Box::new(result);
            completions.push(Completion::Control { token, result });
        }
        while self.release.load(Ordering::Acquire) > 0
            && let Some(request) = self.held.pop_front()
        {
            self.release.fetch_sub(1, Ordering::AcqRel);
            completions.push(Completion::Data(DataCompletion {
                token: request.token,
                result: Ok(Durability::None),
                buffer: request.buffer,
            }));
        }
        completions.len() - before
    }

    fn in_flight(&self) -> usize {
        self.held.len()
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn arm(&mut self) {}

    fn disarm(&mut self) {}
}

/// The buffers of a test core: two of 4 KiB and one of 64 KiB.
pub(crate) fn buffers() -> BufferPool {
    let specs = [(4096, 2), (65536, 1)].map(|(length_bytes, count)| BufferPoolSpec {
        length_bytes,
        count,
    });
    BufferPool::new(&specs, &IovaSpace::new(), PagePreference::Ordinary).expect("memory")
}

pub(crate) fn options() -> CoreOptions {
    CoreOptions::new(CoreId::new(0), MonotonicClock::new())
}

pub(crate) fn spawn(options: CoreOptions, host: FakeHost) -> CoreHandle<FakeHost> {
    Core::spawn(options, move |_context| {
        Ok(Built {
            hosted: host,
            buffers: buffers(),
        })
    })
    .expect("a core")
}

pub(crate) fn flush() -> IoRequest {
    IoRequest {
        volume: VolumeHandle::from_parts(PoolIndex(0), 0, 0),
        operation: DataOperation::Flush,
        durability: Durability::None,
        offset_bytes: 0,
        length_bytes: 0,
        buffer: None,
    }
}

/// Runs a test's future on a runtime of its own, with a bound on how long it may take before it
/// counts as stuck.
pub(crate) fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(STUCK_AFTER, future)
            .await
            .expect("the test makes progress")
    })
}

/// Runs `make`'s future on the core and returns its result.
pub(crate) async fn on_core<R: Send + 'static, F: Future<Output = R> + 'static>(
    core: &CoreHandle<FakeHost>,
    make: impl FnOnce() -> F + Send + 'static,
) -> R {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    core.spawn_local(|| async move {
        let result = make().await;
        assert!(sender.send(result).is_ok(), "the test waits");
    })
    .await
    .expect("the core runs");
    receiver.await.expect("the task on the core ended well")
}

const STUCK_AFTER: std::time::Duration = std::time::Duration::from_secs(120);
