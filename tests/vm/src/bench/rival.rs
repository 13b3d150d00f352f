//! The kernel's driver through `io_uring` under a closed loop: as lean as that way can be.
//!
//! Memory, file and ring are registered; completions are reaped by this thread alone; the disk
//! keeps no statistics and merges nothing. The whole batch is submitted with the system call that
//! also waits.

#![expect(
    unsafe_code,
    reason = "the kernel is told addresses that this file keeps alive: io_uring's interface"
)]

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use io_uring::types::Fixed;
use io_uring::{IoUring, opcode, squeue};
use lode_bus::{DmaMemory, IovaSpace, PagePreference};
use lode_units::{Clock, MonotonicClock, Random, SeededRandom};
use lode_vfio::PciAddress;
use rustix::fs::{Mode, OFlags};

use super::turns::Sample;
use crate::kernel;

/// How completions are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completing {
    /// The kernel polls the device's queue while this thread waits.
    Polled,
    /// The device interrupts.
    Interrupted,
}

/// A ring over the disk of a controller.
///
/// Fields are dropped in this order: the ring, which may have reads in flight, before the file
/// and the memory.
pub(super) struct Rival {
    ring: IoUring,
    _disk: OwnedFd,
    memory: DmaMemory,
    blocks: u64,
    clock: MonotonicClock,
}

impl Rival {
    /// Opens the only namespace of the controller at `address`.
    pub(super) fn new(address: PciAddress, completing: Completing) -> Result<Self> {
        let path = kernel::disk_path(address, 1)?;
        let queue = Path::new("/sys/block")
            .join(path.file_name().context("a disk's name")?)
            .join("queue");
        fs::write(queue.join("iostats"), "0").context("switching statistics off")?;
        fs::write(queue.join("nomerges"), "2").context("switching merging off")?;
        let can_poll = fs::read_to_string(queue.join("io_poll"))?;
        ensure!(
            completing == Completing::Interrupted || can_poll.trim() == "1",
            "the kernel's driver has no polled queue"
        );
        let sectors = fs::read_to_string(queue.with_file_name("size"))?;
        let blocks = sectors.trim().parse::<u64>()? / (4096 / 512);
        let disk = rustix::fs::open(&path, OFlags::RDONLY | OFlags::DIRECT, Mode::empty())
            .with_context(|| format!("opening {}", path.display()))?;
        let memory = IovaSpace::new().allocate(DEPTH_MAX * 4096, PagePreference::Ordinary)?;
        Ok(Self {
            ring: ring(completing, &disk, &memory)?,
            _disk: disk,
            memory,
            blocks,
            clock: MonotonicClock::new(),
        })
    }

    /// Reads `operations` blocks at random places, `depth` at a time: what has completed is
    /// replaced, and submitted with the call that waits for the next.
    pub(super) fn run(&mut self, depth: usize, operations: u64) -> Result<Sample> {
        ensure!(depth <= DEPTH_MAX, "a buffer for each read in flight");
        let mut random = SeededRandom::new(1);
        let mut free: Vec<u16> = (0..u16::try_from(depth)?).collect();
        let (mut submitter, mut submission, mut completion) = self.ring.split();
        submitter.register_ring_fd()?;
        let start = self.clock.now();
        let (mut submitted, mut completed) = (0, 0);
        while completed < operations {
            while submitted < operations
                && let Some(index) = free.pop()
            {
                let entry = read(&self.memory, index, random.below(self.blocks));
                // SAFETY: the entry names the registered file and a page of the registered
                // memory, which live as long as the ring; no reference to that memory exists.
                unsafe { submission.push(&entry) }.context("the ring has room for the depth")?;
                submitted += 1;
            }
            submission.sync();
            let in_flight = usize::try_from(submitted - completed)?;
            submitter.submit_and_wait(in_flight.min(BATCH))?;
            completion.sync();
            for done in &mut completion {
                ensure!(done.result() == 4096, "a read ended with {}", done.result());
                free.push(u16::try_from(done.user_data())?);
                completed += 1;
            }
        }
        let elapsed = self.clock.now().saturating_duration_since(start);
        submitter.unregister_ring_fd()?;
        Ok(Sample {
            operations,
            elapsed,
            doorbells: 0,
            waited: Duration::ZERO,
        })
    }
}

#[inline]
fn read(memory: &DmaMemory, index: u16, block: u64) -> squeue::Entry {
    let address = memory
        .host_address()
        .wrapping_add(usize::from(index) * 4096);
    opcode::ReadFixed::new(Fixed(0), address, 4096, 0)
        .offset(block * 4096)
        .build()
        .user_data(u64::from(index))
}

fn ring(completing: Completing, disk: &OwnedFd, memory: &DmaMemory) -> Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun();
    if completing == Completing::Polled {
        builder.setup_iopoll();
    }
    let ring = builder
        .build(u32::try_from(DEPTH_MAX)?)
        .context("an io_uring")?;
    ring.submitter().register_files(&[disk.as_raw_fd()])?;
    let whole = libc::iovec {
        iov_base: memory.host_address().cast(),
        iov_len: memory.length_bytes(),
    };
    // SAFETY: the memory is mapped as long as the ring lives, and no reference to it ever exists.
    unsafe { ring.submitter().register_buffers(&[whole]) }?;
    Ok(ring)
}

const DEPTH_MAX: usize = 64;
/// How many completions a call waits for when as many are in flight.
const BATCH: usize = 32;
