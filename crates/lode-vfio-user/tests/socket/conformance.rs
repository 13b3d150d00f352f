//! The driver over a socket does what it does in one process.

use lode_block::{BlockDevice, Operation};
use lode_bus::{Bus, DmaSpan};
use lode_nvme::ControllerState;
use lode_nvme_emu::DeviceFault;
use lode_vfio_user::DoorbellTransport::{self, Mapped, Messages};

use crate::rig::{Rig, emulator};

const BOTH: [DoorbellTransport; 2] = [Mapped, Messages];

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| ((index + seed).wrapping_mul(0x9E37_79B1) >> 8).to_le_bytes()[0])
        .collect()
}

#[test]
fn what_is_written_is_read_back_at_every_length_of_transfer() {
    for transport in BOTH {
        for options in ["lba=512", "lba=4096", "lba=512&stride=2", "shadow"] {
            let mut rig = Rig::new(options, transport);
            let block = rig.queue.geometry().block_size.bytes();
            for length in [block, 8192, 16384 + block, 1 << 20] {
                let bytes = pattern(length as usize, length as usize);
                rig.data.copy_from_slice(block as usize, &bytes);
                let source = rig.span(block, length);
                let written = rig.run(Operation::Write, 7, source);
                assert_eq!(written.result, Ok(()), "{options} {length}");
                let target = rig.span(2 << 20, length);
                let read = rig.run(Operation::Read, 7, target);
                assert_eq!(read.result, Ok(()), "{options} {length}");
                assert!(rig.data.equals(2 << 20, &bytes), "{options} {length}");
            }
        }
    }
}

#[test]
fn commands_without_data_and_refused_ones_end_as_they_should() {
    let mut rig = Rig::new("lba=4096&cache=modelled", Mapped);
    rig.data.copy_from_slice(0, &[7; 4096]);
    let data = rig.span(0, 4096);
    assert_eq!(rig.run(Operation::WriteThrough, 3, data).result, Ok(()));
    assert_eq!(rig.run(Operation::Flush, 0, DmaSpan::EMPTY).result, Ok(()));
    assert_eq!(rig.run(Operation::Compare, 3, data).result, Ok(()));
    rig.data.copy_from_slice(0, &[8; 4096]);
    assert!(rig.run(Operation::Compare, 3, data).result.is_err());
}

#[test]
fn many_requests_in_flight_all_end_once_with_their_own_data() {
    for transport in BOTH {
        let mut rig = Rig::new("lba=4096", transport);
        let slots = 32_u32;
        for round in 0..8 {
            for slot in 0..slots {
                let bytes = pattern(slot as usize + 100 * round, 4096);
                rig.data.copy_from_slice(4096 * slot as usize, &bytes);
                let data = rig.span(4096 * slot, 4096);
                rig.submit(Operation::Write, slot.into(), slot.into(), data);
            }
            let written = rig.drain();
            assert_eq!(written.len(), slots as usize);
            assert!(written.iter().all(|done| done.result.is_ok()));
            for slot in 0..slots {
                let data = rig.span((1 << 20) + 4096 * slot, 4096);
                rig.submit(Operation::Read, slot.into(), slot.into(), data);
            }
            let mut tags: Vec<_> = rig.drain().iter().map(|done| done.tag.0).collect();
            tags.sort_unstable();
            assert_eq!(tags, (0..u64::from(slots)).collect::<Vec<_>>());
            for slot in 0..slots as usize {
                let bytes = pattern(slot + 100 * round, 4096);
                assert!(rig.data.equals((1 << 20) + 4096 * slot, &bytes), "{slot}");
            }
        }
    }
}

#[test]
fn a_completion_fires_the_interrupt_of_its_vector() {
    let mut rig = Rig::new("lba=4096", Mapped);
    let signal = rig.controller.enable_interrupt(1).expect("a vector");
    let again = rig.controller.enable_interrupt(1).expect("the same");
    assert_eq!(signal, again);
    assert!(rig.controller.enable_interrupt(9999).is_err());
    let own = rig.route();
    rig.read_by_interrupt(&own);
}

#[test]
fn a_controller_that_fails_is_reset_and_works_on() {
    let emulator = emulator("lba=4096");
    let mut rig = Rig::over(emulator.clone(), Mapped);
    emulator.apply(DeviceFault::FatalStatus);
    rig.until(|rig| {
        rig.turn();
        rig.controller.stats().resets_completed == 1
    });
    let data = rig.span(0, 4096);
    assert_eq!(rig.run(Operation::Write, 1, data).result, Ok(()));
}

#[test]
fn a_reset_of_the_function_leaves_a_controller_that_comes_up_again() {
    let mut rig = Rig::new("lba=4096", Mapped);
    rig.controller.bus().reset_function().expect("reset");
    rig.until(|rig| {
        rig.turn();
        rig.controller.stats().resets_completed == 1
    });
    let data = rig.span(0, 4096);
    assert_eq!(rig.run(Operation::Read, 1, data).result, Ok(()));
}

#[test]
fn a_removed_controller_is_gone_for_the_driver_as_well() {
    let emulator = emulator("lba=4096");
    let mut rig = Rig::over(emulator.clone(), Mapped);
    emulator.apply(DeviceFault::Remove);
    rig.until(|rig| {
        rig.turn();
        rig.controller.state() == ControllerState::Gone
    });
}

#[test]
fn one_client_after_the_other_finds_a_controller_at_rest() {
    let emulator = emulator("lba=4096");
    for round in 0..20_u8 {
        let mut rig = Rig::over(emulator.clone(), Mapped);
        let data = rig.span(0, 4096);
        if round > 0 {
            assert_eq!(rig.run(Operation::Read, 5, data).result, Ok(()));
            assert!(rig.data.equals(0, &[round - 1; 4096]), "round {round}");
        }
        rig.data.copy_from_slice(0, &[round; 4096]);
        assert_eq!(rig.run(Operation::Write, 5, data).result, Ok(()));
        if round % 2 == 0 {
            rig.controller.shut_down(&rig.clock).expect("shut down");
        }
        // Every other round the driver just lets go; either way the server says goodbye.
        let Rig {
            controller,
            queue,
            served,
            ..
        } = rig;
        drop((controller, queue));
        served.outcome().expect("the client left in good order");
    }
}

#[test]
fn memory_that_is_mapped_for_two_uses_is_hidden_with_the_last() {
    let rig = Rig::new("lba=4096", Mapped);
    let memory = rig
        .space
        .allocate(8192, lode_bus::PagePreference::Ordinary)
        .expect("memory");
    let bus = rig.controller.bus();
    for _ in 0..3 {
        bus.map(&memory).expect("mapped");
        bus.map(&memory).expect("once more");
        bus.unmap(&memory).expect("hidden");
        bus.unmap(&memory).expect("hidden again");
    }
    bus.unmap(&memory).expect("not mapped any more");
    let private = rig.space.allocate_private(4096).expect("memory");
    let refused = bus.map(&private).expect_err("nothing to share");
    assert!(std::error::Error::source(&refused).is_some());
    assert!(rig.is_present());
}
