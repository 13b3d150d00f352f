//! A buffer on loan from the core's pool.

use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll};

use lode_bus::DmaBuffer;
use lode_units::CoreId;

use crate::gateway::buffers::Asked;
use crate::gateway::desk::Desk;
use crate::gateway::error::BufferError;
use crate::gateway::slots::SlotKey;

/// A DMA buffer on loan from its core's pool; dropping it on that core gives it back.
#[derive(Debug)]
pub struct PooledBuffer {
    core: CoreId,
    buffer: Option<DmaBuffer>,
}

impl PooledBuffer {
    pub(super) const fn new(core: CoreId, buffer: DmaBuffer) -> Self {
        Self {
            core,
            buffer: Some(buffer),
        }
    }

    /// The buffer without the obligation, for a request.
    pub(super) fn into_raw(mut self) -> DmaBuffer {
        self.buffer.take().expect("present until dropped")
    }
}

impl Deref for PooledBuffer {
    type Target = DmaBuffer;

    fn deref(&self) -> &DmaBuffer {
        self.buffer.as_ref().expect("present until dropped")
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else {
            return;
        };
        match Desk::here().filter(|desk| desk.core() == self.core) {
            Some(desk) => desk.give_back(buffer),
            // The core has ended, or its buffer strayed; its memory lives as long as the handle.
            None => tracing::debug!(core = %self.core, "a buffer was dropped outside its core"),
        }
    }
}

/// Takes a buffer of at least `length_bytes` from the core's pool; waits while there is none.
///
/// # Panics
/// When polled on a thread that is no core, or on another core than before.
pub const fn take_buffer(length_bytes: usize) -> TakeBuffer {
    TakeBuffer {
        length_bytes,
        wait: None,
    }
}

/// The future of [`take_buffer`]. Dropping it leaves the queue.
#[derive(Debug)]
#[must_use = "a future does nothing until it is polled"]
pub struct TakeBuffer {
    length_bytes: usize,
    wait: Option<(CoreId, SlotKey)>,
}

impl Future for TakeBuffer {
    type Output = Result<PooledBuffer, BufferError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let desk = Desk::current();
        let (core, key) = match self.wait {
            Some(wait) => wait,
            None => match desk.with(|state| state.buffers.ask(self.length_bytes)) {
                Ok(Asked::Taken(buffer)) => {
                    desk.show_lent();
                    return Poll::Ready(Ok(PooledBuffer::new(desk.core(), buffer)));
                }
                Ok(Asked::Queued(key)) => {
                    desk.stats().buffer_waits.increment();
                    desk.note_shortage();
                    (desk.core(), key)
                }
                Err(error) => return Poll::Ready(Err(error)),
            },
        };
        self.wait = Some((core, key));
        let polled = Desk::of(core).with(|state| state.buffers.poll(key, context));
        polled.map(|buffer| {
            self.wait = None;
            Ok(PooledBuffer::new(core, buffer))
        })
    }
}

impl Drop for TakeBuffer {
    fn drop(&mut self) {
        let Some((core, key)) = self.wait.take() else {
            return;
        };
        if let Some(desk) = Desk::here().filter(|desk| desk.core() == core) {
            desk.with(|state| state.buffers.give_up(key));
            desk.grant_buffers();
        }
    }
}
