//! The bare echo: the same messages, codec and HTTP/2 settings as Lodestore, a pinned thread that
//! polls its sockets while requests come, and answers from memory that never changes.

use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, ready};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::anyhow;
use bytes::Bytes;
use futures_core::Stream;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use lode_api::limits::MESSAGE_LENGTH_MAX_BYTES;
use lode_api::v1::block_service_server::{BlockService, BlockServiceServer};
use lode_api::v1::info_service_server::{InfoService, InfoServiceServer};
use lode_api::v1::io_request::Operation;
use lode_api::v1::io_response::Result as Outcome;
use lode_api::v1::read_stream_response::Content;
use lode_api::v1::write_stream_request::Content as Sent;
use lode_api::v1::{
    CompareAndWriteRequest, CompareAndWriteResponse, DiscardRequest, DiscardResponse, FlushRequest,
    FlushResponse, GetInfoRequest, GetInfoResponse, IoOpened, IoRequest, IoResponse, Limits,
    ReadRequest, ReadResponse, ReadStreamRequest, ReadStreamResponse, WriteRequest, WriteResponse,
    WriteStreamRequest, WriteStreamResponse, WriteZeroesRequest, WriteZeroesResponse,
};
use lode_server::http2_builder;
use lode_units::{Clock, MonotonicClock};
use rustix::thread::{Pid, gettid};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{Notify, oneshot};
use tokio::task::spawn_local;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use super::pin_this_thread;

/// The echo's thread.
#[derive(Debug)]
pub(super) struct Echo {
    address: SocketAddr,
    thread_id: Pid,
    /// Dropped, it ends the thread.
    running: oneshot::Sender<()>,
    thread: JoinHandle<anyhow::Result<()>>,
}

/// When the echo's thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// Whenever it has nothing to do.
    Sleeping,
    /// When nothing came for as long as a core waits before it sleeps.
    Adaptive,
}

impl Echo {
    /// Starts it on `cpu`.
    pub(super) fn start(cpu: Option<usize>, pace: Pace) -> anyhow::Result<Self> {
        let listener = StdListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (running, stopped) = oneshot::channel();
        let (told, id) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("echo".to_owned())
            .spawn(move || {
                told.send(gettid())?;
                serve(listener, cpu, pace, stopped)
            })?;
        Ok(Self {
            address,
            thread_id: id.recv()?,
            running,
            thread,
        })
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) const fn thread_id(&self) -> Pid {
        self.thread_id
    }

    /// Ends the thread.
    pub(super) fn stop(self) -> anyhow::Result<()> {
        drop(self.running);
        self.thread
            .join()
            .map_err(|_| anyhow!("the echo has panicked"))?
    }
}

fn serve(
    listener: StdListener,
    cpu: Option<usize>,
    pace: Pace,
    stopped: oneshot::Receiver<()>,
) -> anyhow::Result<()> {
    pin_this_thread(cpu)?;
    let runtime = Builder::new_current_thread()
        .enable_all()
        .event_interval(EVENT_INTERVAL)
        .build_local(LocalOptions::default())?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        let activity = Arc::new(Activity::default());
        spawn_local(accept(listener, Arc::clone(&activity)));
        if pace == Pace::Adaptive {
            spawn_local(poll(activity));
        }
        // Ends with an error when the sender is dropped, which is how the thread is stopped.
        let _stopped = stopped.await;
        Ok(())
    })
}

/// What the poller knows of the requests.
#[derive(Debug, Default)]
struct Activity {
    served: AtomicU64,
    is_asleep: AtomicBool,
    woken: Notify,
}

impl Activity {
    fn note(&self) {
        self.served.fetch_add(1, Ordering::Relaxed);
        // Both sides run on one thread: nothing comes between this and the poller's own steps.
        if self.is_asleep.load(Ordering::Relaxed) {
            self.is_asleep.store(false, Ordering::Relaxed);
            self.woken.notify_one();
        }
    }
}

/// Keeps the runtime turning, and so looking at its sockets, until nothing came for a while.
async fn poll(activity: Arc<Activity>) {
    let clock = MonotonicClock::new();
    let (mut seen, mut last_active) = (0, clock.now());
    loop {
        let (served, now) = (activity.served.load(Ordering::Relaxed), clock.now());
        if served != seen {
            (seen, last_active) = (served, now);
        }
        if now.saturating_duration_since(last_active) < IDLE_BUDGET {
            tokio::task::yield_now().await;
        } else {
            activity.is_asleep.store(true, Ordering::Relaxed);
            activity.woken.notified().await;
        }
    }
}

async fn accept(listener: TcpListener, activity: Arc<Activity>) {
    let answers = Answers::new(activity);
    let blocks = BlockServiceServer::new(answers.clone())
        .max_decoding_message_size(MESSAGE_LENGTH_MAX_BYTES)
        .max_encoding_message_size(MESSAGE_LENGTH_MAX_BYTES);
    let routes = Routes::new(blocks)
        .add_service(InfoServiceServer::new(answers))
        .prepare();
    while let Ok((socket, _peer)) = listener.accept().await {
        if socket.set_nodelay(true).is_err() {
            continue;
        }
        let service = TowerToHyperService::new(routes.clone());
        spawn_local(http2_builder().serve_connection(TokioIo::new(socket), service));
    }
}

