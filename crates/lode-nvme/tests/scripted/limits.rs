//! Bounds that only a device which never answers, or watches closely, can show.

use std::time::Duration;

use lode_block::{BlockDevice, Operation, RejectReason};
use lode_nvme::{ControllerOptions, ControllerState, QueueOptions};
use lode_nvme_spec::AdminOpcode;
use lode_nvme_spec::command::DoorbellBufferConfig;
use lode_nvme_spec::identify::AdminFeatures;
use lode_units::NamespaceId;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U16;

use crate::device::{Device, Reply, controller, drive, ordinary};
use crate::wire::{open, request};

#[test]
fn no_more_aborts_are_in_flight_than_the_controller_allows() {
    // An abort limit of one (ACL is 0 in the data), and neither I/O nor aborts are answered.
    let device = Device::new(Box::new(|queue, entry| {
        let is_abort = entry.opcode == AdminOpcode::Abort.raw();
        if queue.get() != 0 || is_abort {
            return None;
        }
        ordinary(queue, entry)
    }));
    let mut driven = drive(&device, ControllerOptions::default());
    let options = QueueOptions {
        command_timeout: Duration::from_secs(1),
        ..QueueOptions::default()
    };
    let mut queues: Vec<_> = (0..3)
        .map(|_| {
            let id = NamespaceId::new(1);
            let opened = driven.controller.open_queue(id, options, &driven.space);
            opened.expect("a queue")
        })
        .collect();
    for queue in &mut queues {
        queue
            .submit(request(Operation::Flush, 0, 0, 0, 0))
            .expect("accepted");
    }
    let mut none = Vec::new();
    for _ in 0..3000 {
        driven.tick();
        queues.iter_mut().for_each(|queue| {
            queue.poll(driven.now, &mut none);
        });
    }
    let timeouts: u64 = queues.iter().map(|queue| queue.stats().timeouts).sum();
    assert_eq!(timeouts, 3);
    assert_eq!(device.admin_seen(AdminOpcode::Abort).len(), 1);
}

#[test]
fn no_doorbell_is_rung_once_the_controller_has_closed_the_gate() {
    let device = Device::new(Box::new(ordinary));
    let mut driven = drive(&device, ControllerOptions::default());
    let mut queue = open(&mut driven);
    queue
        .submit(request(Operation::Flush, 0, 0, 0, 0))
        .expect("accepted");
    // The device never says that the shutdown is complete: its queues stay alive.
    driven.controller.begin_shutdown();
    driven.tick();
    assert_eq!(driven.controller.state(), ControllerState::ShuttingDown);
    queue.kick();
    assert!(device.seen().iter().all(|(id, _)| id.get() == 0));
    assert_eq!(queue.stats().submission_doorbells, 0);
}

#[test]
fn a_range_beyond_what_one_command_can_do_is_not_accepted() {
    let device = Device::new(Box::new(ordinary));
    let mut driven = drive(&device, ControllerOptions::default());
    let mut queue = open(&mut driven);
    let longest = queue.geometry().range_max_blocks;
    for operation in [Operation::WriteZeroes, Operation::Deallocate] {
        let refused = queue
            .submit(request(operation, 0, longest + 1, 0, 0))
            .expect_err("too long");
        assert_eq!(refused.reason, RejectReason::Invalid);
        queue
            .submit(request(operation, 0, longest, 0, 0))
            .expect("accepted");
    }
}

/// An ordinary device that offers shadow doorbells.
fn with_shadows(doorbell_stride: u8) -> Device {
    let device = Device::new(Box::new(|queue, entry| {
        let is_identify = entry.opcode == AdminOpcode::Identify.raw();
        if queue.get() == 0 && is_identify && entry.dword_10.get() & 0xFF == 1 {
            let mut identify = controller();
            identify.admin_features = U16::new(AdminFeatures::DOORBELL_BUFFER.bits());
            return Some(Reply::data(identify.as_bytes()));
        }
        ordinary(queue, entry)
    }));
    device.with_capabilities(|cap| cap.doorbell_stride = doorbell_stride)
}

#[test]
fn the_shadows_of_the_admin_doorbells_equal_their_registers() {
    for stride in [0, 3] {
        let device = with_shadows(stride);
        let options = ControllerOptions {
            health_interval: None,
            ..ControllerOptions::default()
        };
        let mut driven = drive(&device, options);
        for _ in 0..100 {
            driven.controller.request_health();
            driven.tick();
            driven.tick();
        }
        let sent = device.admin_seen(AdminOpcode::DoorbellBufferConfig);
        let shadow = DoorbellBufferConfig::decode(&sent[0]).shadow;
        let (memory, offset) = device.memory(shadow.get()).expect("mapped");
        let seen = device.seen().len();
        assert!(seen > 100);
        let tail: u32 = memory.read(offset);
        assert_eq!(usize::try_from(tail).expect("small"), seen % 32);
        // Asynchronous event requests stay unanswered; all else was taken.
        let waiting = device.admin_seen(AdminOpcode::AsyncEventRequest).len();
        let head: u32 = memory.read(offset + (4 << stride));
        assert_eq!(usize::try_from(head).expect("small"), (seen - waiting) % 32);
    }
}

#[test]
fn shadow_doorbells_begin_at_zero_for_each_queue_that_is_created() {
    let device = with_shadows(0);
    let mut driven = drive(&device, ControllerOptions::default());
    let sent = device.admin_seen(AdminOpcode::DoorbellBufferConfig);
    let buffers = DoorbellBufferConfig::decode(&sent[0]);
    drop(open(&mut driven));
    // What an earlier queue left behind, in both pages and for both doorbells of queue 1.
    let places = [buffers.shadow, buffers.event_index].map(|page| {
        let (memory, offset) = device.memory(page.get() + 8).expect("mapped");
        memory.fill_zero(offset, 8);
        memory.write(offset, &[7_u32, 9]);
        (memory, offset)
    });
    for _ in 0..10 {
        driven.tick();
    }
    let queue = open(&mut driven);
    assert_eq!(queue.id().get(), 1);
    for (memory, offset) in places {
        assert_eq!(memory.read::<[u32; 2]>(offset), [0, 0]);
    }
}
