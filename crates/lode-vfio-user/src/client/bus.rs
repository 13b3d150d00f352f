//! A served controller as a driver sees it.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lode_bus::{Bus, BusError, DmaMemory};
use lode_units::{Instant, MonotonicClock};
use zerocopy::IntoBytes;

use super::Patience;
use super::attach::{self, length_of};
use super::configuration;
use super::dma::Step;
use super::interrupts::Vectors;
use super::link::{Link, Question};
use super::registers::{Shared, VfioUserRegisters};
use crate::error::VfioUserError;
use crate::stream::Stream;
use crate::wire::{Command, DmaMap, DmaUnmap};

/// An NVMe controller that another process serves over a socket.
///
/// Dropping it closes the connection, and the server takes back what it has given.
#[derive(Debug)]
pub struct VfioUserBus {
    name: String,
    shared: Arc<Shared>,
    vectors: Vectors,
    can_reset: bool,
    mappings_max: usize,
    /// When to look for commands of the server, in nanoseconds of the caller's clock.
    look_at: AtomicU64,
    /// Until when the server counts as one that sends some.
    talks_until: AtomicU64,
}

impl VfioUserBus {
    /// Connects to the server at `path` and attaches to its controller. Blocks, for a few times
    /// [`Patience::setup`] at most.
    ///
    /// # Errors
    /// What is missing: the socket, a server, its version, an NVMe controller behind it.
    pub fn open(
        path: &Path,
        patience: Patience,
        clock: MonotonicClock,
    ) -> Result<Self, VfioUserError> {
        let stream = Stream::connect(path, clock)?;
        Self::over(format!("vfio-user:{}", path.display()), stream, patience)
    }

    /// Attaches to the controller at the other end of a connection that is there already.
    ///
    /// # Errors
    /// As [`VfioUserBus::open`].
    pub fn attach(
        name: String,
        socket: UnixStream,
        patience: Patience,
        clock: MonotonicClock,
    ) -> Result<Self, VfioUserError> {
        Self::over(name, Stream::new(socket, clock), patience)
    }

    fn over(name: String, stream: Stream, patience: Patience) -> Result<Self, VfioUserError> {
        let mut link = Link::new(stream, patience);
        let offer = attach::ask_all(&mut link)?;
        Ok(Self {
            name,
            shared: Arc::new(Shared::new(link, offer.areas, offer.length_bytes)),
            vectors: Vectors::new(offer.vector_count),
            can_reset: offer.can_reset,
            mappings_max: offer.mappings_max,
            look_at: AtomicU64::new(0),
            talks_until: AtomicU64::new(0),
        })
    }

    /// Why the server is gone, once it is: for logs.
    #[must_use]
    pub fn loss(&self) -> Option<String> {
        self.shared.loss()
    }

    /// Talks to the server; an error is the bus's.
    fn talk<T>(
        &self,
        operation: &'static str,
        talk: impl FnOnce(&mut Link) -> Result<T, VfioUserError>,
    ) -> Result<T, BusError> {
        self.shared
            .talk(talk)
            .map_err(|error| self.failed(operation, error))
    }

    fn failed(&self, operation: &'static str, error: VfioUserError) -> BusError {
        if self.shared.is_lost() {
            return BusError::Gone;
        }
        BusError::System {
            operation,
            source: io::Error::other(error),
        }
    }

    fn check_vector(&self, vector: u16) -> Result<(), BusError> {
        let count = self.vectors.count;
        if vector >= count {
            return Err(BusError::NoVector { vector, count });
        }
        Ok(())
    }

    fn give(&self, link: &mut Link, memory: &DmaMemory) -> Result<(), VfioUserError> {
        let refused = |reason| VfioUserError::System {
            operation: "sharing memory with the server",
            source: io::Error::other(reason),
        };
        match link.memory.admit(memory) {
            Step::Nothing => return Ok(()),
            Step::Taken => return Err(refused("its address is taken by another memory")),
            Step::Tell => {}
        }
        if link.memory.len() >= self.mappings_max {
            return Err(refused("the server takes no more memories"));
        }
        let file = memory
            .file()
            .ok_or_else(|| refused("it belongs to this process alone"))?;
        let map = DmaMap {
            argsz: length_of::<DmaMap>().into(),
            flags: (DmaMap::FLAG_READ | DmaMap::FLAG_WRITE).into(),
            offset: 0.into(),
            address: memory.iova().get().into(),
            size: (memory.length_bytes() as u64).into(),
        };
        let question = Question {
            fixed: map.as_bytes(),
            data: &[],
            descriptors: &[file],
        };
        let patience = link.patience.setup;
        link.ask(Command::DmaMap, question, patience)?;
        link.memory.insert(memory);
        Ok(())
    }

