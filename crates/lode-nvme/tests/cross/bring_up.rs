//! Bring-up, identification, shutdown.

use std::time::Duration;

use lode_block::{BlockDevice, Operation, WriteCache};
use lode_bus::{Bus, Registers};
use lode_nvme::{
    ControllerEvent, ControllerOptions, ControllerState, Failure, NvmeError, QueueOptions, Quirks,
    WriteCachePolicy,
};
use lode_nvme_emu::{Cache, EmulatedController, Media, NamespaceOptions};
use lode_nvme_spec::registers::{CC, CSTS, ControllerStatus};
use lode_units::{BlockSize, Instant, ManualClock, MonotonicClock, NamespaceId};

use crate::rig::{EmulatorOptions, FIRST, Rig, RigSpec, bare, transfer};

#[test]
fn a_controller_comes_up_and_says_what_it_is() {
    let rig = Rig::new().ready();
    let identity = rig.controller.identity().expect("identified");
    assert_eq!(identity.serial_number, "LODE0001");
    assert_eq!(identity.transfer_max_bytes, 1 << 20);
    assert_eq!(identity.write_cache, WriteCache::None);
    let [namespace] = rig.controller.namespaces() else {
        panic!("one namespace: {:?}", rig.controller.namespaces());
    };
    assert_eq!(namespace.id, FIRST);
    assert_eq!(namespace.geometry.block_size, BlockSize::B512);
    assert_eq!(namespace.geometry.block_count, (8 << 20) / 512);
    assert!(namespace.geometry.supports_compare);
}

#[test]
fn delays_within_the_controllers_own_timeout_are_waited_for() {
    let spec = RigSpec {
        emulator: EmulatorOptions {
            enable_delay: Duration::from_secs(4),
            ready_timeout_500ms: 10,
            ..EmulatorOptions::default()
        },
        ..RigSpec::default()
    };
    let rig = spec.build().ready();
    assert!(rig.now >= Instant::ZERO + Duration::from_secs(4));
    assert_eq!(rig.controller.stats().resets, 0);
}

#[test]
fn a_controller_that_never_gets_ready_fails_in_bounded_time() {
    let spec = RigSpec {
        emulator: EmulatorOptions {
            enable_delay: Duration::from_secs(3600),
            ready_timeout_500ms: 2,
            ..EmulatorOptions::default()
        },
        ..RigSpec::default()
    };
    let mut rig = spec.build();
    rig.until_state(ControllerState::Gone);
    let failure = Failure::StateTimeout { state: "enabling" };
    assert_eq!(rig.controller.failure(), Some(failure));
    // Three controller resets, one of the function, each with a second to come up.
    assert_eq!(rig.controller.stats().function_resets, 1);
    assert!(rig.now < Instant::ZERO + Duration::from_secs(10));
}

#[test]
fn a_status_delay_keeps_the_driver_from_looking_too_early() {
    let mut spec = RigSpec::default();
    spec.driver.status_delay = Duration::from_secs(2);
    let rig = spec.build().ready();
    // Once after disabling and once after enabling.
    assert!(rig.now >= Instant::ZERO + Duration::from_secs(4));
}

#[test]
fn every_namespace_is_found_with_its_own_block_size() {
    let sizes = [
        BlockSize::B512,
        BlockSize::B4096,
        BlockSize::new(65536).expect("a size"),
    ];
    let namespaces = sizes
        .into_iter()
        .map(|size| NamespaceOptions::new(size, Media::memory(1 << 20).expect("memory")))
        .collect();
    let emulator =
        EmulatedController::new(EmulatorOptions::default(), namespaces).expect("valid options");
    let rig = Rig::over(emulator, ControllerOptions::default()).ready();
    let found: Vec<_> = rig
        .controller
        .namespaces()
        .iter()
        .map(|namespace| (namespace.id.get(), namespace.geometry.block_size))
        .collect();
    assert_eq!(found, [(1, sizes[0]), (2, sizes[1]), (3, sizes[2])]);
}

#[test]
fn a_namespace_that_does_not_exist_is_refused() {
    let mut rig = Rig::new().ready();
    let missing = NamespaceId::new(9);
    let outcome = rig
        .controller
        .open_queue(missing, QueueOptions::default(), &rig.space);
    assert!(matches!(outcome, Err(NvmeError::NoNamespace { id }) if id == missing));
}

#[test]
fn fewer_queue_pairs_than_asked_for_are_used_and_told() {
    let mut spec = RigSpec::default();
    spec.emulator.queue_pairs_max = 2;
    spec.driver.queue_pairs = 8;
    let mut rig = spec.build().ready();
    assert_eq!(rig.controller.queue_pairs_granted(), 2);
    let told = ControllerEvent::FewerQueues {
        asked: 8,
        granted: 2,
    };
    assert_eq!(rig.controller.take_event(), Some(told));
    let first = rig.open();
    let _second = rig.open();
    let third = rig
        .controller
        .open_queue(FIRST, QueueOptions::default(), &rig.space);
    assert!(matches!(third, Err(NvmeError::NoQueueLeft { granted: 2 })));
    // A queue that is dropped makes room for another.
    drop(first);
    rig.run_for(Duration::from_millis(20));
    let _again = rig.open();
}

#[test]
fn a_quirk_limits_the_queue_pairs_to_one() {
    let mut spec = RigSpec::default();
    spec.driver.quirks = Quirks::ONE_QUEUE_PAIR;
    let rig = spec.build().ready();
    assert_eq!(rig.controller.queue_pairs_granted(), 1);
}

