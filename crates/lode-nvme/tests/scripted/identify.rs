//! Identify data at their edges.

use lode_block::Operation;
use lode_nvme::{ControllerOptions, ControllerState, Failure, NvmeError, QueueOptions, Refusal};
use lode_nvme_spec::AdminOpcode;
use lode_nvme_spec::SubmissionEntry;
use lode_nvme_spec::registers::Version;
use lode_units::{NamespaceId, QueueId};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

use crate::device::{Device, Reply, controller, drive, namespace, ordinary};

/// The value of CNS in an Identify command of the admin queue.
fn cns(queue: QueueId, entry: &SubmissionEntry) -> Option<u32> {
    let is_identify = queue.get() == 0 && entry.opcode == AdminOpcode::Identify.raw();
    is_identify.then(|| entry.dword_10.get() & 0xFF)
}

/// A list of up to 1024 of the namespaces 1 to `last`, above `after`.
fn list(after: u32, last: u32) -> Reply {
    let ids: Vec<_> = (after + 1..=last).take(1024).map(U32::new).collect();
    let mut bytes = vec![0; 4096];
    bytes[..ids.len() * 4].copy_from_slice(ids.as_bytes());
    Reply::data(&bytes)
}

#[test]
fn lists_of_more_than_1024_namespaces_are_paged() {
    let device = Device::new(Box::new(|queue, entry| match cns(queue, entry) {
        Some(2) => Some(list(entry.namespace_id.get(), 2500)),
        _ => ordinary(queue, entry),
    }));
    let driven = drive(&device, ControllerOptions::default());
    let namespaces = driven.controller.namespaces();
    assert_eq!(namespaces.len(), 2500);
    assert!(
        namespaces
            .iter()
            .zip(1..)
            .all(|(found, id)| found.id.get() == id)
    );
}

#[test]
fn a_list_that_never_ends_is_cut() {
    let device = Device::new(Box::new(|queue, entry| match cns(queue, entry) {
        Some(2) => Some(list(entry.namespace_id.get(), u32::MAX - 2)),
        _ => ordinary(queue, entry),
    }));
    let driven = drive(&device, ControllerOptions::default());
    assert_eq!(driven.controller.namespaces().len(), 4096);
}

#[test]
fn a_list_that_does_not_ascend_ends_the_search() {
    let device = Device::new(Box::new(|queue, entry| match cns(queue, entry) {
        Some(2) => Some(Reply::data([U32::new(7); 1024].as_bytes())),
        _ => ordinary(queue, entry),
    }));
    let driven = drive(&device, ControllerOptions::default());
    assert_eq!(driven.controller.namespaces().len(), 1);
    assert_eq!(driven.controller.namespaces()[0].id, NamespaceId::new(7));
}

#[test]
fn an_early_controller_without_lists_is_searched_by_identifier() {
    let device = Device::new(Box::new(|queue, entry| match cns(queue, entry) {
        Some(1) => {
            let mut identify = controller();
            identify.namespace_id_max = U32::new(3);
            Some(Reply::data(identify.as_bytes()))
        }
        Some(2) => Some(Reply::status(0x002)),
        // The second identifier is not in use.
        Some(0) if entry.namespace_id.get() == 2 => Some(Reply::data(&[0; 4096])),
        _ => ordinary(queue, entry),
    }))
    .with_version(Version::from_bits(0x0001_0000));
    let driven = drive(&device, ControllerOptions::default());
    let ids: Vec<_> = driven
        .controller
        .namespaces()
        .iter()
        .map(|found| found.id.get())
        .collect();
    assert_eq!(ids, [1, 3]);
    let asked = device.admin_seen(AdminOpcode::Identify);
    assert!(asked.iter().all(|entry| entry.dword_10.get() & 0xFF != 6));
}

#[test]
fn a_controller_that_is_not_for_io_is_refused() {
    for (kind, entry_sizes, expected) in [
        (0, 0x66, None),
        (2, 0x66, Some(Failure::NoIoController { kind: 2 })),
        (3, 0x66, Some(Failure::NoIoController { kind: 3 })),
        (1, 0x77, Some(Failure::EntrySizes)),
    ] {
        let device = Device::new(Box::new(move |queue, entry| match cns(queue, entry) {
            Some(1) => {
                let mut identify = controller();
                identify.controller_type = kind;
                identify.submission_entry_sizes = entry_sizes;
                Some(Reply::data(identify.as_bytes()))
            }
            _ => ordinary(queue, entry),
        }));
        let driven = drive(&device, ControllerOptions::default());
        assert_eq!(driven.controller.failure(), expected);
    }
}

#[test]
fn metadata_formats_are_refused_when_a_queue_is_asked_for() {
    let device = Device::new(Box::new(|queue, entry| match cns(queue, entry) {
        Some(0) => {
            let mut identify = namespace(12, 1000);
            identify.lba_formats[0].metadata_bytes = U16::new(64);
            Some(Reply::data(identify.as_bytes()))
        }
        _ => ordinary(queue, entry),
    }));
    let mut driven = drive(&device, ControllerOptions::default());
    let reason = Refusal::Metadata { bytes: 64 };
    let id = NamespaceId::new(1);
    assert_eq!(driven.controller.refused_namespaces(), [(id, reason)]);
    let outcome = driven
        .controller
        .open_queue(id, QueueOptions::default(), &driven.space);
    let Err(NvmeError::UnusableNamespace { reason: told, .. }) = outcome else {
        panic!("refused: {outcome:?}");
    };
    assert_eq!(told, reason);
    assert_eq!(told.to_string(), "64 bytes of metadata per block");
}

#[test]
fn blocks_beyond_32_bits_are_addressed_whole() {
    let device = Device::new(Box::new(ordinary));
    let mut driven = drive(&device, ControllerOptions::default());
    let mut queue = crate::wire::open(&mut driven);
    let lba = (1 << 40) - 8;
    let request = crate::wire::request(Operation::WriteZeroes, lba, 8, 0, 0);
    crate::wire::run(&mut driven, &mut queue, request);
    let (_, entry) = *device.seen().last().expect("a command");
    assert_eq!(entry.dwords_10_11(), lba);
    assert_eq!(entry.dword_12.get() & 0xFFFF, 7);
    assert_eq!(driven.controller.state(), ControllerState::Ready);
}
