//! Bytes from a device are foreign: whatever they are, the driver neither panics nor hangs.

use lode_block::{BlockDevice, Operation};
use lode_nvme::{ControllerOptions, ControllerState, QueueOptions};
use lode_nvme_spec::registers::Capabilities;
use lode_nvme_spec::{AdminOpcode, Status};
use lode_units::{Random, SeededRandom};
use proptest::prelude::*;

use crate::device::{Device, Reply, drive, ordinary};
use crate::wire::request;

fn bytes(random: &mut SeededRandom) -> Vec<u8> {
    (0..512)
        .flat_map(|_| random.next_u64().to_le_bytes())
        .collect()
}

fn word(random: &mut SeededRandom) -> u16 {
    let [low, high, ..] = random.next_u64().to_le_bytes();
    u16::from_le_bytes([low, high])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn identify_data_of_any_content_never_break_bring_up(seed: u64, share in 1_u64..10) {
        let mut random = SeededRandom::new(seed);
        let device = Device::new(Box::new(move |queue, entry| {
            let mut reply = ordinary(queue, entry)?;
            if entry.opcode == AdminOpcode::Identify.raw() && random.below(10) < share {
                reply.data = bytes(&mut random);
                reply.status = Status::SUCCESS;
            }
            if entry.opcode == AdminOpcode::SetFeatures.raw() && random.below(10) < share {
                reply.dword_0 = u32::from(word(&mut random)) << 16 | u32::from(word(&mut random));
            }
            Some(reply)
        }));
        let mut driven = drive(&device, ControllerOptions::default());
        for _ in 0..50 {
            driven.tick();
        }
        let ids: Vec<_> = driven.controller.namespaces().iter().map(|found| found.id).collect();
        for id in ids.into_iter().take(3) {
            let opened =
                driven.controller.open_queue(id, QueueOptions::default(), &driven.space);
            prop_assert!(opened.is_ok() || driven.controller.queue_pairs_granted() < 3);
        }
    }

    #[test]
    fn capabilities_of_any_content_are_driven_or_refused(bits: u64) {
        let device = Device::new(Box::new(ordinary))
            .with_capabilities(|cap| *cap = Capabilities::from_bits(bits));
        let driven = drive(&device, ControllerOptions::default());
        let state = driven.controller.state();
        prop_assert!(matches!(state, ControllerState::Ready | ControllerState::Gone));
    }

    #[test]
    fn completions_of_any_content_end_each_request_at_most_once(seed: u64) {
        let mut random = SeededRandom::new(seed);
        let device = Device::new(Box::new(move |queue, entry| {
            if queue.get() == 0 {
                return ordinary(queue, entry);
            }
            Some(Reply {
                status: Status::from_raw(word(&mut random)),
                names: (random.below(3) > 0).then(|| word(&mut random) & 0x1FF),
                ..Reply::default()
            })
        }));
        let mut driven = drive(&device, ControllerOptions::default());
        let mut queue = crate::wire::open(&mut driven);
        let mut ended = vec![0; 2000];
        for tag in 0..2000_usize {
            let lba = u64::try_from(tag).expect("small");
            let operation = Operation::WriteZeroes;
            if queue.submit(request(operation, lba, 1, 0, 0)).is_err() {
                break;
            }
            queue.kick();
            let mut completions = Vec::with_capacity(8);
            queue.poll(driven.now, &mut completions);
            for completion in completions {
                ended[usize::try_from(completion.tag.0).expect("small")] += 1;
            }
        }
        prop_assert!(ended.iter().all(|count| *count <= 1));
        let stats = queue.stats();
        let in_flight = u64::try_from(queue.in_flight()).expect("small");
        prop_assert_eq!(stats.submitted, stats.completed_total() + in_flight);
        prop_assert!(stats.stale_completions > 0);
    }

    #[test]
    fn admin_completions_of_any_content_lead_to_ready_or_gone(seed: u64) {
        let mut random = SeededRandom::new(seed);
        let device = Device::new(Box::new(move |queue, entry| {
            let mut reply = ordinary(queue, entry)?;
            if random.below(4) == 0 {
                reply.status = Status::from_raw(word(&mut random));
            }
            if random.below(8) == 0 {
                reply.names = Some(word(&mut random));
            }
            Some(reply)
        }));
        let driven = drive(&device, ControllerOptions::default());
        let state = driven.controller.state();
        prop_assert!(matches!(state, ControllerState::Ready | ControllerState::Gone));
    }
}
