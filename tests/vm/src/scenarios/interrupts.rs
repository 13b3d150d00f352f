//! MSI-X vectors into event descriptors, with no wake-up lost.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result, anyhow, ensure};
use lode_block::{BlockDevice, Operation};
use lode_bus::Bus;
use lode_nvme::QueueOptions;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::plain;
use crate::rig::{Rig, length_of, request};

/// Reads of which each is waited for asleep; then batches of 16 whose completions may share an
/// interrupt.
pub(super) fn interrupts() -> Result<String> {
    let mut rig = Rig::start(plain()?)?;
    let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    rig.controller
        .bus()
        .route_interrupt(VECTOR, signal.as_fd())
        .context("routing")?;
    let options = QueueOptions {
        interrupt_vector: Some(VECTOR),
        ..QueueOptions::default()
    };
    let mut queue = rig.queue(1, options)?;
    let mut wakes = 0;
    for (rounds, depth) in [(2000, 1), (200, 16)] {
        for round in 0..rounds {
            wakes += sleep_through(&mut rig, &mut queue, &signal, depth)
                .with_context(|| format!("round {round} of {depth}"))?;
        }
    }
    let beyond = rig.controller.bus().interrupt_count();
    ensure!(
        rig.controller.bus().enable_interrupt(beyond).is_err(),
        "vector {beyond} does not exist"
    );
    drop(queue);
    rig.close()?;
    Ok(format!("5,200 reads, {wakes} wake-ups, none lost"))
}

/// Submits `depth` reads and sleeps until all have completed; how often it woke.
fn sleep_through(
    rig: &mut Rig,
    queue: &mut crate::rig::Queue,
    signal: &OwnedFd,
    depth: usize,
) -> Result<u64> {
    let length = length_of(queue, 1);
    for index in 0..depth {
        let lba = u64::try_from(index)?;
        let read = request(Operation::Read, (lba, 1), rig.span(index * length, length));
        queue
            .submit(read)
            .map_err(|rejected| anyhow!("{:?}", rejected.reason))?;
    }
    queue.kick();
    let mut completions = Vec::with_capacity(depth);
    let mut wakes = 0;
    while completions.len() < depth {
        let mut descriptors = [PollFd::new(signal, PollFlags::IN)];
        let ready = poll(&mut descriptors, Some(&LOST_AFTER))?;
        ensure!(ready == 1, "a wake-up was lost with {depth} in flight");
        let mut count = [0; 8];
        rustix::io::read(signal, &mut count)?;
        wakes += 1;
        // Whatever arrives after this poll raises another interrupt.
        queue.poll(rig.now(), &mut completions);
    }
    ensure!(
        completions.iter().all(|done| done.result.is_ok()),
        "a read failed"
    );
    Ok(wakes)
}

const VECTOR: u16 = 3;
const LOST_AFTER: Timespec = Timespec {
    tv_sec: 20,
    tv_nsec: 0,
};
