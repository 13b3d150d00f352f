//! A controller of this process, served to another one.
//!
//! One thread does everything: it moves doorbells from shared memory to the controller, lets the
//! controller work, answers messages, and when nothing happens for a while sleeps in short naps.
//!
//! ```text
//!   client                              server
//!   doorbells ──► shared page ────────► Doorbells::forward ─► Registers
//!   messages  ──► socket ─────────────► Session::handle ────► Registers, Bus
//!   memory    ◄─► shared files ◄──────► DmaMemory ◄─────────► the controller
//!   eventfd   ◄─────────────────────────────────────────────► Bus::route_interrupt
//! ```

mod configuration;
mod doorbells;
mod interrupts;
mod listener;
mod memory;
mod pace;
mod session;

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use lode_bus::{Bus, Registers};
use lode_units::{Clock, MonotonicClock};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::error::VfioUserError;
use crate::stream::{Stream, timespec};
use doorbells::Doorbells;
use pace::{Pace, Turn};
use session::{Backlog, Session};

pub use doorbells::DoorbellTransport;
pub use listener::ListeningSocket;

/// Offers the controller behind a bus to one client after the other.
///
/// Between two clients the controller is reset and has no memory of any of them.
#[derive(Debug)]
pub struct Server<B: Bus> {
    bus: B,
    registers: B::Registers,
    doorbells: Doorbells,
    clock: MonotonicClock,
}

/// How a client's stay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Left,
    Stopped,
}

impl<B: Bus> Server<B> {
    /// A server for the controller behind `bus`, which nobody else drives.
    ///
    /// # Errors
    /// When memory for the doorbells is refused.
    pub fn new(
        bus: B,
        transport: DoorbellTransport,
        clock: MonotonicClock,
    ) -> Result<Self, VfioUserError> {
        let registers = bus.registers();
        Ok(Self {
            doorbells: Doorbells::new(transport, registers.length_bytes())?,
            registers,
            bus,
            clock,
        })
    }

    /// Serves whoever connects to `socket`, one at a time; others are turned away meanwhile.
    /// Blocks until `stop` becomes readable. `left` learns how each client's stay ended.
    ///
    /// # Errors
    /// When the socket itself fails.
    pub fn listen(
        &mut self,
        socket: &ListeningSocket,
        stop: BorrowedFd<'_>,
        mut left: impl FnMut(Result<(), VfioUserError>),
    ) -> Result<(), VfioUserError> {
        loop {
            let mut wanted = [
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
                PollFd::new(socket.listener(), PollFlags::IN),
            ];
            match poll(&mut wanted, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(system("waiting for a client", error)),
            }
            if !wanted[0].revents().is_empty() {
                return Ok(());
            }
            let Some(client) = socket.accept()? else {
                continue;
            };
            let outcome = self.stay(client, Some(socket.listener()), stop);
            let is_stopped = matches!(outcome, Ok(End::Stopped));
            left(outcome.map(|_| ()));
            if is_stopped {
                return Ok(());
            }
        }
    }

    /// Serves the client at the other end of `client` until it leaves or `stop` becomes readable.
    /// Blocks.
    ///
    /// # Errors
    /// When the client broke the protocol or was silent in the middle of a message.
    pub fn serve(&mut self, client: UnixStream, stop: BorrowedFd<'_>) -> Result<(), VfioUserError> {
        self.stay(client, None, stop).map(|_| ())
    }

    fn stay(
        &mut self,
        client: UnixStream,
        others: Option<&UnixListener>,
        stop: BorrowedFd<'_>,
    ) -> Result<End, VfioUserError> {
        let stream = Stream::new(client, self.clock);
        let mut session = Session::new(stream, &self.bus, &self.registers, &mut self.doorbells)?;
        let outcome = attend(&mut session, &self.clock, others, stop);
        session.end();
        outcome
    }
}

/// The loop of one client's stay.
fn attend<B: Bus>(
    session: &mut Session<'_, B>,
    clock: &MonotonicClock,
    others: Option<&UnixListener>,
    stop: BorrowedFd<'_>,
) -> Result<End, VfioUserError> {
    let mut pace = Pace::new(clock.now(), session.has_mapped_doorbells());
    let mut nap = Duration::ZERO;
    loop {
        let has_rung = session.forward_doorbells(!nap.is_zero());
        let now = clock.now();
        let due = session.advance(now);
        nap = match pace.turn(now, has_rung, due) {
            Turn::GoOn => {
                nap = Duration::ZERO;
                std::thread::yield_now();
                continue;
            }
            Turn::Look(nap) => nap,
        };
        let mut wanted = [
            PollFd::new(session, PollFlags::IN),
            PollFd::from_borrowed_fd(stop, PollFlags::IN),
            others.map_or(
                PollFd::from_borrowed_fd(stop, PollFlags::empty()),
                |others| PollFd::from_borrowed_fd(others.as_fd(), PollFlags::IN),
            ),
        ];
        match poll(&mut wanted, Some(&timespec(nap))) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(system("waiting for the client", error)),
        }
        let is_wanted = [0, 1, 2].map(|index: usize| !wanted[index].revents().is_empty());
        if is_wanted[1] {
            return Ok(End::Stopped);
        }
        let is_quiet = match (is_wanted[0] || is_wanted[2]).then(|| session.handle()) {
            None | Some(Ok(Backlog::Empty)) => true,
            Some(Ok(Backlog::More)) => false,
            Some(Err(VfioUserError::Closed { .. })) => return Ok(End::Left),
            Some(Err(error)) => return Err(error),
        };
        if is_wanted[0] {
            pace.note_message(clock.now());
        }
        // One client at a time: another one learns so at once, by the end of its connection. First
        // it has to be certain that this one has not left: its successor may come in its steps.
        if let Some(others) = others.filter(|_| is_quiet && is_wanted[2]) {
            let _turned_away = others.accept();
        }
    }
}

fn system(operation: &'static str, error: Errno) -> VfioUserError {
    VfioUserError::System {
        operation,
        source: error.into(),
    }
}