    fn take_back(link: &mut Link, memory: &DmaMemory) -> Result<(), VfioUserError> {
        if link.memory.release(memory) != Step::Tell {
            return Ok(());
        }
        let unmap = DmaUnmap {
            argsz: length_of::<DmaUnmap>().into(),
            flags: 0.into(),
            address: memory.iova().get().into(),
            size: (memory.length_bytes() as u64).into(),
        };
        let patience = link.patience.setup;
        link.ask(Command::DmaUnmap, Question::of(unmap.as_bytes()), patience)?;
        link.memory.remove(memory);
        Ok(())
    }
}

impl Bus for VfioUserBus {
    type Registers = VfioUserRegisters;

    fn name(&self) -> &str {
        &self.name
    }

    fn registers(&self) -> VfioUserRegisters {
        VfioUserRegisters::new(Arc::clone(&self.shared))
    }

    fn map(&self, memory: &DmaMemory) -> Result<(), BusError> {
        self.shared
            .talk(|link| self.give(link, memory))
            .map_err(|error| {
                if self.shared.is_lost() {
                    return BusError::Gone;
                }
                BusError::Map {
                    iova: memory.iova(),
                    length_bytes: memory.length_bytes(),
                    source: io::Error::other(error),
                }
            })
    }

    fn unmap(&self, memory: &DmaMemory) -> Result<(), BusError> {
        self.talk("hiding memory from the server", |link| {
            Self::take_back(link, memory)
        })
    }

    fn interrupt_count(&self) -> u16 {
        self.vectors.count
    }

    fn enable_interrupt(&self, vector: u16) -> Result<RawFd, BusError> {
        self.check_vector(vector)?;
        if let Some(own) = self.vectors.own(vector)
            && self.is_present()
        {
            return Ok(own);
        }
        self.talk("enabling an interrupt", |link| {
            self.vectors.enable(link, vector)
        })
    }

    fn route_interrupt(&self, vector: u16, signal: BorrowedFd<'_>) -> Result<(), BusError> {
        self.check_vector(vector)?;
        self.talk("routing an interrupt", |link| {
            self.vectors.route(link, vector, signal)
        })
    }

    fn reset_function(&self) -> Result<(), BusError> {
        if !self.can_reset {
            return Err(BusError::Unsupported {
                operation: "resetting the function",
            });
        }
        self.talk("resetting the function", |link| {
            let patience = link.patience.setup;
            link.ask(Command::DeviceReset, Question::default(), patience)?;
            configuration::enable_function(link)?;
            self.vectors.restore(link)
        })
    }

    fn is_present(&self) -> bool {
        !self.shared.is_lost()
    }

    /// Answers commands of the server: one that was not content with shared memory reads and
    /// writes it by messages. Looks once in a millisecond, and at every call while some come.
    fn advance(&self, now: Instant) -> Option<Instant> {
        if self.shared.is_lost() {
            return None;
        }
        if now.as_nanos() >= self.look_at.load(Ordering::Relaxed) {
            match self.shared.try_serve() {
                Some(0) => {
                    let next = now + LOOK_INTERVAL;
                    self.look_at.store(next.as_nanos(), Ordering::Relaxed);
                }
                Some(_) => {
                    let until = now + TALKS_FOR;
                    self.talks_until.store(until.as_nanos(), Ordering::Relaxed);
                    self.look_at.store(now.as_nanos(), Ordering::Relaxed);
                }
                None => {}
            }
        }
        let talks = now.as_nanos() < self.talks_until.load(Ordering::Relaxed);
        talks.then(|| Instant::from_nanos(self.look_at.load(Ordering::Relaxed)))
    }
}

impl Drop for VfioUserBus {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// How often a silent server is looked at: also how soon its end is noticed while polled.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// How long a server that has sent a command is expected to send more.
const TALKS_FOR: Duration = Duration::from_secs(1);
