//! What the device finds in memory when a doorbell rings.

use lode_block::{BlockDevice, Completion, Operation, Request, Tag};
use lode_bus::{DmaSpan, PagePreference};
use lode_nvme::{ControllerOptions, NamespaceQueue, QueueOptions};
use lode_nvme_spec::NvmOpcode;
use lode_nvme_spec::command::{BlockCommand, BlockFlags, DatasetManagement, DatasetRange};
use lode_units::{Iova, Lba, NamespaceId};

use crate::device::{Device, Driven, Reply, drive, ordinary};

pub(crate) fn open(driven: &mut Driven) -> NamespaceQueue<Device> {
    let mut queue = driven
        .controller
        .open_queue(NamespaceId::new(1), QueueOptions::default(), &driven.space)
        .expect("a queue");
    let mut none = Vec::new();
    for _ in 0..100 {
        driven.tick();
        queue.poll(driven.now, &mut none);
    }
    assert!(queue.is_live());
    queue
}

pub(crate) fn request(
    operation: Operation,
    lba: u64,
    block_count: u32,
    iova: u64,
    length_bytes: u32,
) -> Request {
    Request {
        tag: Tag(lba),
        operation,
        lba: Lba::new(lba),
        block_count,
        data: DmaSpan {
            iova: Iova::new(iova),
            length_bytes,
        },
    }
}

pub(crate) fn run(
    driven: &mut Driven,
    queue: &mut NamespaceQueue<Device>,
    request: Request,
) -> Completion {
    queue.submit(request).expect("accepted");
    queue.kick();
    driven.tick();
    let mut completions = Vec::with_capacity(1);
    assert_eq!(queue.poll(driven.now, &mut completions), 1);
    completions[0]
}

#[test]
fn each_operation_becomes_its_command() {
    let device = Device::new(Box::new(ordinary));
    let mut driven = drive(&device, ControllerOptions::default());
    let mut queue = open(&mut driven);
    let data = driven
        .space
        .allocate(8192, PagePreference::Ordinary)
        .expect("memory");
    let iova = data.iova().get() + 4;
    for (operation, opcode) in [
        (Operation::Read, NvmOpcode::Read),
        (Operation::Write, NvmOpcode::Write),
        (Operation::WriteThrough, NvmOpcode::Write),
        (Operation::Compare, NvmOpcode::Compare),
    ] {
        run(
            &mut driven,
            &mut queue,
            request(operation, 77, 3, iova, 1536),
        );
        let (id, entry) = *device.seen().last().expect("a command");
        assert_eq!(id, queue.id());
        let command = BlockCommand::decode(&entry);
        assert_eq!(
            command,
            BlockCommand {
                opcode,
                namespace: NamespaceId::new(1),
                lba: Lba::new(77),
                block_count: 3,
                flags: BlockFlags::empty(),
            }
        );
        assert_eq!(entry.data_pointer.prp1.get(), iova);
        assert_eq!(entry.data_pointer.prp2.get(), 0);
        assert!(!entry.uses_sgl() && !entry.is_fused());
    }
    run(
        &mut driven,
        &mut queue,
        request(Operation::Flush, 0, 0, 0, 0),
    );
    let (_, entry) = *device.seen().last().expect("a command");
    assert_eq!(entry.opcode, NvmOpcode::Flush.raw());
    assert_eq!(entry.namespace_id(), NamespaceId::new(1));
    assert_eq!(entry.dwords_10_11(), 0, "nothing of the request's block");
}

#[test]
fn a_deallocation_names_its_range_in_mapped_memory() {
    let device = Device::new(Box::new(ordinary));
    let mut driven = drive(&device, ControllerOptions::default());
    let mut queue = open(&mut driven);
    run(
        &mut driven,
        &mut queue,
        request(Operation::Deallocate, 1 << 33, 2000, 0, 0),
    );
    let (_, entry) = *device.seen().last().expect("a command");
    let command = DatasetManagement::decode(&entry);
    assert!(command.deallocates);
    assert_eq!(command.range_count, 1);
    let address = entry.data_pointer.prp1.get();
    let (memory, offset) = device.memory(address).expect("mapped");
    let range: DatasetRange = memory.read(offset);
    assert_eq!((range.lba.get(), range.block_count.get()), (1 << 33, 2000));
}

#[test]
fn no_two_commands_in_flight_share_an_identifier() {
    let device = Device::new(Box::new(|queue, entry| {
        if queue.get() == 0 {
            return ordinary(queue, entry);
        }
        None
    }));
    let mut driven = drive(&device, ControllerOptions::default());
    let mut queue = open(&mut driven);
    while queue.submit(request(Operation::Flush, 0, 0, 0, 0)).is_ok() {}
    queue.kick();
    let seen = device.seen();
    let mut ids: Vec<_> = seen
        .iter()
        .filter(|(id, _)| *id == queue.id())
        .map(|(_, entry)| entry.command_id())
        .collect();
    assert_eq!(ids.len(), 255);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 255);
}

#[test]
fn a_completion_of_an_earlier_use_of_a_slot_ends_nobody() {
    // The second command of the queue is answered under the name of the first.
    let mut first = None;
    let device = Device::new(Box::new(move |queue, entry| {
        let reply = ordinary(queue, entry)?;
        if queue.get() == 0 {
            return Some(reply);
        }
        let names = first.replace(entry.command_id().get());
        Some(Reply { names, ..reply })
    }));
    let mut driven = drive(&device, ControllerOptions::default());
    let mut queue = open(&mut driven);
    run(
        &mut driven,
        &mut queue,
        request(Operation::Flush, 0, 0, 0, 0),
    );
    queue
        .submit(request(Operation::Flush, 0, 0, 0, 0))
        .expect("accepted");
    queue.kick();
    let mut completions = Vec::with_capacity(1);
    assert_eq!(queue.poll(driven.now, &mut completions), 0);
    assert_eq!(queue.stats().stale_completions, 1);
    assert_eq!(queue.in_flight(), 1);
    let seen = device.seen();
    let slots: Vec<_> = seen
        .iter()
        .filter(|(id, _)| *id == queue.id())
        .map(|(_, entry)| entry.command_id().get() & 0xFF)
        .collect();
    assert_eq!(slots[0], slots[1], "both commands had the same slot");
}
