//! Commands of one submission queue that were fetched and have not completed.
//!
//! Invariants:
//! 1. A slot is either free or in the list of those in use, once.
//! 2. `delayed` and `parked` count the slots in those states.
//! 3. Nothing is allocated after the table was made.

use lode_nvme_spec::{Status, SubmissionEntry};
use lode_units::{CommandId, Instant};

use crate::fault::Twist;
use crate::io::FileTask;

/// A command with what a fault rule wants of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    /// The entry as it was fetched.
    pub(crate) entry: SubmissionEntry,
    /// How its completion is to be spoilt.
    pub(crate) twist: Twist,
    /// The status to end it with instead of executing it.
    pub(crate) forced: Option<Status>,
}

/// What a command waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    /// Its time.
    Delayed(Instant),
    /// An abort or a reset: nothing else ends it.
    Hung,
    /// Room in the completion queue.
    Ready(Status, u32),
    /// Its operation on a file.
    File(FileTask),
    /// A bounce buffer, or its turn.
    Waiting(FileTask),
}

#[derive(Debug)]
struct Slot {
    command: Command,
    state: State,
    /// Where in `active` this slot stands.
    position: usize,
}

/// The table. Its bound is the most commands that one queue may have outstanding.
#[derive(Debug)]
pub(crate) struct Outstanding {
    slots: Vec<Slot>,
    free: Vec<u16>,
    active: Vec<u16>,
    /// How many wait for their time.
    delayed: usize,
    /// How many wait for room or a buffer: whatever the time, they are to be looked at.
    parked: usize,
}

impl State {
    /// What this state adds to the counts of those delayed and those parked.
    const fn counts(self) -> (usize, usize) {
        match self {
            Self::Delayed(_) => (1, 0),
            Self::Ready(..) | Self::Waiting(_) => (0, 1),
            Self::Hung | Self::File(_) => (0, 0),
        }
    }
}

impl Outstanding {
    /// Room for `capacity` commands.
    pub(crate) fn with_capacity(capacity: u16) -> Self {
        let empty = || Slot {
            command: Command {
                entry: SubmissionEntry::default(),
                twist: Twist::None,
                forced: None,
            },
            state: State::Hung,
            position: 0,
        };
        Self {
            slots: std::iter::repeat_with(empty)
                .take(usize::from(capacity))
                .collect(),
            free: (0..capacity).rev().collect(),
            active: Vec::with_capacity(usize::from(capacity)),
            delayed: 0,
            parked: 0,
        }
    }

    /// Takes a slot for `command`, or `None` when all are in use.
    pub(crate) fn insert(&mut self, command: Command, state: State) -> Option<u16> {
        let index = self.free.pop()?;
        let position = self.active.len();
        self.active.push(index);
        self.count_in(state);
        self.slots[usize::from(index)] = Slot {
            command,
            state,
            position,
        };
        Some(index)
    }

    /// Gives a slot back and returns its command.
    pub(crate) fn remove(&mut self, index: u16) -> Command {
        let position = self.slots[usize::from(index)].position;
        assert_eq!(
            self.active.get(position),
            Some(&index),
            "the slot is in use"
        );
        self.active.swap_remove(position);
        self.count_out(self.state(index));
        if let Some(moved) = self.active.get(position) {
            self.slots[usize::from(*moved)].position = position;
        }
        self.free.push(index);
        self.slots[usize::from(index)].command
    }

    /// How many slots there are.
    pub(crate) fn capacity(&self) -> u16 {
        u16::try_from(self.slots.len()).expect("made with a 16-bit capacity")
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// How many slots are in use.
    pub(crate) fn count(&self) -> usize {
        self.active.len()
    }

    /// The slot at `position` of those in use. Removing it moves the last one there.
    pub(crate) fn at(&self, position: usize) -> Option<(u16, State)> {
        let index = *self.active.get(position)?;
        Some((index, self.slots[usize::from(index)].state))
    }

    pub(crate) fn command(&self, index: u16) -> Command {
        self.slots[usize::from(index)].command
    }

    pub(crate) fn state(&self, index: u16) -> State {
        self.slots[usize::from(index)].state
    }

    pub(crate) fn set_state(&mut self, index: u16, state: State) {
        self.count_out(self.state(index));
        self.count_in(state);
        self.slots[usize::from(index)].state = state;
    }

    /// The slot of the command called `id`.
    pub(crate) fn find(&self, id: CommandId) -> Option<u16> {
        let named = |index: &&u16| self.command(**index).entry.command_id() == id;
        self.active.iter().find(named).copied()
    }

    /// Whether a command waits for room or a buffer.
    pub(crate) const fn has_parked(&self) -> bool {
        self.parked > 0
    }

    /// The earliest time that a command waits for.
    pub(crate) fn earliest_due(&self) -> Instant {
        if self.delayed == 0 {
            return Instant::FAR_FUTURE;
        }
        let due = |index: &u16| match self.state(*index) {
            State::Delayed(due) => due,
            State::Hung | State::Ready(..) | State::File(_) | State::Waiting(_) => {
                Instant::FAR_FUTURE
            }
        };
        self.active
            .iter()
            .map(due)
            .min()
            .unwrap_or(Instant::FAR_FUTURE)
    }

    const fn count_in(&mut self, state: State) {
        let (delayed, parked) = state.counts();
        self.delayed += delayed;
        self.parked += parked;
    }

    const fn count_out(&mut self, state: State) {
        let (delayed, parked) = state.counts();
        self.delayed -= delayed;
        self.parked -= parked;
    }

    /// Invariants 1 and 2.
    #[cfg(test)]
    fn check(&self) {
        let counts = self.active.iter().map(|index| self.state(*index).counts());
        let sum = counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        assert_eq!((self.delayed, self.parked), sum);
        assert_eq!(self.free.len() + self.active.len(), self.slots.len());
        for (position, index) in self.active.iter().enumerate() {
            assert_eq!(self.slots[usize::from(*index)].position, position);
            assert!(!self.free.contains(index), "a slot is free or in use");
        }
    }
}

#[cfg(test)]
mod tests {
    use lode_units::{Random, SeededRandom};

    use super::*;

    fn command(id: u16) -> Command {
        Command {
            entry: SubmissionEntry::new(2).with_command_id(CommandId::new(id)),
            twist: Twist::None,
            forced: None,
        }
    }

    #[test]
    fn slots_are_taken_and_given_back_in_any_order() {
        let mut table = Outstanding::with_capacity(16);
        let mut random = SeededRandom::new(3);
        let mut held: Vec<(u16, u16)> = Vec::new();
        for id in 0..2000 {
            if random.below(2) == 0 {
                let state = match id % 3 {
                    0 => State::Hung,
                    1 => State::Delayed(Instant::from_nanos(id.into())),
                    _ => State::Ready(Status::SUCCESS, 0),
                };
                match table.insert(command(id), state) {
                    Some(slot) => held.push((slot, id)),
                    None => assert!(table.is_full() && held.len() == 16),
                }
            } else if !held.is_empty() {
                let length = u64::try_from(held.len()).expect("few");
                let pick = usize::try_from(random.below(length)).expect("few");
                let (slot, id) = held.swap_remove(pick);
                assert_eq!(table.find(CommandId::new(id)), Some(slot));
                table.set_state(slot, State::Hung);
                table.check();
                assert_eq!(table.remove(slot).entry.command_id().get(), id);
            }
            table.check();
            assert_eq!(table.count(), held.len());
        }
    }
}
