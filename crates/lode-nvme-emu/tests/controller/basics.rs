//! Bring-up, and reads and writes of every shape.

use std::time::Duration;

use lode_bus::{Bus, Registers};
use lode_nvme_emu::{ControllerOptions, EmulatedController, Media, NamespaceOptions};
use lode_nvme_spec::command::{BlockFlags, flush};
use lode_nvme_spec::registers::{self as at, Capabilities, Version};
use lode_nvme_spec::{GenericStatus, NvmOpcode, Status};
use lode_units::BlockSize;

use crate::host::{Host, NSID, block, pattern};

#[test]
fn a_controller_says_what_it_is_before_it_is_enabled() {
    let options = ControllerOptions {
        queue_entries_max: 65536,
        doorbell_stride: 3,
        ready_timeout_500ms: 7,
        ..ControllerOptions::default()
    };
    let media = Media::memory(4096).unwrap();
    let namespace = NamespaceOptions::new(BlockSize::B4096, media);
    let controller = EmulatedController::new(options, vec![namespace]).unwrap();
    let registers = controller.registers();
    let capabilities = Capabilities::from_bits(registers.read_u64(at::CAP));
    assert_eq!(capabilities.queue_entries_max_minus_one, 0xFFFF);
    assert_eq!(capabilities.doorbell_stride, 3);
    assert_eq!(capabilities.timeout_500ms, 7);
    let halves =
        u64::from(registers.read_u32(at::CAP)) | u64::from(registers.read_u32(at::CAP + 4)) << 32;
    assert_eq!(halves, capabilities.to_bits());
    assert_eq!(registers.read_u32(at::VS), Version::V2_0.to_bits());
    assert_eq!(registers.read_u32(at::CSTS), 0);
    let end = u32::try_from(registers.length_bytes()).unwrap();
    assert_eq!(registers.read_u32(end), u32::MAX);
}

#[test]
fn ready_comes_when_its_delay_is_over() {
    let options = ControllerOptions {
        enable_delay: Duration::from_millis(10),
        ..ControllerOptions::default()
    };
    let media = Media::memory(4096).unwrap();
    let namespace = NamespaceOptions::new(BlockSize::B4096, media);
    let mut host = Host::over(EmulatedController::new(options, vec![namespace]).unwrap());
    host.start_enabling();
    let due = host.advance().expect("a moment to come back at");
    assert_eq!(due.as_nanos(), 10_000_000);
    assert!(!host.status().ready);
    host.pass(Duration::from_millis(10));
    assert_eq!(host.advance(), None);
    assert!(host.status().ready);
}

#[test]
fn data_come_back_as_written_at_every_block_size() {
    for block_bytes in [512_u64, 1024, 4096, 65536] {
        let size = BlockSize::new(block_bytes).unwrap();
        let mut host = Host::with_memory(ControllerOptions::default(), size, 256);
        let mut pair = host.create_pair(1, 64);
        let length = usize::try_from(block_bytes).unwrap();
        for (lba, blocks) in [(0_u64, 1_usize), (7, 3), (255, 1), (100, 8)] {
            let data = pattern(lba, blocks * length);
            host.write(&mut pair, lba, &data, BlockFlags::empty());
            assert_eq!(host.read(&mut pair, lba, data.len()), data);
        }
        assert_eq!(host.read(&mut pair, 50, length), vec![0; length]);
    }
}

#[test]
fn a_queue_wraps_many_times_without_losing_a_command() {
    let mut host = Host::ready();
    let mut pair = host.create_pair(1, 5);
    for round in 0..100 {
        for _ in 0..3 {
            host.queue(&mut pair, flush(NSID));
        }
        host.ring(&pair);
        host.advance();
        for _ in 0..3 {
            let completion = host
                .next(&mut pair)
                .unwrap_or_else(|| panic!("round {round}"));
            assert_eq!(completion.status(), Status::SUCCESS);
        }
        assert!(host.next(&mut pair).is_none());
    }
    assert_eq!(host.controller.counters().operations.flushes, 300);
}

#[test]
fn a_full_completion_queue_holds_commands_back_until_it_is_read() {
    let mut host = Host::ready();
    let id = lode_units::QueueId::new(1);
    let mut pair = host.create_pair(1, 4);
    let mut seen = 0;
    for _ in 0..3 {
        host.queue(&mut pair, flush(NSID));
    }
    host.ring(&pair);
    host.advance();
    // The host has not read its completions, so three more commands find no room.
    for _ in 0..3 {
        host.queue(&mut pair, flush(NSID));
    }
    host.ring(&pair);
    host.advance();
    assert_eq!(host.controller.counters().operations.flushes, 3);
    while host.next(&mut pair).is_some() {
        seen += 1;
    }
    host.advance();
    while host.next(&mut pair).is_some() {
        seen += 1;
    }
    assert_eq!((id, seen), (pair.id, 6));
}

#[test]
fn transfers_of_every_offset_and_length_arrive() {
    let mut host = Host::ready();
    let mut pair = host.create_pair(1, 64);
    let buffer = host.allocate(1 << 20);
    let lengths = [512, 4096, 4608, 8192, 8704, 65536, 131_072];
    for (round, length) in lengths.into_iter().enumerate() {
        for offset in [0, 4, 512, 2048, 4092] {
            let data = pattern(round as u64 ^ offset as u64, length);
            buffer.copy_from_slice(offset, &data);
            let blocks = host.blocks(length);
            let pages = host.pages(&buffer, offset, length);
            let write = block(NvmOpcode::Write, 16, blocks, BlockFlags::empty());
            host.run_ok(&mut pair, write.with_data(pages));
            buffer.fill_zero(0, 1 << 20);
            let read = block(NvmOpcode::Read, 16, blocks, BlockFlags::empty());
            host.run_ok(&mut pair, read.with_data(pages));
            assert!(buffer.equals(offset, &data), "{length} bytes at {offset}");
            assert!(buffer.equals(offset + length, &[0; 64]), "nothing beyond");
        }
    }
}

#[test]
fn the_longest_transfer_is_taken_and_one_block_more_is_refused() {
    let options = ControllerOptions {
        transfer_max_shift: 5,
        ..ControllerOptions::default()
    };
    let mut host = Host::with_memory(options, BlockSize::B512, 4096);
    let mut pair = host.create_pair(1, 8);
    let buffer = host.allocate(256 << 10);
    let entry = |blocks| {
        let pages = host.pages(&buffer, 0, 132 << 10);
        block(NvmOpcode::Read, 0, blocks, BlockFlags::empty()).with_data(pages)
    };
    let (fits, exceeds) = (entry(256), entry(257));
    host.run_ok(&mut pair, fits);
    let status = host.run(&mut pair, exceeds).status();
    assert_eq!(
        status.code_bits(),
        Status::from(GenericStatus::InvalidField).raw()
    );
    assert!(status.forbids_retry());
}
