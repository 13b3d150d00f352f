//! One boot of the shipped stack: emulated controllers over media that outlive it, a driver for
//! each, and cores with a shard each over all of them.

use std::time::Duration;

use lode_block::{BufferPool, BufferPoolSpec};
use lode_bus::{IovaSpace, PagePreference};
use lode_engine::{Completion, PoolIndex, Shard, device_spec};
use lode_extent::{DeviceSpec, ExistingPool, Pool, PoolSpec, PoolState, Usage};
use lode_nvme::{Controller, ControllerState, NamespaceQueue, QueueOptions};
use lode_nvme_emu::{DeviceFault, EmulatedController, Fate, Media, UnflushedBlock};
use lode_units::{BlockSize, Instant, NamespaceId, Random, SeededRandom};

use crate::cores;
use crate::emulator::{driver_options, emulator};
use crate::tamper::{Bench, Defect, Tampered};

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
    /// One for each core; the first is the pool's home.
    pub(crate) shards: Vec<Shard<Device>>,
    pub(crate) buffers: BufferPool,
    /// What the devices in front of the drivers share.
    pub(crate) bench: Bench,
    emulators: Vec<EmulatedController>,
    controllers: Vec<Controller<EmulatedController>>,
    space: IovaSpace,
    pool: Option<PoolIndex>,
    /// The other cores have the pool.
    has_guests: bool,
    specs: Vec<DeviceSpec>,
    spec: MachineSpec,
    queue: QueueOptions,
    /// Draws the order in which the cores come round.
    random: SeededRandom,
}

impl Machine {
    /// Powers the controllers on; nothing has been asked of them yet.
    pub(crate) fn new(spec: MachineSpec) -> Self {
        let mut random = SeededRandom::new(spec.seed);
        let space = IovaSpace::new();
        let shards = cores::shards(&space, spec.defect, &mut random);
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
        let memories = shards.iter().flat_map(Shard::memories).cloned();
        let bench = Bench::new(spec.defect, memories.collect(), &space, spec.media.len());
        for controller in &mut controllers {
            for memory in bench.memories().iter().chain(buffers.memories()) {
                controller.map_memory(memory).expect("mapping");
            }
        }
        let entries = [8, 16, 64, 256][pick(&mut random, 4)];
        Self {
            shards,
            buffers,
            bench,
            emulators,
            controllers,
            space,
            pool: None,
            has_guests: false,
            specs: Vec::new(),
            spec,
            queue: QueueOptions {
                entries,
                command_timeout: Duration::from_millis(20),
                abort_timeout: Duration::from_millis(5),
                interrupt_vector: None,
            },
            random,
        }
    }

    /// Polls everything once, the cores in any order.
    pub(crate) fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        for controller in &mut self.controllers {
            controller.poll(now);
            while controller.take_event().is_some() {}
        }
        match self.pool {
            None => self.attach(),
            Some(pool) if !self.has_guests => self.attach_guests(pool),
            Some(_) => {}
        }
        for core in cores::turns(self.shards.len(), &mut self.random) {
            self.shards[core].poll(now, completions);
        }
    }

    fn attach(&mut self) {
        let is_ready = |one: &Controller<_>| one.state() == ControllerState::Ready;
        if !self.controllers.iter().all(is_ready) {
            return;
        }
        let Some(devices) = self.open_devices() else {
            return;
        };
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
        self.pool = Some(self.shards[0].attach(POOL_NAME, devices, pool));
    }

    /// Lets the other cores have the pool, with queues of their own or without.
    fn attach_guests(&mut self, pool: PoolIndex) {
        if self.pool_state() != Some(&PoolState::Ready) {
            return;
        }
        let have_queues = self.random.below(4) > 0;
        let mut shards = std::mem::take(&mut self.shards);
        self.has_guests = cores::attach_guests(&mut shards, pool, &mut || {
            if have_queues {
                self.open_devices()
            } else {
                Some(Vec::new())
            }
        });
        self.shards = shards;
    }

    /// A queue on each controller. One that is being reset just now opens its queue at a later
    /// poll.
    fn open_devices(&mut self) -> Option<Vec<(String, Device)>> {
        let (queue, space) = (self.queue, &self.space);
        let open = |(index, controller): (usize, &mut Controller<_>)| {
            let queue = controller.open_queue(FIRST, queue, space).ok()?;
            let device = Tampered::new(queue, index, self.bench.clone());
            Some((format!("nvme{index}"), device))
        };
        self.controllers.iter_mut().enumerate().map(open).collect()
    }

    /// Where the pool stands; `None` before it is attached.
    pub(crate) fn pool_state(&self) -> Option<&PoolState> {
        self.shards[0].pool_state(self.pool?)
    }

    /// How the pool's space is used; nothing before it is attached.
    pub(crate) fn pool_usage(&self) -> Usage {
        let usage = self.pool.and_then(|pool| self.shards[0].pool_usage(pool));
        usage.unwrap_or_default()
    }

    /// The cores that take requests now.
    pub(crate) fn cores(&self) -> usize {
        if self.has_guests {
            self.shards.len()
        } else {
            1
        }
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

    /// Cuts the power: of each version of a block that is not on the media, `choose` says what
    /// becomes of it, by device. The old program then lives on beside devices that are gone, until
    /// all its requests have ended: nothing of it reaches the media. `pending` is how many there
    /// are.
    pub(crate) fn cut_power(
        &mut self,
        now: Instant,
        pending: usize,
        choose: &mut dyn FnMut(usize, UnflushedBlock) -> Fate,
    ) -> Result<Vec<Completion>, String> {
        for (device, emulator) in self.emulators.iter().enumerate() {
            emulator.clear_faults();
            emulator
                .power_cut(&mut |block| choose(device, block))
                .expect("memory does not fail");
            emulator.apply(DeviceFault::Remove);
        }
        let mut completions = Vec::new();
        let mut now = now;
        for _ in 0..DRAIN_ROUNDS_MAX {
            self.poll(now, &mut completions);
            let is_idle = self.shards.iter().all(|shard| !shard.is_busy());
            let is_gone = |one: &Controller<_>| one.state() == ControllerState::Gone;
            if is_idle && completions.len() >= pending && self.controllers.iter().all(is_gone) {
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
