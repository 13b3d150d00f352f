//! MSI-X vectors into event descriptors, with no wake-up lost.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

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
    let resting = rest(&mut rig, &mut queue, &signal).context("resting")?;
    let beyond = rig.controller.bus().interrupt_count();
    ensure!(
        rig.controller.bus().enable_interrupt(beyond).is_err(),
        "vector {beyond} does not exist"
    );
    drop(queue);
    rig.close()?;
    Ok(format!(
        "5,200 reads, {wakes} wake-ups, none lost; {resting}"
    ))
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

/// A vector that rests fires nothing while its queue is polled, and tells what it kept when it is
/// routed again. Says what firing and resting cost.
fn rest(rig: &mut Rig, queue: &mut crate::rig::Queue, signal: &OwnedFd) -> Result<String> {
    let firing = poll_through(rig, queue)?;
    ensure!(has_fired(signal)?, "a vector that fires");
    rig.controller.bus().rest_interrupt(VECTOR)?;
    let _before = has_fired(signal)?;
    let resting = poll_through(rig, queue)?;
    ensure!(!has_fired(signal)?, "a vector that rests has fired");
    rig.controller
        .bus()
        .route_interrupt(VECTOR, signal.as_fd())?;
    let mut descriptors = [PollFd::new(signal, PollFlags::IN)];
    let ready = poll(&mut descriptors, Some(&LOST_AFTER))?;
    ensure!(ready == 1, "what happened meanwhile was not kept");
    // A read waited for asleep, as before.
    let _kept = has_fired(signal)?;
    sleep_through(rig, queue, signal, 1)?;
    let from = rig.now();
    for _ in 0..SWITCHES {
        rig.controller.bus().rest_interrupt(VECTOR)?;
        rig.controller
            .bus()
            .route_interrupt(VECTOR, signal.as_fd())?;
    }
    let switching = rig.now().saturating_duration_since(from) / SWITCHES;
    Ok(format!(
        "a polled read takes {firing:?} with its vector firing, {resting:?} with it at rest; rest \
         and route {switching:?}"
    ))
}

/// Polls for reads, one at a time; how long each took.
fn poll_through(rig: &mut Rig, queue: &mut crate::rig::Queue) -> Result<Duration> {
    let length = length_of(queue, 1);
    let from = rig.now();
    for _ in 0..POLLED {
        let read = request(Operation::Read, (0, 1), rig.span(0, length));
        rig.run(queue, read)??;
    }
    Ok(rig.now().saturating_duration_since(from) / POLLED)
}

/// Whether the descriptor was written since the last look.
fn has_fired(signal: &OwnedFd) -> Result<bool> {
    let mut count = [0; 8];
    match rustix::io::read(signal, &mut count) {
        Ok(_) => Ok(true),
        Err(rustix::io::Errno::AGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

const POLLED: u32 = 500;
const SWITCHES: u32 = 200;
const VECTOR: u16 = 3;
const LOST_AFTER: Timespec = Timespec {
    tv_sec: 20,
    tv_nsec: 0,
};
