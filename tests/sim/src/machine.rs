//! One boot of the shipped stack: emulated controllers over media that outlive it, a driver for
//! each, a shard over both.

use std::time::Duration;

use lode_block::{BufferPool, BufferPoolSpec};
use lode_bus::{IovaSpace, PagePreference};
use lode_engine::{Completion, PoolIndex, Shard, device_spec};
use lode_extent::{DeviceSpec, ExistingPool, Pool, PoolSpec, PoolState};
use lode_nvme::{Controller, ControllerState, NamespaceQueue, QueueOptions};
use lode_nvme_emu::{
    Cache, DeviceFault, EmulatedController, Fate, Latency, Media, NamespaceOptions, UnflushedBlock,
};
use lode_units::{BlockSize, Instant, NamespaceId, Random, SeededRandom};

use crate::tamper::{Defect, Tampered};

pub(crate) type Device = Tampered<NamespaceQueue<EmulatedController>>;

/// What a boot is made of.
#[derive(Debug)]
pub(crate) struct MachineSpec {
    pub(crate) media: Vec<Media>,
    pub(crate) block_size: BlockSize,
    pub(crate) defect: Defect,
    /// The seed of everything that this boot draws by itself.
    pub(crate) seed: u64,
    /// Whether a new pool is made.
    pub(crate) makes_pool: bool,
}

/// One boot.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) shard: Shard<Device>,
    pub(crate) buffers: BufferPool,
    emulators: Vec<EmulatedController>,
    controllers: Vec<Controller<EmulatedController>>,
    space: IovaSpace,
    pool: Option<PoolIndex>,
    specs: Vec<DeviceSpec>,
    spec: MachineSpec,
    queue: QueueOptions,
}

impl Machine {
    /// Powers the controllers on; nothing has been asked of them yet.
    pub(crate) fn new(spec: MachineSpec) -> Self {
        let mut random = SeededRandom::new(spec.seed);
        let space = IovaSpace::new();
        let shard = Shard::new(&space, PagePreference::Ordinary).expect("memory");
        let buffer = BufferPoolSpec {
            length_bytes: BUFFER_BYTES,
            count: BUFFERS,
        };
        let buffers = BufferPool::new(&[buffer], &space, PagePreference::Ordinary).expect("memory");
        let emulators: Vec<_> = spec
            .media
            .iter()
            .map(|media| emulator(media, &spec, &mut random))
            .collect();
        let mut controllers: Vec<_> = emulators
            .iter()
            .map(|one| Controller::new(one.clone(), driver_options(), &space).expect("memory"))
            .collect();
        for controller in &mut controllers {
            for memory in shard.memories().chain(buffers.memories()) {
                controller.map_memory(memory).expect("mapping");
            }
        }
        let entries = [8, 16, 64, 256][pick(&mut random, 4)];
        Self {
            shard,
            buffers,
            emulators,
            controllers,
            space,
            pool: None,
            specs: Vec::new(),
            spec,
            queue: QueueOptions {
                entries,
                command_timeout: Duration::from_millis(20),
                abort_timeout: Duration::from_millis(5),
                interrupt_vector: None,
            },
        }
    }

    /// Polls everything once.
    pub(crate) fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        for controller in &mut self.controllers {
            controller.poll(now);
            while controller.take_event().is_some() {}
        }
        if self.pool.is_none() {
            self.attach();
        }
        self.shard.poll(now, completions);
    }

    fn attach(&mut self) {
        let is_ready = |one: &Controller<_>| one.state() == ControllerState::Ready;
        if !self.controllers.iter().all(is_ready) {
            return;
        }
        let mut devices = Vec::new();
        for (index, controller) in self.controllers.iter_mut().enumerate() {
            // A controller that is being reset just now opens its queue at a later poll.
            let Ok(queue) = controller.open_queue(FIRST, self.queue, &self.space) else {
                return;
            };
            let device = Tampered::new(queue, self.spec.defect);
            devices.push((format!("nvme{index}"), device));
        }
        self.specs = devices.iter().map(|(_, one)| device_spec(one)).collect();
        let pool = if self.spec.makes_pool {
            let spec = PoolSpec {
                name: POOL_NAME.to_owned(),
                existing: ExistingPool::Overwrite,
            };
            let mut random = SeededRandom::new(self.spec.seed);
            Pool::create(spec, &self.specs, &mut random, 0).expect("a pool fits the devices")
        } else {
            Pool::import(&self.specs)
        };
        self.pool = Some(self.shard.attach(POOL_NAME, devices, pool));
    }

    /// Where the pool stands; `None` before it is attached.
    pub(crate) fn pool_state(&self) -> Option<&PoolState> {
        self.shard.pool_state(self.pool?)
    }

    /// What the pool knows of its devices; empty before it is attached.
    pub(crate) fn specs(&self) -> &[DeviceSpec] {
        &self.specs
    }

    /// Has a device spoil what comes next.
    pub(crate) fn install_fault(&self, device: usize, rule: &str) {
        let rule = rule.parse().expect("a rule");
        let emulator = &self.emulators[device % self.emulators.len()];
        emulator.install_fault(rule).expect("few rules");
    }

    /// Has a controller fail until it is reset.
    pub(crate) fn fail_controller(&self, device: usize) {
        self.emulators[device % self.emulators.len()].apply(DeviceFault::FatalStatus);
    }

    /// Cuts the power: each version of a block that is not on the media is kept or lost. The old
    /// program then lives on beside a device that is gone, until all its requests have ended:
    /// nothing of it reaches the media. `pending` is how many there are.
    pub(crate) fn cut_power(
        &mut self,
        now: Instant,
        pending: usize,
        choose: &mut dyn FnMut(UnflushedBlock) -> Fate,
    ) -> Result<Vec<Completion>, String> {
        for emulator in &self.emulators {
            emulator.clear_faults();
            emulator.power_cut(choose).expect("memory does not fail");
            emulator.apply(DeviceFault::Remove);
        }
        let mut completions = Vec::new();
        let mut now = now;
        for _ in 0..DRAIN_ROUNDS_MAX {
            self.poll(now, &mut completions);
            let is_idle = !self.shard.is_busy() && completions.len() >= pending;
            let is_gone = |one: &Controller<_>| one.state() == ControllerState::Gone;
            if is_idle && self.controllers.iter().all(is_gone) {
                return Ok(completions);
            }
            now += Duration::from_millis(10);
        }
        Err(format!(
            "{} requests of {pending} never ended after their devices were gone",
            pending - completions.len()
        ))
    }
}

fn emulator(media: &Media, spec: &MachineSpec, random: &mut SeededRandom) -> EmulatedController {
    let mut options = lode_nvme_emu::ControllerOptions {
        queue_pairs_max: 2,
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
    };
    EmulatedController::new(options, vec![namespace]).expect("valid options")
}

fn driver_options() -> lode_nvme::ControllerOptions {
    lode_nvme::ControllerOptions {
        queue_pairs: 2,
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

/// A number below `count`, to choose from a table.
pub(crate) fn pick(random: &mut SeededRandom, count: usize) -> usize {
    let bound = u64::try_from(count).expect("a table is short");
    usize::try_from(random.below(bound)).expect("below a usize")
}

/// The length of a client's buffer.
pub(crate) const BUFFER_BYTES: usize = 64 << 10;
/// How many buffers clients share.
const BUFFERS: usize = 64;
const POOL_NAME: &str = "tank";
const FIRST: NamespaceId = NamespaceId::new(1);
const DRAIN_ROUNDS_MAX: usize = 20_000;
