//! The core's DMA buffers and those who wait for one.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use lode_block::BufferPool;
use lode_bus::DmaBuffer;

use crate::gateway::error::BufferError;
use crate::gateway::slots::SlotKey;

/// The pool, and a bounded queue in front of it: first come, first served, so that many small
/// requests cannot starve a large one.
#[derive(Debug)]
pub(super) struct Buffers {
    pool: BufferPool,
    length_max_bytes: usize,
    waits: Vec<Wait>,
    free: Vec<u32>,
    queue: VecDeque<SlotKey>,
}

#[derive(Debug)]
struct Wait {
    generation: u32,
    state: WaitState,
}

#[derive(Debug)]
enum WaitState {
    Free,
    Waiting {
        length_bytes: usize,
        waker: Option<Waker>,
    },
    Granted(DmaBuffer),
}

/// The outcome of asking.
#[derive(Debug)]
pub(super) enum Asked {
    /// Here it is.
    Taken(DmaBuffer),
    /// Wait under this key.
    Queued(SlotKey),
}

impl Buffers {
    pub(super) fn new(pool: BufferPool, waits_max: u32) -> Self {
        let count = waits_max as usize;
        Self {
            length_max_bytes: pool.length_max_bytes(),
            pool,
            waits: (0..waits_max)
                .map(|_| Wait {
                    generation: 0,
                    state: WaitState::Free,
                })
                .collect(),
            free: (0..waits_max).rev().collect(),
            queue: VecDeque::with_capacity(count),
        }
    }

    pub(super) fn lent(&self) -> usize {
        self.pool.lent()
    }

    /// Whether somebody waits.
    pub(super) fn is_short(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Takes a buffer, or a place in the queue.
    pub(super) fn ask(&mut self, length_bytes: usize) -> Result<Asked, BufferError> {
        if length_bytes > self.length_max_bytes {
            return Err(BufferError::TooLong {
                length_bytes,
                length_max_bytes: self.length_max_bytes,
            });
        }
        if self.queue.is_empty()
            && let Some(buffer) = self.pool.take(length_bytes)
        {
            return Ok(Asked::Taken(buffer));
        }
        let Some(index) = self.free.pop() else {
            return Err(BufferError::TooManyWaiting {
                waiting_max: self.waits.len(),
            });
        };
        let wait = &mut self.waits[index as usize];
        wait.state = WaitState::Waiting {
            length_bytes,
            waker: None,
        };
        let key = SlotKey::new(index, wait.generation);
        self.queue.push_back(key);
        Ok(Asked::Queued(key))
    }

    /// Fetches what was granted, or leaves the waker of `context`.
    pub(super) fn poll(&mut self, key: SlotKey, context: &Context<'_>) -> Poll<DmaBuffer> {
        let wait = self.wait(key);
        match &mut wait.state {
            WaitState::Waiting { waker, .. } => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            WaitState::Granted(_) => match self.release(key) {
                WaitState::Granted(buffer) => Poll::Ready(buffer),
                WaitState::Free | WaitState::Waiting { .. } => unreachable!("just matched"),
            },
            WaitState::Free => panic!("a buffer is fetched once"),
        }
    }

    /// Leaves the queue; a buffer granted meanwhile goes back.
    pub(super) fn give_up(&mut self, key: SlotKey) {
        match self.release(key) {
            WaitState::Granted(buffer) => self.pool.give_back(buffer),
            WaitState::Waiting { .. } => self.queue.retain(|queued| *queued != key),
            WaitState::Free => panic!("a wait is given up once"),
        }
    }

    pub(super) fn give_back(&mut self, buffer: DmaBuffer) {
        self.pool.give_back(buffer);
    }

    /// Serves the first in the queue if it can be served, and returns its waker; called after a
    /// buffer came back or a wait was given up, until it returns `None`.
    pub(super) fn grant(&mut self) -> Option<Waker> {
        loop {
            let key = *self.queue.front()?;
            let WaitState::Waiting { length_bytes, .. } = self.wait(key).state else {
                unreachable!("who is queued is waiting");
            };
            let buffer = self.pool.take(length_bytes)?;
            self.queue.pop_front();
            let granted = WaitState::Granted(buffer);
            let before = std::mem::replace(&mut self.wait(key).state, granted);
            if let WaitState::Waiting {
                waker: Some(waker), ..
            } = before
            {
                return Some(waker);
            }
        }
    }

    fn wait(&mut self, key: SlotKey) -> &mut Wait {
        self.waits
            .get_mut(key.index())
            .filter(|wait| wait.generation == key.generation())
            .expect("a wait is known until it is fetched or given up")
    }

    fn release(&mut self, key: SlotKey) -> WaitState {
        let wait = self.wait(key);
        wait.generation = wait.generation.wrapping_add(1);
        let state = std::mem::replace(&mut wait.state, WaitState::Free);
        let index = u32::try_from(key.index()).expect("made from 32 bits");
        self.free.push(index);
        state
    }
}
