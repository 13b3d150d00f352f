//! Capabilities at their edges.

use lode_block::BlockDevice;
use lode_nvme::{ControllerOptions, ControllerState, Failure, QueueOptions};
use lode_nvme_spec::AdminOpcode;
use lode_nvme_spec::registers::Capabilities;
use lode_units::NamespaceId;

use crate::device::{Device, drive, ordinary};

fn failure(change: impl FnOnce(&mut Capabilities)) -> Option<Failure> {
    let device = Device::new(Box::new(ordinary)).with_capabilities(change);
    drive(&device, ControllerOptions::default())
        .controller
        .failure()
}

#[test]
fn what_cannot_be_driven_is_refused_with_its_reason() {
    assert_eq!(
        failure(|cap| cap.command_sets = Capabilities::COMMAND_SET_ADMIN_ONLY),
        Some(Failure::NoNvmCommandSet)
    );
    assert_eq!(
        failure(|cap| cap.page_size_min = 5),
        Some(Failure::PageSize { shift: 17 })
    );
    assert_eq!(
        failure(|cap| cap.queue_entries_max_minus_one = 0),
        Some(Failure::QueueSize)
    );
    let length_bytes = 0x2000;
    assert_eq!(
        failure(|cap| cap.doorbell_stride = 11),
        Some(Failure::NoDoorbells { length_bytes })
    );
    assert_eq!(failure(|_| ()), None);
}

#[test]
fn the_queue_size_follows_mqes_to_both_ends() {
    for (mqes, asked, depth) in [
        (1, 256, 1),
        (2, 256, 2),
        (0xFFFF, 4096, 4095),
        (0xFFFF, 2, 1),
    ] {
        let device = Device::new(Box::new(ordinary))
            .with_capabilities(|cap| cap.queue_entries_max_minus_one = mqes);
        let mut driven = drive(&device, ControllerOptions::default());
        let options = QueueOptions {
            entries: asked,
            ..QueueOptions::default()
        };
        let queue = driven
            .controller
            .open_queue(NamespaceId::new(1), options, &driven.space)
            .expect("a queue");
        assert_eq!(queue.geometry().queue_depth_max, depth, "MQES {mqes}");
    }
}

#[test]
fn a_larger_smallest_page_is_what_the_controller_is_told_and_queues_are_aligned_to() {
    for page_size_min in 0..=4 {
        let device = Device::new(Box::new(ordinary)).with_capabilities(|cap| {
            cap.page_size_min = page_size_min;
            cap.page_size_max = 4;
        });
        let mut driven = drive(&device, ControllerOptions::default());
        assert_eq!(driven.controller.state(), ControllerState::Ready);
        assert_eq!(device.configuration().page_size, page_size_min);
        let _queue = driven
            .controller
            .open_queue(NamespaceId::new(1), QueueOptions::default(), &driven.space)
            .expect("a queue");
        for _ in 0..10 {
            driven.tick();
        }
        let page = 4096_u64 << page_size_min;
        for opcode in [
            AdminOpcode::CreateCompletionQueue,
            AdminOpcode::CreateSubmissionQueue,
        ] {
            let created = device.admin_seen(opcode);
            assert_eq!(created.len(), 1);
            assert!(created[0].data_pointer.prp1.get().is_multiple_of(page));
        }
    }
}

#[test]
fn no_more_queues_are_asked_for_than_the_window_has_doorbells() {
    // Room for the admin queue and three more.
    let device = Device::new(Box::new(ordinary)).with_window(0x1000 + 4 * 8);
    let driven = drive(&device, ControllerOptions::default());
    assert_eq!(driven.controller.queue_pairs_granted(), 3);
}
