//! A namespace that is detached from its controller and attached again while it is in use. The
//! device refuses what names it with Invalid Field in Command, which alone says too little.

use lode_block::{BlockDevice, ErrorKind, Operation};
use lode_nvme::ControllerState;
use lode_nvme_emu::{Media, NamespaceOptions};
use lode_units::BlockSize;

use crate::rig::{FIRST, Queue, Rig, bare, transfer};

/// The status without "do not retry": Generic, Invalid Field in Command.
const INVALID_FIELD: u16 = 0x002;

/// How a read ends, by kind and status.
fn read(rig: &mut Rig, queue: &mut Queue) -> Result<(), (ErrorKind, Option<u16>)> {
    let data = rig.span(0, 512);
    let completion = rig.run(queue, transfer(Operation::Read, 7, 5, 1, data));
    assert_eq!(completion.tag.0, 7);
    let kind_and_code =
        |error: lode_block::DeviceError| (error.kind, error.status.map(|status| status & 0x7FF));
    completion.result.map_err(kind_and_code)
}

fn attach_again(rig: &mut Rig) {
    let media = Media::memory(8 << 20).expect("memory");
    let attached = rig
        .emulator
        .add_namespace(NamespaceOptions::new(BlockSize::B512, media));
    assert_eq!(attached.expect("room"), FIRST);
    rig.until(|rig| rig.controller.namespaces().len() == 1);
}

#[test]
fn what_names_a_detached_namespace_ends_with_gone_until_it_is_attached_again() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    let gone = Err((ErrorKind::Gone, Some(INVALID_FIELD)));
    for _ in 0..2 {
        assert_eq!(read(&mut rig, &mut queue), Ok(()));
        assert!(rig.emulator.remove_namespace(FIRST));
        // Before the driver knows, and when it does.
        assert_eq!(read(&mut rig, &mut queue), gone);
        rig.until(|rig| rig.controller.namespaces().is_empty());
        assert_eq!(read(&mut rig, &mut queue), gone);
        let flushed = rig.run(&mut queue, bare(Operation::Flush, 8, 0, 0));
        let error = flushed.result.expect_err("nothing is promised");
        assert_eq!(error.kind, ErrorKind::Gone);
        attach_again(&mut rig);
    }
    assert_eq!(read(&mut rig, &mut queue), Ok(()));
    assert_eq!(rig.controller.stats().resets, 0);
}

#[test]
fn a_full_queue_of_refused_requests_is_told_of_each_of_them_once() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    assert!(rig.emulator.remove_namespace(FIRST));
    let data = rig.span(0, 512);
    let depth = u64::from(queue.geometry().queue_depth_max);
    for tag in 0..depth {
        queue
            .submit(transfer(Operation::Read, tag, 0, 1, data))
            .expect("a slot");
    }
    let mut tags: Vec<_> = rig
        .drain(&mut queue)
        .iter()
        .map(|completion| {
            let error = completion.result.expect_err("detached");
            assert_eq!(error.kind, ErrorKind::Gone);
            completion.tag.0
        })
        .collect();
    tags.sort_unstable();
    assert_eq!(tags, (0..depth).collect::<Vec<_>>());
}

#[test]
fn an_invalid_field_under_an_attached_namespace_stays_one() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    rig.fault("opcode=read lba=5..6 count=2 -> status=0x002");
    let invalid = Err((ErrorKind::Invalid, Some(INVALID_FIELD)));
    assert_eq!(read(&mut rig, &mut queue), invalid);
    assert_eq!(read(&mut rig, &mut queue), invalid);
    assert_eq!(read(&mut rig, &mut queue), Ok(()));
    assert_eq!(queue.in_flight(), 0);
}

#[test]
fn a_reset_that_comes_before_the_namespaces_are_known_asks_for_a_retry() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    rig.fault("opcode=read count=1 -> status=0x002");
    rig.fault("queue=admin opcode=identify count=1 -> drop");
    assert_eq!(read(&mut rig, &mut queue), Err((ErrorKind::Retry, None)));
    rig.until_state(ControllerState::Ready);
    rig.until_live(&mut queue);
    assert_eq!(read(&mut rig, &mut queue), Ok(()));
    assert_eq!(rig.controller.stats().resets, 1);
}

#[test]
fn a_refused_request_ends_with_a_device_that_is_removed_meanwhile() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    rig.fault("opcode=read count=1 -> status=0x002");
    rig.fault("queue=admin opcode=identify count=1 -> remove");
    assert_eq!(read(&mut rig, &mut queue), Err((ErrorKind::Gone, None)));
}
