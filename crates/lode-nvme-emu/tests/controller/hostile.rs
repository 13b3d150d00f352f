//! Hosts that write nonsense, several threads at once, and what is allocated.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lode_bus::{Bus, Registers};
use lode_nvme_emu::{ControllerOptions, EmulatedController, Media, NamespaceOptions};
use lode_nvme_spec::command::BlockFlags;
use lode_nvme_spec::registers as at;
use lode_nvme_spec::{NvmOpcode, SubmissionEntry};
use lode_units::{BlockSize, Instant};
use proptest::prelude::*;
use zerocopy::FromBytes;

use crate::host::{Host, Pair, block, pattern};

/// A host with one page of memory that garbage may name, so that some of it is reachable.
fn garbage_host() -> (Host, Pair) {
    let options = ControllerOptions {
        shadow_doorbells: true,
        transfer_max_shift: 4,
        ..ControllerOptions::default()
    };
    let mut host = Host::with_memory(options, BlockSize::B512, 256);
    let pair = host.create_pair(1, 16);
    (host, pair)
}

/// An entry whose opcode, namespace and addresses are often, but not always, possible.
fn entries() -> impl Strategy<Value = [u8; 64]> {
    let shape = (0_u8..0x20, 0_u32..4, 0_u64..6, 0_u64..6, any::<bool>());
    (proptest::array::uniform32(any::<u8>()), shape).prop_map(|(noise, shape)| {
        let (opcode, namespace, first, second, is_wild) = shape;
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&noise);
        bytes[32..].copy_from_slice(&noise);
        if is_wild {
            return bytes;
        }
        bytes[0] = opcode;
        bytes[1] = 0;
        bytes[4..8].copy_from_slice(&namespace.to_le_bytes());
        let address = |index: u64| 0x20_0000 + index * 0x10_0000 + u64::from(noise[9]) * 4;
        bytes[24..32].copy_from_slice(&address(first).to_le_bytes());
        bytes[32..40].copy_from_slice(&address(second).to_le_bytes());
        bytes[44..48].fill(0);
        bytes[42] = 0;
        bytes[43] = 0;
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_command_makes_the_controller_panic(
        admin in proptest::collection::vec(entries(), 0..12),
        io in proptest::collection::vec(entries(), 0..12),
    ) {
        let (mut host, mut pair) = garbage_host();
        for bytes in io {
            let entry = SubmissionEntry::read_from_bytes(&bytes).expect("64 bytes");
            host.queue(&mut pair, entry);
        }
        host.ring(&pair);
        host.advance();
        for bytes in admin {
            let entry = SubmissionEntry::read_from_bytes(&bytes).expect("64 bytes");
            host.admin_submit(entry);
            while host.admin_next().is_some() {}
            host.advance();
        }
        host.now = Instant::from_nanos(u64::MAX / 2);
        host.advance();
        // Whatever happened, a reset brings it back.
        host.disable();
        host.enable();
        let mut pair = host.create_pair(1, 16);
        host.run_ok(&mut pair, block(NvmOpcode::Verify, 0, 1, BlockFlags::empty()));
    }

    #[test]
    fn no_register_write_makes_the_controller_panic(
        writes in proptest::collection::vec((0_u32..0x1300, any::<u32>(), any::<bool>()), 0..60),
    ) {
        let (mut host, _pair) = garbage_host();
        let registers = host.controller.registers();
        for (offset, value, is_wide) in writes {
            if is_wide {
                registers.write_u64(offset, u64::from(value) << 13 | u64::from(value));
            } else {
                registers.write_u32(offset, value % 64);
                registers.write_u32(offset, value);
            }
            let _value = registers.read_u32(offset);
            host.advance();
        }
        host.controller.reset_function().expect("the device is there");
        host.enable();
    }
}

#[test]
fn several_threads_work_at_once_and_no_command_is_lost() {
    const THREADS: u16 = 4;
    const COMMANDS: u32 = 3000;
    let media = Media::memory(1 << 20).expect("memory");
    let namespace = NamespaceOptions::new(BlockSize::B512, media);
    let controller =
        EmulatedController::new(ControllerOptions::default(), vec![namespace]).expect("options");
    let mut host = Host::over(controller);
    host.enable();
    let mut work = Vec::new();
    for id in 1..=THREADS {
        let pair = host.create_pair(id, 16);
        let buffer = host.allocate(4096);
        work.push((pair, buffer));
    }
    let controller = host.controller.clone();
    let done = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = work
        .into_iter()
        .map(|(mut pair, buffer)| {
            let (controller, done) = (controller.clone(), Arc::clone(&done));
            std::thread::spawn(move || {
                let host = Host::over(controller);
                let lba = u64::from(pair.id.get()) * 64;
                let data = host.pages(&buffer, 0, 512);
                for round in 0..COMMANDS {
                    let bytes = pattern(u64::from(round) ^ lba, 512);
                    buffer.copy_from_slice(0, &bytes);
                    let write = block(NvmOpcode::Write, lba, 1, BlockFlags::empty());
                    host.run_ok(&mut pair, write.with_data(data));
                    buffer.fill_zero(0, 512);
                    let read = block(NvmOpcode::Read, lba, 1, BlockFlags::empty());
                    host.run_ok(&mut pair, read.with_data(data));
                    assert!(buffer.equals(0, &bytes));
                }
                done.fetch_add(1, Ordering::Relaxed);
                // Whoever is finished goes on working for the others.
                while done.load(Ordering::Relaxed) < u32::from(THREADS) {
                    host.advance();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no thread panics");
    }
    let operations = controller.counters().operations;
    let expected = u64::from(THREADS) * u64::from(COMMANDS);
    assert_eq!((operations.reads, operations.writes), (expected, expected));
}

#[test]
fn a_reset_while_other_threads_work_leaves_a_controller_that_works() {
    let mut host = Host::ready();
    let controller = host.controller.clone();
    let is_over = Arc::new(AtomicU32::new(0));
    let helper = {
        let is_over = Arc::clone(&is_over);
        std::thread::spawn(move || {
            while is_over.load(Ordering::Relaxed) == 0 {
                controller.advance(Instant::ZERO);
            }
        })
    };
    for round in 0..200 {
        let mut pair = host.create_pair(1, 16);
        for _ in 0..10 {
            host.queue(
                &mut pair,
                block(NvmOpcode::Verify, 0, 8, BlockFlags::empty()),
            );
        }
        host.ring(&pair);
        if round % 2 == 0 {
            host.wait(&mut pair);
        }
        host.configure(at::Configuration::default());
        while host.status().ready {
            host.advance();
        }
        host.start_enabling();
        while !host.status().ready {
            host.advance();
        }
    }
    is_over.store(1, Ordering::Relaxed);
    helper.join().expect("no panic");
    assert_eq!(host.controller.counters().resets, 200);
}