/// Answers everything from one buffer.
#[derive(Clone, Debug)]
struct Answers {
    data: Bytes,
    activity: Arc<Activity>,
}

impl Answers {
    fn new(activity: Arc<Activity>) -> Self {
        Self {
            data: Bytes::from(vec![0xa5; CHUNK_BYTES]),
            activity,
        }
    }
}

#[tonic::async_trait]
impl InfoService for Answers {
    async fn get_info(
        &self,
        _request: Request<GetInfoRequest>,
    ) -> Result<Response<GetInfoResponse>, Status> {
        Ok(Response::new(GetInfoResponse {
            limits: Some(Limits::of_this_build()),
            ..GetInfoResponse::default()
        }))
    }
}

#[tonic::async_trait]
impl BlockService for Answers {
    type IoStream = EchoStream;
    type ReadStreamStream = Chunks;

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<ReadResponse>, Status> {
        self.activity.note();
        let data = part(&self.data, u64::from(request.into_inner().length_bytes));
        Ok(Response::new(ReadResponse { data }))
    }

    async fn io(
        &self,
        request: Request<Streaming<IoRequest>>,
    ) -> Result<Response<EchoStream>, Status> {
        Ok(Response::new(EchoStream {
            inbound: request.into_inner(),
            answers: self.clone(),
        }))
    }

    async fn read_stream(
        &self,
        request: Request<ReadStreamRequest>,
    ) -> Result<Response<Chunks>, Status> {
        Ok(Response::new(Chunks {
            answers: self.clone(),
            left_bytes: request.into_inner().length_bytes.unwrap_or_default(),
        }))
    }

    async fn write_stream(
        &self,
        request: Request<Streaming<WriteStreamRequest>>,
    ) -> Result<Response<WriteStreamResponse>, Status> {
        let mut inbound = request.into_inner();
        let mut summary = WriteStreamResponse::default();
        while let Some(message) = inbound.message().await? {
            self.activity.note();
            if let Some(Sent::Data(data)) = message.content {
                summary.data_bytes += data.len() as u64;
            }
        }
        Ok(Response::new(summary))
    }

    async fn write(&self, _: Request<WriteRequest>) -> Result<Response<WriteResponse>, Status> {
        Err(unasked())
    }

    async fn flush(&self, _: Request<FlushRequest>) -> Result<Response<FlushResponse>, Status> {
        Err(unasked())
    }

    async fn discard(
        &self,
        _: Request<DiscardRequest>,
    ) -> Result<Response<DiscardResponse>, Status> {
        Err(unasked())
    }

    async fn write_zeroes(
        &self,
        _: Request<WriteZeroesRequest>,
    ) -> Result<Response<WriteZeroesResponse>, Status> {
        Err(unasked())
    }

    async fn compare_and_write(
        &self,
        _: Request<CompareAndWriteRequest>,
    ) -> Result<Response<CompareAndWriteResponse>, Status> {
        Err(unasked())
    }
}

fn unasked() -> Status {
    Status::unimplemented("no benchmark asks for this")
}

/// As much of `data` as was asked for and is there.
fn part(data: &Bytes, length_bytes: u64) -> Bytes {
    let length = usize::try_from(length_bytes).unwrap_or(usize::MAX);
    data.slice(..length.min(data.len()))
}

/// Answers each request of an Io stream at once.
#[derive(Debug)]
struct EchoStream {
    inbound: Streaming<IoRequest>,
    answers: Answers,
}

impl Stream for EchoStream {
    type Item = Result<IoResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let request = match ready!(Pin::new(&mut self.inbound).poll_next(context)) {
            Some(Ok(request)) => request,
            Some(Err(status)) => return Poll::Ready(Some(Err(status))),
            None => return Poll::Ready(None),
        };
        self.answers.activity.note();
        let result = match request.operation {
            Some(Operation::Read(read)) => {
                Outcome::Data(part(&self.answers.data, u64::from(read.length_bytes)))
            }
            Some(Operation::Open(_)) => Outcome::Opened(IoOpened {
                credits: CREDITS,
                size_bytes: super::SPAN_BYTES,
                block_size_bytes: 4096,
                durability: 0,
            }),
            _ => return Poll::Ready(Some(Err(unasked()))),
        };
        Poll::Ready(Some(Ok(IoResponse {
            tag: request.tag,
            result: Some(result),
        })))
    }
}

/// The same chunk until the range is covered.
#[derive(Debug)]
struct Chunks {
    answers: Answers,
    left_bytes: u64,
}

impl Stream for Chunks {
    type Item = Result<ReadStreamResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.left_bytes == 0 {
            return Poll::Ready(None);
        }
        self.answers.activity.note();
        let data = part(&self.answers.data, self.left_bytes);
        self.left_bytes -= data.len() as u64;
        let content = Some(Content::Data(data));
        Poll::Ready(Some(Ok(ReadStreamResponse { content })))
    }
}

/// As long as the chunks of Lodestore.
const CHUNK_BYTES: usize = 256 << 10;
const CREDITS: u32 = 256;
/// As a core has it.
const EVENT_INTERVAL: u32 = 31;
const IDLE_BUDGET: Duration = Duration::from_micros(200);
