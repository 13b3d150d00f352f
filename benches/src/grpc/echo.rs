//! The bare echo: the same messages, codec and HTTP/2 settings as Lodestore, a pinned thread that
//! polls its sockets while it is busy, and answers from memory that never changes.

use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll, ready};
use std::thread::JoinHandle;

use anyhow::{Context as _, anyhow};
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
use rustix::thread::{Pid, gettid};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;
use tokio::task::spawn_local;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use super::pin_this_thread;

/// The echo's thread.
#[derive(Debug)]
pub(super) struct Echo {
    address: SocketAddr,
    thread_id: Pid,
    pace: watch::Sender<Pace>,
    thread: JoinHandle<anyhow::Result<()>>,
}

/// Whether the echo's thread sleeps when it has nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// It does.
    Sleeping,
    /// It looks at its sockets again and again, as a core does while it has work.
    BusyPolling,
}

impl Echo {
    /// Starts it on `cpu`, asleep.
    pub(super) fn start(cpu: Option<usize>) -> anyhow::Result<Self> {
        let listener = StdListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (pace, paces) = watch::channel(Pace::Sleeping);
        let (told, id) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("echo".to_owned())
            .spawn(move || {
                told.send(gettid())?;
                serve(listener, cpu, paces)
            })?;
        Ok(Self {
            address,
            thread_id: id.recv()?,
            pace,
            thread,
        })
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) const fn thread_id(&self) -> Pid {
        self.thread_id
    }

    pub(super) fn set_pace(&self, pace: Pace) {
        self.pace.send_replace(pace);
    }

    /// Ends the thread.
    pub(super) fn stop(self) -> anyhow::Result<()> {
        drop(self.pace);
        self.thread
            .join()
            .map_err(|_| anyhow!("the echo has panicked"))?
    }
}

fn serve(
    listener: StdListener,
    cpu: Option<usize>,
    paces: watch::Receiver<Pace>,
) -> anyhow::Result<()> {
    pin_this_thread(cpu)?;
    let runtime = Builder::new_current_thread()
        .enable_all()
        .event_interval(EVENT_INTERVAL)
        .build_local(LocalOptions::default())?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        spawn_local(accept(listener));
        spawn_local(poll(paces)).await.context("the poller's task")
    })
}

/// Keeps the runtime turning while the pace asks for it; ends with the sender.
async fn poll(mut paces: watch::Receiver<Pace>) {
    loop {
        let pace = *paces.borrow_and_update();
        match pace {
            Pace::Sleeping => {
                if paces.changed().await.is_err() {
                    return;
                }
            }
            Pace::BusyPolling => match paces.has_changed() {
                Ok(_) => tokio::task::yield_now().await,
                Err(_) => return,
            },
        }
    }
}

async fn accept(listener: TcpListener) {
    let blocks = BlockServiceServer::new(Answers::new())
        .max_decoding_message_size(MESSAGE_LENGTH_MAX_BYTES)
        .max_encoding_message_size(MESSAGE_LENGTH_MAX_BYTES);
    let routes = Routes::new(blocks)
        .add_service(InfoServiceServer::new(Answers::new()))
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
}

impl Answers {
    fn new() -> Self {
        Self {
            data: Bytes::from(vec![0xa5; CHUNK_BYTES]),
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
        let data = part(&self.data, u64::from(request.into_inner().length_bytes));
        Ok(Response::new(ReadResponse { data }))
    }

    async fn io(
        &self,
        request: Request<Streaming<IoRequest>>,
    ) -> Result<Response<EchoStream>, Status> {
        Ok(Response::new(EchoStream {
            inbound: request.into_inner(),
            data: self.data.clone(),
        }))
    }

    async fn read_stream(
        &self,
        request: Request<ReadStreamRequest>,
    ) -> Result<Response<Chunks>, Status> {
        Ok(Response::new(Chunks {
            data: self.data.clone(),
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
    data: Bytes,
}

impl Stream for EchoStream {
    type Item = Result<IoResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let request = match ready!(Pin::new(&mut self.inbound).poll_next(context)) {
            Some(Ok(request)) => request,
            Some(Err(status)) => return Poll::Ready(Some(Err(status))),
            None => return Poll::Ready(None),
        };
        let result = match request.operation {
            Some(Operation::Read(read)) => {
                Outcome::Data(part(&self.data, u64::from(read.length_bytes)))
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
    data: Bytes,
    left_bytes: u64,
}

impl Stream for Chunks {
    type Item = Result<ReadStreamResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.left_bytes == 0 {
            return Poll::Ready(None);
        }
        let data = part(&self.data, self.left_bytes);
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
