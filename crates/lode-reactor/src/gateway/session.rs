//! Many requests of one stream: one ready queue, one waker.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use lode_units::CoreId;

use crate::gateway::buffer::PooledBuffer;
use crate::gateway::desk::Desk;
use crate::gateway::error::RefuseReason;
use crate::gateway::request::{IoAnswer, IoRequest, Refused};
use crate::gateway::settled::Settled;
use crate::gateway::slots::{Owner, SlotKey};

/// The requests of one stream. Its answers come in the order in which the requests ended.
///
/// Lives on one core; dropping it gives up what is under way, and the buffers go back when their
/// requests end.
#[derive(Debug)]
pub struct Session {
    core: CoreId,
    key: SlotKey,
    in_flight: usize,
    in_flight_max: usize,
}

impl Session {
    /// Opens a session with at most `in_flight_max` requests under way. Allocates.
    ///
    /// # Errors
    /// [`RefuseReason::Full`] when the core has as many sessions as it may, and
    /// [`RefuseReason::Stopping`].
    ///
    /// # Panics
    /// When this thread is no core.
    pub fn open(in_flight_max: usize) -> Result<Self, RefuseReason> {
        let desk = Desk::current();
        if desk.is_stopping() {
            return Err(RefuseReason::Stopping);
        }
        let key = desk.with(|state| state.sessions.open(in_flight_max));
        let key = key.ok_or(RefuseReason::Full {
            requests_max: super::SESSIONS_MAX,
        })?;
        Ok(Self {
            core: desk.core(),
            key,
            in_flight: 0,
            in_flight_max,
        })
    }

    /// Requests whose answer has not been taken yet.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether as many requests are under way as may be.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.in_flight >= self.in_flight_max
    }

    /// Submits a request under a mark of the caller's own. Does not allocate.
    ///
    /// # Errors
    /// Gives the request back with the reason.
    ///
    /// # Panics
    /// When the session is full, or this thread is not its core.
    pub fn submit(&mut self, mark: u64, request: IoRequest) -> Result<(), Refused> {
        assert!(!self.is_full(), "a session keeps to its limit");
        let owner = Owner::Session {
            session: self.key,
            mark,
        };
        Desk::of(self.core)
            .submit(request.into_raw(), owner)
            .map_err(|(reason, raw)| Refused {
                reason,
                request: IoRequest::from_raw(self.core, raw),
            })?;
        self.in_flight += 1;
        Ok(())
    }

    /// Takes the next answer with its mark, or leaves the waker of `context`. Pending for ever
    /// while nothing is under way.
    ///
    /// # Panics
    /// When this thread is not the session's core.
    pub fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<(u64, IoAnswer)> {
        let ready = Desk::of(self.core).with(|state| state.sessions.poll(self.key, context));
        ready.map(|(mark, data)| {
            self.in_flight -= 1;
            (mark, IoAnswer::of_settled(self.core, data))
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(desk) = Desk::here().filter(|desk| desk.core() == self.core) else {
            return;
        };
        let ready = desk.with(|state| state.sessions.close(self.key));
        for (_, settled) in ready {
            let buffer = settled.memory.into_buffer();
            drop(buffer.map(|buffer| PooledBuffer::new(self.core, buffer)));
        }
    }
}

/// All sessions of a core.
#[derive(Debug)]
pub(super) struct Sessions {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Entry {
    generation: u32,
    ready: VecDeque<(u64, Settled)>,
    waker: Option<Waker>,
}

impl Sessions {
    pub(super) fn new(count: u32) -> Self {
        Self {
            entries: (0..count).map(|_| Entry::default()).collect(),
            free: (0..count).rev().collect(),
        }
    }

    fn open(&mut self, in_flight_max: usize) -> Option<SlotKey> {
        let index = self.free.pop()?;
        let entry = &mut self.entries[index as usize];
        entry.ready.reserve(in_flight_max);
        Some(SlotKey::new(index, entry.generation))
    }

    /// Puts an answer into the session's ready queue and returns whom to wake.
    ///
    /// # Errors
    /// Gives the answer back when the session is closed.
    pub(super) fn deliver(
        &mut self,
        key: SlotKey,
        mark: u64,
        data: Settled,
    ) -> Result<Option<Waker>, Settled> {
        let entry = &mut self.entries[key.index()];
        if entry.generation != key.generation() {
            return Err(data);
        }
        entry.ready.push_back((mark, data));
        Ok(entry.waker.take())
    }

    fn poll(&mut self, key: SlotKey, context: &Context<'_>) -> Poll<(u64, Settled)> {
        let entry = &mut self.entries[key.index()];
        match entry.ready.pop_front() {
            Some(ready) => Poll::Ready(ready),
            None => {
                entry.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Every answer that waits to be taken.
    pub(super) fn answers(&mut self) -> impl Iterator<Item = &mut Settled> {
        let ready = self.entries.iter_mut().flat_map(|entry| &mut entry.ready);
        ready.map(|(_, settled)| settled)
    }

    fn close(&mut self, key: SlotKey) -> VecDeque<(u64, Settled)> {
        let entry = &mut self.entries[key.index()];
        entry.generation = entry.generation.wrapping_add(1);
        entry.waker = None;
        let index = u32::try_from(key.index()).expect("made from 32 bits");
        self.free.push(index);
        std::mem::take(&mut entry.ready)
    }
}
