//! A namespace that is formatted, resized or made anew under its identifier while a queue uses it:
//! what the queue was promised no longer holds, and what the place holds may be somebody else's.

use lode_block::{BlockDevice, ErrorKind, Operation, RejectReason};
use lode_nvme::ControllerState;
use lode_nvme_emu::{DeviceFault, Media, NamespaceOptions};
use lode_units::BlockSize;

use crate::rig::{FIRST, Queue, Rig, transfer};

const SIZE: u64 = 8 << 20;

/// The namespace that comes in place of the first one, as it is before a test changes it.
fn another(block_size: BlockSize, size_bytes: u64) -> NamespaceOptions {
    let media = Media::memory(size_bytes).expect("memory");
    NamespaceOptions::new(block_size, media)
}

fn replace(rig: &mut Rig, by: NamespaceOptions) {
    assert!(rig.emulator.remove_namespace(FIRST));
    assert_eq!(rig.emulator.add_namespace(by).expect("room"), FIRST);
}

/// How a write of 512 bytes ends.
fn write(rig: &mut Rig, queue: &mut Queue) -> Result<(), ErrorKind> {
    let data = rig.span(0, 512);
    let request = transfer(Operation::Write, 7, 5, 1, data);
    if let Err(rejected) = queue.submit(request) {
        assert_eq!(rejected.reason, RejectReason::Gone);
        return Err(ErrorKind::Gone);
    }
    let completions = rig.drain(queue);
    assert_eq!(completions.len(), 1, "{completions:?}");
    completions[0].result.map_err(|error| error.kind)
}

fn ends_with_gone(by: NamespaceOptions) {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    assert_eq!(write(&mut rig, &mut queue), Ok(()));
    replace(&mut rig, by);
    rig.until(|rig| rig.controller.stats().resets > 0);
    assert_eq!(write(&mut rig, &mut queue), Err(ErrorKind::Retry));
    rig.until_state(ControllerState::Ready);
    assert_eq!(write(&mut rig, &mut queue), Err(ErrorKind::Gone));
    assert_eq!(queue.in_flight(), 0);
    // The controller itself, and whoever takes the namespace as it is now, are fine.
    let mut queue = rig.open();
    let block = queue.geometry().block_size.bytes();
    let data = rig.span(0, block);
    let completion = rig.run(&mut queue, transfer(Operation::Write, 8, 5, 1, data));
    assert_eq!(completion.result, Ok(()));
    assert_eq!(rig.controller.stats().resets, 1);
}

#[test]
fn a_queue_ends_when_its_namespace_has_blocks_of_another_size() {
    ends_with_gone(another(BlockSize::B4096, SIZE));
}

#[test]
fn a_queue_ends_when_its_namespace_has_shrunk() {
    ends_with_gone(another(BlockSize::B512, SIZE / 2));
}

#[test]
fn a_queue_ends_when_another_namespace_has_its_identifier() {
    let mut by = another(BlockSize::B512, SIZE);
    by.nguid = Some([7; 16]);
    ends_with_gone(by);
}

#[test]
fn a_queue_outlives_a_growth_of_its_namespace() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    replace(&mut rig, another(BlockSize::B512, 2 * SIZE));
    let grown = 2 * SIZE / 512;
    rig.until(|rig| {
        let mut found = rig.controller.namespaces().iter();
        found.any(|found| found.geometry.block_count == grown)
    });
    assert_eq!(write(&mut rig, &mut queue), Ok(()));
    assert_eq!(rig.controller.stats().resets, 0);
}

#[test]
fn a_reset_finds_a_namespace_that_was_replaced_before() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    rig.emulator.apply(DeviceFault::FatalStatus);
    let mut by = another(BlockSize::B512, SIZE);
    by.nguid = Some([9; 16]);
    replace(&mut rig, by);
    // It was sent to a controller that has failed; whoever repeats it learns the truth.
    assert_eq!(write(&mut rig, &mut queue), Err(ErrorKind::Retry));
    rig.until_state(ControllerState::Ready);
    assert_eq!(write(&mut rig, &mut queue), Err(ErrorKind::Gone));
    assert_eq!(rig.controller.stats().resets, 1);
}
