//! The line between two cores: a bounded ring in each direction, and each other's doorbell.
//!
//! Sending publishes into the ring and says nothing; [`CorePort::flush`] rings once for the whole
//! batch, and enters the kernel only when the peer sleeps. A letter that was sent before the flush
//! is found by the peer's poll after arming, or ends its sleep (see [`Signal`]).

use std::fmt;
use std::sync::Arc;

use lode_engine::{Letter, Port};
use rtrb::{Consumer, Producer, PushError, RingBuffer};

use crate::signal::Signal;

/// How many letters wait in one direction at most.
///
/// A core answers in the turn that finds a letter, so that this many are there only while its
/// thread does not run.
pub const PORT_LETTERS_MAX: usize = 1024;

/// One core's end of the line to another core. Lives on the core's thread; neither blocks nor
/// allocates.
pub struct CorePort<T> {
    outgoing: Producer<T>,
    incoming: Consumer<T>,
    peer: Arc<Signal>,
    /// Whether letters were sent since the last flush.
    is_unannounced: bool,
}

impl<T> CorePort<T> {
    /// The two ends of a line between the cores with these doorbells, in the same order. Allocates
    /// both rings.
    #[must_use]
    pub fn pair(first: &Arc<Signal>, second: &Arc<Signal>) -> (Self, Self) {
        let (to_second, at_second) = RingBuffer::new(PORT_LETTERS_MAX);
        let (to_first, at_first) = RingBuffer::new(PORT_LETTERS_MAX);
        let end = |outgoing, incoming, peer: &Arc<Signal>| Self {
            outgoing,
            incoming,
            peer: Arc::clone(peer),
            is_unannounced: false,
        };
        (
            end(to_second, at_first, second),
            end(to_first, at_second, first),
        )
    }

    /// Sends a letter; the peer is told by the next [`CorePort::flush`].
    ///
    /// # Errors
    /// Gives the letter back when [`PORT_LETTERS_MAX`] wait for the peer.
    pub fn send(&mut self, letter: T) -> Result<(), T> {
        self.outgoing
            .push(letter)
            .map_err(|PushError::Full(letter)| letter)?;
        self.is_unannounced = true;
        Ok(())
    }

    /// Takes the oldest letter that the peer has sent.
    pub fn receive(&mut self) -> Option<T> {
        self.incoming.pop().ok()
    }

    /// Wakes the peer if it sleeps and letters were sent since the last call.
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.is_unannounced) {
            self.peer.notify();
        }
    }
}

impl Port for CorePort<Letter> {
    fn send(&mut self, letter: Letter) -> Result<(), Letter> {
        Self::send(self, letter)
    }

    fn receive(&mut self) -> Option<Letter> {
        Self::receive(self)
    }

    fn flush(&mut self) {
        Self::flush(self);
    }
}

impl<T> fmt::Debug for CorePort<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("CorePort")
            .field("sent", &(PORT_LETTERS_MAX - self.outgoing.slots()))
            .field("received", &self.incoming.slots())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (CorePort<usize>, CorePort<usize>) {
        let signal = || Arc::new(Signal::new().expect("an eventfd"));
        CorePort::pair(&signal(), &signal())
    }

    #[test]
    fn letters_arrive_in_order_at_the_other_end_only() {
        let (mut first, mut second) = pair();
        assert_eq!(first.send(1), Ok(()));
        assert_eq!(first.send(2), Ok(()));
        assert_eq!(second.send(3), Ok(()));
        assert_eq!(first.receive(), Some(3));
        assert_eq!(first.receive(), None);
        assert_eq!(second.receive(), Some(1));
        assert_eq!(second.receive(), Some(2));
        assert_eq!(second.receive(), None);
    }

    #[test]
    fn a_full_ring_gives_the_letter_back_and_takes_it_once_there_is_room() {
        let (mut first, mut second) = pair();
        for letter in 0..PORT_LETTERS_MAX {
            assert_eq!(first.send(letter), Ok(()));
        }
        assert_eq!(first.send(7), Err(7));
        assert_eq!(second.receive(), Some(0));
        assert_eq!(first.send(7), Ok(()));
    }
}
