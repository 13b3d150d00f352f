//! File I/O that runs while the controller goes on: io_uring, or blocking calls where the host
//! refuses it.
//!
//! Invariants:
//! 1. The memory and the file of an operation are held here from its start until its result was
//!    taken, so that the kernel never touches memory that was given back.
//! 2. At most `capacity` operations are in flight.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use lode_bus::DmaMemory;

use super::super::{Media, MediaError, Space, media_error};
use super::syscall::checked_address;
use super::{DIRECT_ALIGNMENT_BYTES, FileStore};

/// What to do with a file. Positions are those of the [`Media`] it is started on.
#[derive(Clone, Debug)]
pub(crate) enum FileOp {
    /// Read into memory.
    Read(FileData),
    /// Write from memory; with `Reach::Stable`, done when the data are on stable storage.
    Write(FileData, Reach),
    /// Put everything written onto stable storage.
    Sync,
    /// Make a range read as zeros.
    Zero {
        /// Where it begins, in bytes.
        position: u64,
        /// How long it is, in bytes.
        length: u64,
        /// What becomes of its space.
        space: Space,
    },
}

/// The memory and the place of a read or write.
#[derive(Clone, Debug)]
pub(crate) struct FileData {
    /// The memory.
    pub(crate) memory: DmaMemory,
    /// Where in the memory.
    pub(crate) offset: usize,
    /// How many bytes.
    pub(crate) length: usize,
    /// Where in the media.
    pub(crate) position: u64,
}

/// How far a write has come when it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Into the host's or the model's cache.
    Cache,
    /// Onto stable storage.
    Stable,
}

/// The operations of one queue on files.
#[derive(Debug)]
pub(crate) struct FileRing {
    engine: Engine,
    /// What each token in flight holds (invariant 1).
    held: Vec<Option<Held>>,
    in_flight: usize,
}

enum Engine {
    Uring(Box<IoUring>),
    Blocking(VecDeque<Finished>),
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Uring(_) => "Uring",
            Self::Blocking(_) => "Blocking",
        })
    }
}

#[derive(Debug)]
struct Held {
    _memory: Option<DmaMemory>,
    _media: Media,
}

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    /// The token it was started with.
    pub(crate) token: u16,
    /// How many bytes were moved, which may be fewer than asked for.
    pub(crate) outcome: Result<usize, MediaError>,
}

impl FileData {
    /// Whether direct I/O can use the memory as it is.
    pub(crate) fn is_aligned(&self) -> bool {
        self.offset.is_multiple_of(DIRECT_ALIGNMENT_BYTES)
            && self.length.is_multiple_of(DIRECT_ALIGNMENT_BYTES)
    }
}

impl FileRing {
    /// A ring for tokens below `capacity`. Allocates and enters the kernel.
    pub(crate) fn with_capacity(capacity: u16) -> Self {
        let entries = u32::from(capacity.max(1)).next_power_of_two();
        let engine = match IoUring::new(entries) {
            Ok(ring) => Engine::Uring(Box::new(ring)),
            Err(_) => Engine::Blocking(VecDeque::with_capacity(usize::from(capacity))),
        };
        Self::over(engine, capacity)
    }

    fn over(engine: Engine, capacity: u16) -> Self {
        let held = std::iter::repeat_with(|| None)
            .take(usize::from(capacity))
            .collect();
        Self {
            engine,
            held,
            in_flight: 0,
        }
    }

    /// Whether the host lets this process have a ring.
    pub(super) fn is_available() -> bool {
        IoUring::new(1).is_ok()
    }

    /// Makes finished operations fire `signal` from now on.
    pub(crate) fn register_signal(&mut self, signal: RawFd) -> io::Result<()> {
        let Engine::Uring(ring) = &self.engine else {
            return Ok(());
        };
        // A ring has one signal; there may have been none so far.
        let _had_none = ring.submitter().unregister_eventfd().is_err();
        ring.submitter().register_eventfd(signal)
    }

    /// How many operations are in flight.
    pub(crate) const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Starts an operation; the kernel need not see it before [`FileRing::submit`].
    ///
    /// Panics when the token is in flight or beyond the capacity: a broken invariant of the
    /// caller.
    pub(crate) fn start(&mut self, token: u16, media: &Media, op: &FileOp) {
        let store = media.file().expect("file operations are for files");
        let held = &mut self.held[usize::from(token)];
        assert!(held.is_none(), "a token is in flight once");
        let memory = match op {
            FileOp::Read(data) | FileOp::Write(data, _) => Some(data.memory.clone()),
            FileOp::Sync | FileOp::Zero { .. } => None,
        };
        *held = Some(Held {
            _memory: memory,
            _media: media.clone(),
        });
        self.in_flight += 1;
        match &mut self.engine {
            Engine::Uring(ring) => {
                let entry = entry(store, media, op).map(|entry| entry.user_data(u64::from(token)));
                push(ring, &entry.unwrap_or_else(|| failing(token)));
            }
            Engine::Blocking(finished) => {
                let outcome = run(media, op);
                finished.push_back(Finished { token, outcome });
            }
        }
    }

    /// Whether an operation has ended whose result was not taken.
    pub(crate) fn has_finished(&mut self) -> bool {
        match &mut self.engine {
            Engine::Uring(ring) => !ring.completion().is_empty(),
            Engine::Blocking(finished) => !finished.is_empty(),
        }
    }

    /// Shows the kernel what was started; whether all of it was taken. On a passing refusal
    /// (EAGAIN, EBUSY) the rest stays and is shown by the next call. Does not wait.
    pub(crate) fn submit(&mut self) -> bool {
        let Engine::Uring(ring) = &mut self.engine else {
            return true;
        };
        ring.submission().is_empty() || (ring.submit().is_ok() && ring.submission().is_empty())
    }

