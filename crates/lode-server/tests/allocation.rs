//! A read of an Io stream allocates nothing for itself, from the connection to the shard and back.

#![expect(unsafe_code, reason = "a global allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use lode_api::v1::block_service_client::BlockServiceClient;
use lode_api::v1::io_request::Operation;
use lode_api::v1::{IoOpen, IoRead, IoRequest};
use lode_block::{BufferPool, BufferPoolSpec, Durability};
use lode_bus::{IovaSpace, PagePreference};
use lode_engine::{
    Completion, ControlReply, ControlRequest, DataCompletion, DataRequest, PoolIndex, Token,
    VolumeHandle, VolumeStatus,
};
use lode_extent::{SyncAttribute, VolumeId, VolumeInfo, VolumeLimits};
use lode_reactor::{Built, Core, CoreHandle, CoreOptions, Hosted, Listener};
use lode_server::{CreatePool, DeviceDetails, Managed, PoolManager, PoolManagerError, Server};
use lode_units::{BlockSize, CoreId, Instant, MonotonicClock};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

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

/// One endless volume whose requests end at the next poll.
#[derive(Default)]
struct Echo {
    held: Vec<DataRequest>,
    opened: Vec<Completion>,
}

impl Hosted for Echo {
    fn submit(&mut self, request: DataRequest) -> Result<(), DataRequest> {
        self.held.push(request);
        Ok(())
    }

    fn control(&mut self, token: Token, request: ControlRequest) -> Result<(), ControlRequest> {
        let reply = match request {
            ControlRequest::ListPools => ControlReply::Pools(Vec::new()),
            ControlRequest::OpenVolume { volume } => ControlReply::Volume(VolumeStatus {
                pool: "tank".into(),
                handle: VolumeHandle::from_parts(PoolIndex(0), 0, 0),
                info: VolumeInfo {
                    id: VolumeId::new(1),
                    name: volume.volume,
                    size_bytes: 1 << 40,
                    block_size: BlockSize::B4096,
                    sync: SyncAttribute::None,
                    limits: VolumeLimits::default(),
                    created_unix_seconds: 0,
                    allocated_bytes: 0,
                    is_damaged: false,
                },
            }),
            request => return Err(request),
        };
        let result = Ok(reply);
        let result = Box::new(result);
        self.opened.push(Completion::Control { token, result });
        Ok(())
    }

    fn poll(&mut self, _now: Instant, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        completions.append(&mut self.opened);
        completions.extend(self.held.drain(..).map(|request| {
            Completion::Data(DataCompletion {
                token: request.token,
                result: Ok(Durability::None),
                buffer: request.buffer,
            })
        }));
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

struct NoPools;

impl NoPools {
    fn refuse<T: Send + 'static>() -> Managed<T> {
        Box::pin(async { Err(PoolManagerError::Stopping) })
    }
}

impl PoolManager for NoPools {
    fn create(&self, _request: CreatePool) -> Managed<String> {
        Self::refuse()
    }

    fn import(&self, _devices: Vec<String>) -> Managed<String> {
        Self::refuse()
    }

    fn export(&self, _name: String) -> Managed<()> {
        Self::refuse()
    }

    fn pool_uuid(&self, _pool: &str) -> String {
        String::new()
    }

    fn device(&self, _name: &str) -> DeviceDetails {
        DeviceDetails::default()
    }
}

fn spawn(clock: MonotonicClock) -> CoreHandle<Echo> {
    Core::spawn(CoreOptions::new(CoreId::new(0), clock), |_context| {
        let spec = BufferPoolSpec {
            length_bytes: 4096,
            count: 64,
        };
        let buffers = BufferPool::new(&[spec], &IovaSpace::new(), PagePreference::Ordinary)?;
        let hosted = Echo::default();
        Ok(Built { hosted, buffers })
    })
    .expect("a core")
}

async fn allocations(core: &CoreHandle<Echo>) -> u64 {
    core.call(|_host| ALLOCATIONS.get())
        .await
        .expect("the core runs")
}

const DEPTH: usize = 32;
const READS: u64 = 20_000;

#[test]
fn a_read_of_an_io_stream_allocates_nothing_for_itself() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let counted = runtime.block_on(async {
        let clock = MonotonicClock::new();
        let core = spawn(clock);
        let server = Server::new(clock, 1, Arc::new(NoPools));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(server.serve(Listener::Tcp(listener), vec![core.clone()]));
        let channel = Endpoint::from_shared(format!("http://{address}"))
            .expect("an address")
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(16 << 20)
            .connect()
            .await
            .expect("it listens");

        let (requests, receiver) = mpsc::channel(DEPTH + 1);
        let open = Operation::Open(IoOpen {
            volume: "v".into(),
            ..IoOpen::default()
        });
        requests.send(message(0, open)).await.expect("room");
        let called = BlockServiceClient::new(channel)
            .io(ReceiverStream::new(receiver))
            .await;
        let mut answers = called.expect("open").into_inner();
        answers
            .message()
            .await
            .expect("no failure")
            .expect("opened");
        let mut sent = 0;
        let mut before = 0;
        for answered in 0..2 * READS {
            while sent < answered + DEPTH as u64 && sent < 2 * READS {
                requests
                    .send(message(sent + 1, read(sent)))
                    .await
                    .expect("room");
                sent += 1;
            }
            answers
                .message()
                .await
                .expect("no failure")
                .expect("an answer");
            if answered == READS {
                before = allocations(&core).await;
            }
        }
        allocations(&core).await - before
    });
    // What is left belongs to the connection's buffers and frames, not to requests.
    assert!(
        counted < READS / 100,
        "{counted} allocations in {READS} reads"
    );
}

fn message(tag: u64, operation: Operation) -> IoRequest {
    IoRequest {
        tag,
        operation: Some(operation),
    }
}

fn read(index: u64) -> Operation {
    Operation::Read(IoRead {
        offset_bytes: index * 4096,
        length_bytes: 4096,
    })
}
