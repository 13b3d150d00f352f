//! The gateway and the poller allocate nothing per request.

#![expect(unsafe_code, reason = "a global allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::poll_fn;
use std::time::Duration;

use lode_block::{BufferPool, BufferPoolSpec, Durability};
use lode_bus::{IovaSpace, PagePreference};
use lode_engine::{
    Completion, ControlRequest, DataCompletion, DataOperation, DataRequest, PoolIndex, Token,
    VolumeHandle,
};
use lode_reactor::gateway::{self, IoRequest, Session, take_buffer};
use lode_reactor::{Built, Core, CoreOptions, Hosted};
use lode_units::{CoreId, Instant, MonotonicClock};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct CountingAllocator;

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Ends each request at the next poll.
struct Echo {
    held: Vec<DataRequest>,
}

impl Hosted for Echo {
    fn submit(&mut self, request: DataRequest) -> Result<(), DataRequest> {
        self.held.push(request);
        Ok(())
    }

    fn control(&mut self, _token: Token, request: ControlRequest) -> Result<(), ControlRequest> {
        Err(request)
    }

    fn poll(&mut self, _now: Instant, completions: &mut Vec<Completion>) -> usize {
        let found = self.held.len();
        completions.extend(self.held.drain(..).map(|request| {
            Completion::Data(DataCompletion {
                token: request.token,
                result: Ok(Durability::None),
                buffer: request.buffer,
            })
        }));
        found
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

async fn request() -> IoRequest {
    IoRequest {
        volume: VolumeHandle::from_parts(PoolIndex(0), 0, 0),
        operation: DataOperation::Write,
        durability: Durability::None,
        offset_bytes: 0,
        length_bytes: 4096,
        buffer: Some(take_buffer(4096).await.expect("a buffer")),
    }
}

/// One request through a future and one through a session.
async fn round(session: &mut Session, mark: u64) {
    let answer = gateway::submit(request().await).expect("room").await;
    assert!(answer.result.is_ok());
    session.submit(mark, request().await).expect("room");
    let (answered, _answer) = poll_fn(|context| session.poll_answer(context)).await;
    assert_eq!(answered, mark);
}

#[test]
fn a_request_in_steady_state_allocates_nothing() {
    let options = CoreOptions::new(CoreId::new(0), MonotonicClock::new());
    let core = Core::spawn(options, |_context| {
        let spec = BufferPoolSpec {
            length_bytes: 4096,
            count: 4,
        };
        let held = Vec::with_capacity(16);
        let buffers = BufferPool::new(&[spec], &IovaSpace::new(), PagePreference::Ordinary)?;
        let hosted = Echo { held };
        Ok(Built { hosted, buffers })
    })
    .expect("a core");
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        core.spawn_local(move || async move {
            let mut session = Session::open(4).expect("room");
            for mark in 0..100 {
                round(&mut session, mark).await;
            }
            let before = ALLOCATIONS.get();
            for mark in 0..10_000 {
                round(&mut session, mark).await;
            }
            let counted = ALLOCATIONS.get() - before;
            let witness = Box::new(counted);
            assert!(
                ALLOCATIONS.get() > before + counted,
                "the counter counts: {witness}"
            );
            sender.send(counted).expect("the test waits");
        })
        .await
        .expect("the core runs");
        assert_eq!(receiver.await, Ok(0));
        core.shutdown(Duration::from_secs(1)).await;
    });
}
