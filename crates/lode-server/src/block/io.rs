//! One Io stream: takes requests in, submits them, and gives answers out in the order in which
//! they end.
//!
//! It is one object and one task, the connection's: it holds the call's inbound messages, a
//! session of the gateway, and at most one request that waits for a buffer.
//!
//! Invariants:
//! 1. A request is answered exactly once under its tag; a wrong one is answered by an error and
//!    leaves the others alone.
//! 2. Pending is returned only when in one and the same pass every source was pending.
//! 3. When the client vanishes the stream is dropped: what is under way ends on its own and its
//!    buffers go back.

mod open;
mod outstanding;
mod parse;

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use lode_api::v1::io_response::Result as Outcome;
use lode_api::v1::{Durability, ErrorReason, IoRequest, IoResponse};
use lode_engine::DataOperation;
use lode_reactor::gateway::{IoAnswer, PooledBuffer, Session, TakeBuffer, take_buffer};
use lode_units::limits::IO_LENGTH_MAX_BYTES;
use tonic::{Status, Streaming};

use crate::block::io::outstanding::Outstanding;
use crate::block::io::parse::{Parsed, parse};
use crate::block::outgoing::{Data, Outgoing};
use crate::block::transfer::{Command, Target, fill};
use crate::failure::Failure;

/// An answer on its way out.
pub(super) type IoMessage = Outgoing<IoResponse>;

/// An Io stream whose volume is open.
pub(super) struct IoStream {
    /// What still comes from the client; `None` once it has sent its last message.
    inbound: Option<Streaming<IoRequest>>,
    /// The stream ends with this once the last answer is out.
    failed: Option<Status>,
    target: Target,
    device_names: Vec<String>,
    session: Session,
    outstanding: Outstanding,
    /// An answer that waits for nothing: that to the opening, or an error.
    ready: Option<IoMessage>,
    waiting: Option<Waiting>,
}

/// A request that waits for a buffer, or first for the stream to hold fewer bytes.
struct Waiting {
    mark: u64,
    parsed: Parsed,
    buffer: Option<TakeBuffer>,
}

impl IoStream {
    /// Takes the next message in, if there is one. Returns whether anything moved.
    fn poll_inbound(&mut self, context: &mut Context<'_>) -> bool {
        let Some(inbound) = &mut self.inbound else {
            return false;
        };
        match Pin::new(inbound).poll_next(context) {
            Poll::Pending => return false,
            Poll::Ready(Some(Ok(request))) => self.take(request),
            Poll::Ready(Some(Err(status))) => {
                self.inbound = None;
                self.failed = Some(status);
            }
            Poll::Ready(None) => self.inbound = None,
        }
        true
    }

    /// Takes a request in: begins it, or answers why not.
    fn take(&mut self, request: IoRequest) {
        let tag = request.tag;
        if let Err(failure) = self.begin(request) {
            self.ready = Some(refusal(
                tag,
                failure.about(&self.target.pool, &self.target.volume),
            ));
        }
    }

    fn begin(&mut self, request: IoRequest) -> Result<(), Failure> {
        if self.outstanding.has_tag(request.tag) {
            let message = format!("tag {} belongs to a request under way", request.tag);
            return Err(Failure::new(ErrorReason::TagInUse, message).with_field("tag"));
        }
        let tag = request.tag;
        let parsed = parse(request)?;
        let command = parsed.command;
        let Some(mark) = self.outstanding.begin(tag, command) else {
            let limit = self.outstanding.credits();
            let message = format!("{limit} requests are outstanding, as many as there are credits");
            return Err(Failure::new(ErrorReason::Credits, message).with_limit(limit as u64));
        };
        match command.buffer_length() {
            0 => self.submit(mark, command, None),
            _ => {
                self.waiting = Some(Waiting {
                    mark,
                    parsed,
                    buffer: None,
                });
            }
        }
        Ok(())
    }

