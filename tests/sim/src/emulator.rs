//! The controllers of a machine and the drivers' settings, drawn for each boot.

use std::time::Duration;

use lode_nvme_emu::{Cache, EmulatedController, Latency, Media, NamespaceOptions};
use lode_units::{BlockSize, Random, SeededRandom};

use crate::machine::{MachineSpec, pick};
use crate::tamper::Defect;

/// A controller over `media`.
pub(crate) fn emulator(
    media: &Media,
    spec: &MachineSpec,
    random: &mut SeededRandom,
) -> EmulatedController {
    let mut options = lode_nvme_emu::ControllerOptions {
        queue_pairs_max: 4,
        queue_entries_max: 256,
        transfer_max_shift: [1, 2, 5][pick(random, 3)],
        shadow_doorbells: random.below(2) == 0,
        ..lode_nvme_emu::ControllerOptions::default()
    };
    if random.below(4) > 0 {
        let micros = |random: &mut SeededRandom, most| Duration::from_micros(random.below(most));
        options.latency = Latency {
            read: micros(random, 50),
            write: micros(random, 50),
            flush: micros(random, 200),
            jitter: micros(random, 300),
            bytes_per_second: 0,
            seed: random.next_u64(),
        };
    }
    let capacity_bytes = match spec.block_size {
        // A small one writes its oldest blocks back on its own.
        BlockSize::B4096 => [64 << 10, 1 << 20][pick(random, 2)],
        // One that did so would tear units.
        _ => 4 << 20,
    };
    let namespace = NamespaceOptions {
        block_size: spec.block_size,
        media: media.clone(),
        cache: Cache::Modelled { capacity_bytes },
        lies_about_flush: spec.defect == Defect::LyingController,
        nguid: None,
    };
    EmulatedController::new(options, vec![namespace]).expect("valid options")
}

/// The settings of a controller's driver.
pub(crate) fn driver_options() -> lode_nvme::ControllerOptions {
    lode_nvme::ControllerOptions {
        queue_pairs: 4,
        all_ones_tolerance: Duration::from_millis(20),
        admin_timeout: Duration::from_millis(100),
        watch_interval: Duration::from_millis(1),
        health_interval: None,
        // Faults come faster here than a controller proves itself stable.
        reset_attempts_max: 100,
        stable_after: Duration::from_millis(50),
        ..lode_nvme::ControllerOptions::default()
    }
}