#[test]
fn the_queue_is_as_deep_as_the_controller_allows() {
    for (entries_max, asked, slots) in [
        (2, 256, 1),
        (3, 256, 2),
        (65536, 4096, 4095),
        (65536, u16::MAX, 4095),
        (65536, 0, 1),
        (300, 256, 255),
    ] {
        let mut spec = RigSpec::default();
        spec.emulator.queue_entries_max = entries_max;
        let mut rig = spec.build().ready();
        let mut queue = rig.open_with(QueueOptions {
            entries: asked,
            ..QueueOptions::default()
        });
        assert_eq!(queue.geometry().queue_depth_max, slots);
        // Every slot can be used at once, and again after the ring has wrapped.
        for _ in 0..3 {
            for tag in 0..u64::from(slots) {
                queue
                    .submit(bare(Operation::Flush, tag, 0, 0))
                    .expect("a slot");
            }
            assert!(queue.submit(bare(Operation::Flush, 0, 0, 0)).is_err());
            let completions = rig.drain(&mut queue);
            assert_eq!(completions.len(), usize::try_from(slots).expect("few"));
            assert!(
                completions
                    .iter()
                    .all(|completion| completion.result.is_ok())
            );
        }
    }
}

#[test]
fn the_write_cache_is_found_kept_and_switched_as_asked() {
    for (policy, expected) in [
        (WriteCachePolicy::Keep, WriteCache::Volatile),
        (WriteCachePolicy::Enable, WriteCache::Volatile),
        (WriteCachePolicy::Disable, WriteCache::Disabled),
    ] {
        let mut spec = RigSpec {
            cache: Cache::MODELLED,
            ..RigSpec::default()
        };
        spec.driver.write_cache = policy;
        let mut rig = spec.build().ready();
        let geometry = &rig.controller.namespaces()[0].geometry;
        assert_eq!(geometry.write_cache, expected, "{policy:?}");
        let mut queue = rig.open();
        let data = rig.span(0, 512);
        for operation in [Operation::Write, Operation::WriteThrough] {
            let completion = rig.run(&mut queue, transfer(operation, 1, 0, 1, data));
            assert_eq!(completion.result, Ok(()));
        }
        // Force Unit Access only where a cache could keep the data from the media.
        let forced = u64::from(expected == WriteCache::Volatile);
        assert_eq!(rig.emulator.counters().operations.writes_fua, forced);
        assert_eq!(queue.stats().fua_writes, forced);
    }
}

#[test]
fn a_cache_without_force_unit_access_refuses_write_through() {
    let mut spec = RigSpec {
        cache: Cache::MODELLED,
        ..RigSpec::default()
    };
    spec.driver.quirks = Quirks::NO_FUA;
    let mut rig = spec.build().ready();
    let mut queue = rig.open();
    assert!(!queue.geometry().supports_write_through);
    let data = rig.span(0, 512);
    let refused = queue.submit(transfer(Operation::WriteThrough, 1, 0, 1, data));
    assert!(refused.is_err(), "a plain write would be a lie");
}

#[test]
fn shutdown_notifies_the_controller_and_ends_the_queues() {
    let mut rig = Rig::new().ready();
    let mut queue = rig.open();
    rig.controller.begin_shutdown();
    rig.until_state(ControllerState::Stopped);
    let registers = rig.emulator.registers();
    assert_eq!(registers.read_u32(CC) & 1, 0);
    assert!(!ControllerStatus::from_bits(registers.read_u32(CSTS)).ready);
    rig.turn(&mut queue);
    assert!(queue.is_gone());
}

#[test]
fn a_shutdown_that_never_completes_ends_at_its_deadline() {
    let mut spec = RigSpec::default();
    spec.emulator.shutdown_delay = Duration::from_secs(3600);
    let mut rig = spec.build().ready();
    let begin = rig.now;
    rig.controller.begin_shutdown();
    rig.until_state(ControllerState::Gone);
    let took = rig.now.saturating_duration_since(begin);
    assert!(took <= Duration::from_secs(11), "{took:?}");
}

#[test]
fn start_and_stop_a_hundred_times_over_the_same_controller() {
    let emulator = Rig::new().emulator;
    for round in 0..100 {
        let mut rig = Rig::over(emulator.clone(), RigSpec::default().driver).ready();
        let mut queue = rig.open();
        rig.data.copy_from_slice(0, &[round; 512]);
        let data = rig.span(0, 512);
        let written = rig.run(&mut queue, transfer(Operation::Write, 1, 7, 1, data));
        assert_eq!(written.result, Ok(()), "round {round}");
        if round % 2 == 0 {
            rig.controller.begin_shutdown();
            rig.until_state(ControllerState::Stopped);
        }
        // Every other round the driver just lets go.
    }
}

#[test]
fn bring_up_and_shutdown_block_with_a_real_clock() {
    let mut rig = Rig::new();
    let clock = MonotonicClock::new();
    rig.controller.bring_up(&clock).expect("it comes up");
    assert_eq!(rig.controller.state(), ControllerState::Ready);
    rig.controller.shut_down(&clock).expect("it goes down");
    assert_eq!(rig.controller.state(), ControllerState::Stopped);
}

#[test]
fn bring_up_with_a_clock_that_stands_still_gives_up() {
    let mut spec = RigSpec::default();
    spec.emulator.enable_delay = Duration::from_secs(1);
    let mut rig = spec.build();
    let outcome = rig.controller.bring_up(&ManualClock::default());
    assert!(matches!(outcome, Err(NvmeError::ClockStopped)));
}
