//! Single requests: data and control.

use std::pin::Pin;
use std::task::{Context, Poll};

use lode_block::Durability;
use lode_engine::{
    ControlError, ControlReply, ControlRequest, DataOperation, DataRequest, IoError, Token,
    VolumeHandle,
};
use lode_units::CoreId;

use crate::gateway::buffer::PooledBuffer;
use crate::gateway::desk::{Desk, RawAnswer};
use crate::gateway::error::RefuseReason;
use crate::gateway::settled::{Memory, Settled};
use crate::gateway::slots::{Owner, SlotKey};

/// A request for one volume; the fields are those of [`DataRequest`].
#[derive(Debug)]
pub struct IoRequest {
    /// The volume.
    pub volume: VolumeHandle,
    /// What to do.
    pub operation: DataOperation,
    /// The least durability that it is acknowledged with.
    pub durability: Durability,
    /// Where the range begins. 0 for a flush.
    pub offset_bytes: u64,
    /// How long it is. 0 for a flush.
    pub length_bytes: u64,
    /// The memory, where the operation moves data.
    pub buffer: Option<PooledBuffer>,
}

/// The end of an [`IoRequest`].
#[derive(Debug)]
#[must_use = "an answer tells whether the request succeeded"]
pub struct IoAnswer {
    /// The durability that was reached, or why the request failed.
    pub result: Result<Durability, IoError>,
    /// The request's memory; `None` also when it had to go back before the answer was fetched.
    pub buffer: Option<PooledBuffer>,
    /// The data of a read whose buffer had to go back before the answer was fetched: others waited
    /// for one, and this answer lay there for long.
    pub copied: Option<Vec<u8>>,
}

/// A data request that was not taken, given back.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub reason: RefuseReason,
    /// The request, untouched.
    pub request: IoRequest,
}

impl IoRequest {
    pub(super) fn into_raw(self) -> DataRequest {
        DataRequest {
            token: Token(0),
            volume: self.volume,
            operation: self.operation,
            durability: self.durability,
            offset_bytes: self.offset_bytes,
            length_bytes: self.length_bytes,
            buffer: self.buffer.map(PooledBuffer::into_raw),
        }
    }

    pub(super) fn from_raw(core: CoreId, raw: DataRequest) -> Self {
        Self {
            volume: raw.volume,
            operation: raw.operation,
            durability: raw.durability,
            offset_bytes: raw.offset_bytes,
            length_bytes: raw.length_bytes,
            buffer: raw.buffer.map(|buffer| PooledBuffer::new(core, buffer)),
        }
    }
}

impl IoAnswer {
    pub(super) fn of_settled(core: CoreId, settled: Settled) -> Self {
        let (buffer, copied) = match settled.memory {
            Memory::None => (None, None),
            Memory::Buffer { buffer, .. } => (Some(PooledBuffer::new(core, buffer)), None),
            Memory::Copied(copied) => (None, Some(copied)),
        };
        Self {
            result: settled.result,
            buffer,
            copied,
        }
    }
}

/// Submits a data request. Does not allocate.
///
/// # Errors
/// Gives the request back when the core is full or stopping.
///
/// # Panics
/// When this thread is no core.
pub fn submit(request: IoRequest) -> Result<IoFuture, Refused> {
    let desk = Desk::current();
    let core = desk.core();
    match desk.submit(request.into_raw(), Owner::Future) {
        Ok(key) => Ok(IoFuture(Pending::new(core, key))),
        Err((reason, raw)) => Err(Refused {
            reason,
            request: IoRequest::from_raw(core, raw),
        }),
    }
}

/// Submits a control request.
///
/// # Errors
/// The reason, when the core is full or stopping.
///
/// # Panics
/// When this thread is no core.
pub fn control(request: ControlRequest) -> Result<ControlFuture, RefuseReason> {
    let desk = Desk::current();
    let key = desk.control(request)?;
    Ok(ControlFuture(Pending::new(desk.core(), key)))
}

/// The answer to come of a data request. Dropping it lets the request go on; its buffer goes back
/// to the pool when it ends.
#[derive(Debug)]
#[must_use = "a future does nothing until it is polled"]
pub struct IoFuture(Pending);

/// The answer to come of a control request. Dropping it lets the request go on.
#[derive(Debug)]
#[must_use = "a future does nothing until it is polled"]
pub struct ControlFuture(Pending);

impl Future for IoFuture {
    type Output = IoAnswer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<IoAnswer> {
        let core = self.0.core;
        self.0.poll(context).map(|answer| match answer {
            RawAnswer::Data(settled) => IoAnswer::of_settled(core, settled),
            RawAnswer::Control(_) => panic!("a data request has a data completion"),
        })
    }
}

impl Future for ControlFuture {
    type Output = Result<ControlReply, ControlError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context).map(|answer| match answer {
            RawAnswer::Control(result) => result,
            RawAnswer::Data(_) => panic!("a control request has a control completion"),
        })
    }
}

/// A slot whose answer is still to be fetched.
#[derive(Debug)]
struct Pending {
    core: CoreId,
    key: Option<SlotKey>,
}

impl Pending {
    const fn new(core: CoreId, key: SlotKey) -> Self {
        Self {
            core,
            key: Some(key),
        }
    }

    fn poll(&mut self, context: &Context<'_>) -> Poll<RawAnswer> {
        let key = self.key.expect("an answer is fetched once");
        let polled = Desk::of(self.core).with(|state| state.slots.poll(key, context));
        polled.map(|answer| {
            self.key = None;
            answer
        })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some(key) = self.key.take() else {
            return;
        };
        if let Some(desk) = Desk::here().filter(|desk| desk.core() == self.core) {
            desk.with(|state| {
                if let Some(answer) = state.slots.give_up(key) {
                    state.discard(answer);
                }
            });
            desk.grant_buffers();
        }
    }
}
