//! The requests that the gateway knows: who waits for each, and its answer until it is fetched.

use std::task::{Context, Poll, Waker};

use lode_engine::{ControlError, ControlReply, DataCompletion, Token};

use crate::gateway::desk::RawAnswer;
use crate::gateway::settled::Settled;

/// A request's place, valid until its answer is fetched or given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotKey {
    index: u32,
    generation: u32,
}

/// Who gets an answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owner {
    /// A future, which fetches it from the slot.
    Future,
    /// A session, which keeps it in its own ready queue.
    Session {
        /// Where the session is.
        session: SlotKey,
        /// The mark that the session gave the request.
        mark: u64,
    },
}

/// What is to be done with an answer that has come.
#[derive(Debug)]
pub(super) enum Delivery {
    /// It lies in the slot; wake this one.
    Kept(Option<Waker>),
    /// It belongs to a session.
    Session {
        session: SlotKey,
        mark: u64,
        answer: RawAnswer,
    },
    /// Nobody wants it any more.
    Unwanted(RawAnswer),
}

/// The end of a request as the host gave it.
#[derive(Debug)]
pub(super) enum Ending {
    Data(DataCompletion),
    Control(Result<ControlReply, ControlError>),
}

impl Ending {
    fn into_answer(self, data_length: usize, turn: u64) -> RawAnswer {
        match self {
            Self::Data(data) => RawAnswer::Data(Settled::new(data, data_length, turn)),
            Self::Control(result) => RawAnswer::Control(result),
        }
    }
}

#[derive(Debug)]
enum State {
    Free,
    Waiting {
        owner: Owner,
        data_length: usize,
        waker: Option<Waker>,
    },
    Unwanted,
    Answered(RawAnswer),
}

/// A fixed number of slots; takes and frees without allocating.
#[derive(Debug)]
pub(super) struct Slots {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Requests that the host has not ended.
    under_way: usize,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    state: State,
}

impl SlotKey {
    pub(super) const fn new(index: u32, generation: u32) -> Self {
        Self { index, generation }
    }

    pub(super) const fn index(self) -> usize {
        self.index as usize
    }

    pub(super) const fn generation(self) -> u32 {
        self.generation
    }

    /// The token that the host gives back with the answer.
    pub(super) const fn token(self) -> Token {
        Token(((self.generation as u64) << 32) | self.index as u64)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the two halves of a token are 32 bits each"
    )]
    pub(super) const fn of_token(token: Token) -> Self {
        Self {
            index: token.0 as u32,
            generation: (token.0 >> 32) as u32,
        }
    }
}

impl Slots {
    pub(super) fn new(count: u32) -> Self {
        Self {
            entries: (0..count)
                .map(|_| Entry {
                    generation: 0,
                    state: State::Free,
                })
                .collect(),
            free: (0..count).rev().collect(),
            under_way: 0,
        }
    }

    /// Takes a slot for a request that reads `data_length` bytes; `None` when all are in use.
    pub(super) fn take(&mut self, owner: Owner, data_length: usize) -> Option<SlotKey> {
        let index = self.free.pop()?;
        self.under_way += 1;
        let entry = &mut self.entries[index as usize];
        entry.state = State::Waiting {
            owner,
            data_length,
            waker: None,
        };
        Some(SlotKey::new(index, entry.generation))
    }

    /// How many requests the host has not ended.
    pub(super) const fn under_way(&self) -> usize {
        self.under_way
    }

    /// Takes in the end of the request of `key`, in the poller's turn `turn`.
    ///
    /// # Panics
    /// When that request ended before: the host completes each request once.
    pub(super) fn answer(&mut self, key: SlotKey, ending: Ending, turn: u64) -> Delivery {
        self.under_way -= 1;
        let entry = self.entry(key);
        match std::mem::replace(&mut entry.state, State::Free) {
            State::Waiting {
                owner: Owner::Future,
                data_length,
                waker,
            } => {
                entry.state = State::Answered(ending.into_answer(data_length, turn));
                Delivery::Kept(waker)
            }
            State::Waiting {
                owner: Owner::Session { session, mark },
                data_length,
                ..
            } => {
                self.release(key);
                Delivery::Session {
                    session,
                    mark,
                    answer: ending.into_answer(data_length, turn),
                }
            }
            State::Unwanted => {
                self.release(key);
                Delivery::Unwanted(ending.into_answer(0, turn))
            }
            State::Free | State::Answered(_) => panic!("a request is completed once"),
        }
    }

    /// Every answer that waits to be fetched.
    pub(super) fn answers(&mut self) -> impl Iterator<Item = &mut RawAnswer> {
        self.entries
            .iter_mut()
            .filter_map(|entry| match &mut entry.state {
                State::Answered(answer) => Some(answer),
                State::Free | State::Waiting { .. } | State::Unwanted => None,
            })
    }

    /// Fetches the answer, or leaves the waker of `context`.
    pub(super) fn poll(&mut self, key: SlotKey, context: &Context<'_>) -> Poll<RawAnswer> {
        let entry = self.entry(key);
        match &mut entry.state {
            State::Waiting { waker, .. } => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            State::Answered(_) => {
                let State::Answered(answer) = std::mem::replace(&mut entry.state, State::Free)
                else {
                    unreachable!("just matched");
                };
                self.release(key);
                Poll::Ready(answer)
            }
            State::Free | State::Unwanted => panic!("an answer is fetched once"),
        }
    }

    /// Gives up the answer: it is returned if it is there, and unwanted when it comes.
    pub(super) fn give_up(&mut self, key: SlotKey) -> Option<RawAnswer> {
        let entry = self.entry(key);
        match std::mem::replace(&mut entry.state, State::Unwanted) {
            State::Answered(answer) => {
                entry.state = State::Free;
                self.release(key);
                Some(answer)
            }
            State::Waiting { .. } | State::Unwanted => None,
            State::Free => panic!("a free slot cannot be given up"),
        }
    }

    fn entry(&mut self, key: SlotKey) -> &mut Entry {
        self.entries
            .get_mut(key.index())
            .filter(|entry| entry.generation == key.generation)
            .expect("a completion names a request under way")
    }

    fn release(&mut self, key: SlotKey) {
        let entry = &mut self.entries[key.index()];
        entry.state = State::Free;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(key.index);
    }
}
