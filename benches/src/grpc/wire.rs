//! The leanest client of an Io stream: one task, no table of requests, so that the server is what
//! limits the rate.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use anyhow::{Context as _, bail, ensure};
use futures_core::Stream;
use lode_api::v1::block_service_client::BlockServiceClient;
use lode_api::v1::io_request::Operation;
use lode_api::v1::io_response::Result as Outcome;
use lode_api::v1::{IoOpen, IoRead, IoRequest, IoResponse};
use lode_units::SeededRandom;
use tonic::Streaming;
use tonic::transport::Endpoint;

use super::client::{READ_BYTES, While, offset_bytes};
use super::volume;
use crate::rounds::Sample;

/// Keeps `depth` reads in flight on one Io stream of the server at `address`. Opening the stream
/// is not measured.
pub(super) async fn read(address: String, depth: usize) -> anyhow::Result<Sample> {
    let channel = Endpoint::from_shared(address)?
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .connect()
        .await?;
    let outbound = Outbound::new();
    let called = BlockServiceClient::new(channel).io(outbound.clone()).await;
    let mut answers = called?.into_inner();
    ensure!(
        matches!(next(&mut answers).await?.result, Some(Outcome::Opened(_))),
        "the volume was not opened"
    );
    let measuring = While::begin();
    outbound.ask(depth as u64);
    let mut operations = 0;
    while measuring.goes_on() {
        match next(&mut answers).await?.result {
            Some(Outcome::Data(data)) => ensure!(!data.is_empty(), "a read without data"),
            other => bail!("a read was answered by {other:?}"),
        }
        operations += 1;
        outbound.ask(1);
    }
    Ok(measuring.sample(operations))
}

/// The next answer; the thread looks for it without sleeping.
async fn next(answers: &mut Streaming<IoResponse>) -> anyhow::Result<IoResponse> {
    let mut message = std::pin::pin!(answers.message());
    loop {
        tokio::select! {
            biased;
            answer = &mut message => return answer?.context("the stream has ended"),
            () = tokio::task::yield_now() => {}
        }
    }
}

/// Messages on their way to the server: the opening, then as many reads as are asked for.
#[derive(Clone, Debug)]
struct Outbound {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    is_opened: bool,
    tag: u64,
    /// Reads asked for and not sent.
    due: u64,
    random: SeededRandom,
    waker: Option<Waker>,
}

impl Outbound {
    fn new() -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                is_opened: false,
                tag: 0,
                due: 0,
                random: SeededRandom::new(1),
                waker: None,
            })),
        }
    }

    fn ask(&self, count: u64) {
        let waker = self.with(|state| {
            state.due += count;
            state.waker.take()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn with<T>(&self, action: impl FnOnce(&mut State) -> T) -> T {
        action(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Stream for Outbound {
    type Item = IoRequest;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<IoRequest>> {
        self.with(|state| {
            let operation = if !state.is_opened {
                state.is_opened = true;
                let name = volume();
                Operation::Open(IoOpen {
                    pool: name.pool,
                    volume: name.volume,
                    credits: 0,
                })
            } else if state.due > 0 {
                state.due -= 1;
                Operation::Read(IoRead {
                    offset_bytes: offset_bytes(&mut state.random),
                    length_bytes: READ_BYTES,
                })
            } else {
                state.waker = Some(context.waker().clone());
                return Poll::Pending;
            };
            state.tag += 1;
            Poll::Ready(Some(IoRequest {
                tag: state.tag,
                operation: Some(operation),
            }))
        })
    }
}

const WINDOW_BYTES: u32 = 16 << 20;
const FRAME_BYTES_MAX: u32 = 1 << 20;
