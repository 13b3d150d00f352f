//! Interrupts: a queue that asked for a vector fires it, so that its core may sleep.

use std::os::fd::{AsFd, OwnedFd};

use lode_block::{BlockDevice, Operation};
use lode_bus::{Bus, BusError};
use lode_nvme::{NvmeError, QueueOptions};
use lode_nvme_emu::DeviceFault;
use rustix::event::{EventfdFlags, eventfd};

use crate::rig::{FIRST, Rig, bare};

fn signal() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("an eventfd")
}

/// Whether the descriptor was written since the last look.
fn has_fired(signal: &OwnedFd) -> bool {
    let mut count = [0; 8];
    rustix::io::read(signal, &mut count).is_ok()
}

fn with_vector(vector: u16) -> QueueOptions {
    QueueOptions {
        interrupt_vector: Some(vector),
        ..QueueOptions::default()
    }
}

#[test]
fn a_completion_fires_the_vector_of_its_queue_and_no_other() {
    let mut rig = Rig::new().ready();
    let signals = [signal(), signal()];
    for (vector, signal) in (1..).zip(&signals) {
        rig.controller
            .bus()
            .route_interrupt(vector, signal.as_fd())
            .expect("routed");
    }
    let mut first = rig.open_with(with_vector(1));
    let mut second = rig.open_with(with_vector(2));
    let mut silent = rig.open();
    assert_eq!(signals.each_ref().map(has_fired), [false, false]);
    for (queue, expected) in [
        (&mut silent, [false, false]),
        (&mut second, [false, true]),
        (&mut first, [true, false]),
    ] {
        rig.run(queue, bare(Operation::Flush, 1, 0, 0));
        assert_eq!(signals.each_ref().map(has_fired), expected);
    }
}

#[test]
fn the_vector_still_fires_after_a_reset() {
    let mut rig = Rig::new().ready();
    let signal = signal();
    rig.controller
        .bus()
        .route_interrupt(1, signal.as_fd())
        .expect("routed");
    let mut queue = rig.open_with(with_vector(1));
    rig.emulator.apply(DeviceFault::FatalStatus);
    rig.until(|rig| rig.controller.stats().resets_completed == 1);
    let _before = has_fired(&signal);
    let completion = rig.run(&mut queue, bare(Operation::Flush, 1, 0, 0));
    assert_eq!(completion.result, Ok(()));
    assert!(has_fired(&signal));
    assert_eq!(queue.in_flight(), 0);
}

#[test]
fn a_vector_that_does_not_exist_is_refused() {
    let mut rig = Rig::new().ready();
    let count = rig.emulator.interrupt_count();
    let outcome = rig
        .controller
        .open_queue(FIRST, with_vector(count), &rig.space);
    assert!(matches!(
        outcome,
        Err(NvmeError::Bus(BusError::NoVector { vector, .. })) if vector == count
    ));
    // Nothing of the attempt is left behind.
    assert_eq!(rig.open().id().get(), 1);
}