    /// The next operation that ended.
    pub(crate) fn reap(&mut self) -> Option<Finished> {
        let finished = match &mut self.engine {
            Engine::Uring(ring) => {
                let completion = ring.completion().next()?;
                let token = u16::try_from(completion.user_data()).expect("a token of ours");
                let result = completion.result();
                let outcome = usize::try_from(result).map_err(|_negative| media_error(-result));
                Finished { token, outcome }
            }
            Engine::Blocking(finished) => finished.pop_front()?,
        };
        self.held[usize::from(finished.token)] = None;
        self.in_flight -= 1;
        Some(finished)
    }

    /// Waits until the kernel is done with everything in flight, for a bounded time. Returns
    /// whether that came about. Blocks; results stay to be taken.
    pub(crate) fn settle(&mut self) -> bool {
        for _round in 0..DRAIN_ROUNDS {
            self.submit();
            let in_flight = self.in_flight;
            let Engine::Uring(ring) = &mut self.engine else {
                return true;
            };
            if ring.completion().len() >= in_flight {
                return true;
            }
            wait(ring, in_flight);
        }
        false
    }

    /// Waits until nothing is in flight, at most `DRAIN_ROUNDS` times `DRAIN_WAIT_MS`. Returns
    /// whether that came about. Blocks; results are dropped.
    pub(crate) fn drain(&mut self) -> bool {
        for _round in 0..DRAIN_ROUNDS {
            self.submit();
            while self.reap().is_some() {}
            if self.in_flight == 0 {
                return true;
            }
            if let Engine::Uring(ring) = &self.engine {
                wait(ring, 1);
            }
        }
        false
    }
}

impl Drop for FileRing {
    /// Waits for the kernel. Where that fails, what the kernel may still touch is given up for
    /// good rather than reused.
    fn drop(&mut self) {
        if !self.drain() {
            Box::leak(Box::new(std::mem::take(&mut self.held)));
        }
    }
}

/// The ring entry of an operation, or `None` when its numbers do not fit the kernel's.
fn entry(store: &FileStore, media: &Media, op: &FileOp) -> Option<squeue::Entry> {
    let data_descriptor = Fd(store.ring_descriptor());
    let descriptor = Fd(store.buffered_descriptor());
    Some(match op {
        FileOp::Read(data) => {
            let position = media.locate(data.position, data.length as u64);
            let address = checked_address(&data.memory, data.offset, data.length);
            let length = u32::try_from(data.length).ok()?;
            opcode::Read::new(data_descriptor, address, length)
                .offset(position)
                .build()
        }
        FileOp::Write(data, reach) => {
            let position = media.locate(data.position, data.length as u64);
            let address = checked_address(&data.memory, data.offset, data.length);
            let length = u32::try_from(data.length).ok()?;
            let flags = match reach {
                Reach::Cache => 0,
                Reach::Stable => libc::RWF_DSYNC,
            };
            opcode::Write::new(data_descriptor, address.cast_const(), length)
                .offset(position)
                .rw_flags(flags)
                .build()
        }
        FileOp::Sync => opcode::Fsync::new(descriptor)
            .flags(FsyncFlags::DATASYNC)
            .build(),
        FileOp::Zero {
            position,
            length,
            space,
        } => opcode::Fallocate::new(descriptor, *length)
            .offset(media.locate(*position, *length))
            .mode(store.zero_mode(*space)?)
            .build(),
    })
}

/// An entry that ends with an error, for an operation that the kernel cannot be asked for.
fn failing(token: u16) -> squeue::Entry {
    let nowhere = Fd(-1);
    opcode::Fsync::new(nowhere)
        .build()
        .user_data(u64::from(token))
}

/// Waits for `count` results, at most `DRAIN_WAIT_MS`.
fn wait(ring: &IoUring, count: usize) {
    let time = Timespec::new().nsec(DRAIN_WAIT_MS * 1_000_000);
    let arguments = SubmitArgs::new().timespec(&time);
    let _timed_out = ring
        .submitter()
        .submit_with_args(count, &arguments)
        .is_err();
}

fn push(ring: &mut IoUring, entry: &squeue::Entry) {
    for _attempt in 0..PUSH_ATTEMPTS {
        // SAFETY: the addresses in the entry were checked against memory that `held` keeps mapped
        // until the result was taken, and its descriptor belongs to a file that `held` keeps open.
        let pushed = unsafe { ring.submission().push(entry) };
        if pushed.is_ok() {
            return;
        }
        let _stays_queued = ring.submit().is_err();
    }
    unreachable!("the ring has an entry for each token");
}

/// The same operation through calls that block.
fn run(media: &Media, op: &FileOp) -> Result<usize, MediaError> {
    match op {
        FileOp::Read(data) => media
            .read(data.position, &data.memory, data.offset, data.length)
            .map(|()| data.length),
        FileOp::Write(data, reach) => {
            media.write(data.position, &data.memory, data.offset, data.length)?;
            if *reach == Reach::Stable {
                media.sync()?;
            }
            Ok(data.length)
        }
        FileOp::Sync => media.sync().map(|()| 0),
        FileOp::Zero {
            position,
            length,
            space,
        } => media.zero(*position, *length, *space).map(|()| 0),
    }
}

const PUSH_ATTEMPTS: usize = 64;
const DRAIN_ROUNDS: usize = 50;
const DRAIN_WAIT_MS: u32 = 100;

#[cfg(test)]
mod tests;
