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
use tonic::{Status, Streaming};

use crate::block::io::outstanding::Outstanding;
use crate::block::io::parse::{Parsed, parse};
use crate::block::transfer::{Command, Target, copy_out, fill};
use crate::failure::Failure;

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
    ready: Option<IoResponse>,
    waiting: Option<Waiting>,
}

/// A request that waits for a buffer.
struct Waiting {
    mark: u64,
    parsed: Parsed,
    buffer: TakeBuffer,
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
            length => {
                self.waiting = Some(Waiting {
                    mark,
                    parsed,
                    buffer: take_buffer(length),
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
        let Poll::Ready(taken) = Pin::new(&mut waiting.buffer).poll(context) else {
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
    fn answer(&mut self, mark: u64, answer: IoAnswer) -> IoResponse {
        let (tag, command) = self.outstanding.end(mark);
        let result = match (answer.result, answer.buffer) {
            (Err(error), _) => {
                let failure = self.target.blame(error.into(), command);
                return refusal(tag, failure.with_device_name(&self.device_names));
            }
            (Ok(_), Some(buffer)) if command.operation == DataOperation::Read => {
                Outcome::Data(copy_out(&buffer, command.buffer_length()))
            }
            (Ok(durability), _) => Outcome::Durability(Durability::from(durability).into()),
        };
        IoResponse {
            tag,
            result: Some(result),
        }
    }
}

impl Stream for IoStream {
    type Item = Result<IoResponse, Status>;

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

fn refusal(tag: u64, failure: Failure) -> IoResponse {
    IoResponse {
        tag,
        result: Some(Outcome::Error(failure.into_io_error())),
    }
}