    /// Goes on with the request that waits for a buffer. Returns whether anything moved.
    fn poll_waiting(&mut self, context: &mut Context<'_>) -> bool {
        let Some(waiting) = &mut self.waiting else {
            return false;
        };
        // Answers that the client does not read count as well: it must read on to go on.
        if waiting.buffer.is_none() && !self.outstanding.is_within(BYTES_MAX) {
            return false;
        }
        let length = waiting.parsed.command.buffer_length();
        let buffer = waiting.buffer.get_or_insert_with(|| take_buffer(length));
        let Poll::Ready(taken) = Pin::new(buffer).poll(context) else {
            return false;
        };
        let Some(Waiting { mark, parsed, .. }) = self.waiting.take() else {
            return false;
        };
        match taken {
            Ok(buffer) => {
                fill(&buffer, &parsed.payload);
                self.submit(mark, parsed.command, Some(buffer));
            }
            Err(error) => self.fail(mark, error.into()),
        }
        true
    }

    fn submit(&mut self, mark: u64, command: Command, buffer: Option<PooledBuffer>) {
        let request = command.with_buffer(self.target.handle, buffer);
        if let Err(refused) = self.session.submit(mark, request) {
            self.fail(mark, refused.reason.into());
        }
    }

    /// Answers a request that never reached the shard.
    fn fail(&mut self, mark: u64, failure: Failure) {
        let (tag, command) = self.outstanding.end(mark);
        self.ready = Some(refusal(tag, self.target.blame(failure, command)));
    }

    /// The answer to a request that the shard has ended.
    fn answer(&mut self, mark: u64, answer: IoAnswer) -> IoMessage {
        let (tag, command) = self.outstanding.end(mark);
        let durability = match answer.result {
            Ok(durability) => durability,
            Err(error) => {
                let failure = self.target.blame(error.into(), command);
                return refusal(tag, failure.with_device_name(&self.device_names));
            }
        };
        if command.operation == DataOperation::Read {
            return read_message(tag, answer.buffer, answer.copied, command.buffer_length());
        }
        Outgoing::Plain(IoResponse {
            tag,
            result: Some(Outcome::Durability(Durability::from(durability).into())),
        })
    }
}

impl Stream for IoStream {
    type Item = Result<IoMessage, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let stream = self.get_mut();
        loop {
            if let Some(ready) = stream.ready.take() {
                return Poll::Ready(Some(Ok(ready)));
            }
            if let Poll::Ready((mark, answer)) = stream.session.poll_answer(context) {
                return Poll::Ready(Some(Ok(stream.answer(mark, answer))));
            }
            let moved = match stream.waiting {
                Some(_) => stream.poll_waiting(context),
                None => stream.poll_inbound(context),
            };
            if moved {
                continue;
            }
            if stream.inbound.is_none() && stream.outstanding.is_empty() {
                return Poll::Ready(stream.failed.take().map(Err));
            }
            return Poll::Pending;
        }
    }
}

/// The answer to a read of `length` bytes, which lie in `buffer` or were copied out of it.
fn read_message(
    tag: u64,
    buffer: Option<PooledBuffer>,
    copied: Option<Vec<u8>>,
    length: usize,
) -> IoMessage {
    match buffer {
        Some(buffer) => Outgoing::Data(Data {
            tag,
            field: DATA_FIELD,
            buffer,
            length,
        }),
        None => Outgoing::Plain(IoResponse {
            tag,
            result: Some(Outcome::Data(copied.unwrap_or_default().into())),
        }),
    }
}

fn refusal(tag: u64, failure: Failure) -> IoMessage {
    Outgoing::Plain(IoResponse {
        tag,
        result: Some(Outcome::Error(failure.into_io_error())),
    })
}

/// The number of the field `data` in `IoResponse`.
pub(super) const DATA_FIELD: u32 = 2;
/// The most bytes of requests and answers that one stream holds; further requests wait.
const BYTES_MAX: usize = 16 << 20;
const _: () = assert!(BYTES_MAX as u64 >= IO_LENGTH_MAX_BYTES);
