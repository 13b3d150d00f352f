//! A driver, an emulated controller, and a clock between them that only the test moves.

use std::time::Duration;

use lode_block::{BlockDevice, Completion, Operation, Request, Tag};
use lode_bus::{DmaMemory, DmaSpan, IovaSpace, PagePreference};
use lode_nvme::{Controller, ControllerOptions, ControllerState, NamespaceQueue, QueueOptions};
use lode_nvme_emu::{Cache, EmulatedController, FaultRule, Media, NamespaceOptions};
use lode_units::{BlockSize, Instant, Iova, Lba, NamespaceId};

pub(crate) type EmulatorOptions = lode_nvme_emu::ControllerOptions;
pub(crate) type Queue = NamespaceQueue<EmulatedController>;

/// The first namespace.
pub(crate) const FIRST: NamespaceId = NamespaceId::new(1);
/// How far the clock moves with each round.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// The rounds after which a test that waits has failed: more than every deadline together.
const ROUNDS_MAX: usize = 200_000;

pub(crate) struct Rig {
    pub(crate) emulator: EmulatedController,
    pub(crate) controller: Controller<EmulatedController>,
    pub(crate) space: IovaSpace,
    pub(crate) data: DmaMemory,
    pub(crate) now: Instant,
}

/// What a rig is made of.
pub(crate) struct RigSpec {
    pub(crate) emulator: EmulatorOptions,
    pub(crate) driver: ControllerOptions,
    pub(crate) block_size: BlockSize,
    pub(crate) cache: Cache,
}

impl Default for RigSpec {
    fn default() -> Self {
        Self {
            emulator: EmulatorOptions::default(),
            driver: ControllerOptions {
                // Logs are read when a test asks for them.
                health_interval: None,
                ..ControllerOptions::default()
            },
            block_size: BlockSize::B512,
            cache: Cache::None,
        }
    }
}

impl RigSpec {
    pub(crate) fn build(self) -> Rig {
        let media = Media::memory(MEDIA_BYTES).expect("memory");
        let mut namespace = NamespaceOptions::new(self.block_size, media);
        namespace.cache = self.cache;
        let emulator =
            EmulatedController::new(self.emulator, vec![namespace]).expect("valid options");
        Rig::over(emulator, self.driver)
    }
}

impl Rig {
    pub(crate) fn new() -> Self {
        RigSpec::default().build()
    }

    /// A new driver over a controller that may have been driven before.
    pub(crate) fn over(emulator: EmulatedController, options: ControllerOptions) -> Self {
        let space = IovaSpace::new();
        let mut controller =
            Controller::new(emulator.clone(), options, &space).expect("memory and mapping");
        let data = space
            .allocate(DATA_BYTES, PagePreference::Ordinary)
            .expect("memory");
        controller.map_memory(&data).expect("mapping");
        Self {
            emulator,
            controller,
            space,
            data,
            now: Instant::ZERO,
        }
    }

    /// A rig whose controller is in use.
    pub(crate) fn ready(mut self) -> Self {
        self.until(|rig| rig.controller.state() == ControllerState::Ready);
        self
    }

    pub(crate) fn fault(&self, rule: &str) {
        let rule: FaultRule = rule.parse().expect("a rule");
        self.emulator.install_fault(rule).expect("room for a rule");
    }

    /// One round: time goes on, the controller is polled.
    pub(crate) fn tick(&mut self) {
        self.now += TICK;
        self.controller.poll(self.now);
    }

    /// Rounds until `is_done`.
    #[track_caller]
    pub(crate) fn until(&mut self, is_done: impl Fn(&Self) -> bool) {
        for _ in 0..ROUNDS_MAX {
            if is_done(self) {
                return;
            }
            self.tick();
        }
        panic!("no end: {:?}", self.controller);
    }

    pub(crate) fn until_state(&mut self, state: ControllerState) {
        self.until(|rig| rig.controller.state() == state);
    }

    /// Rounds for `duration`.
    pub(crate) fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.tick();
        }
    }

    pub(crate) fn open(&mut self) -> Queue {
        self.open_with(QueueOptions::default())
    }

    /// A queue that the controller has created.
    pub(crate) fn open_with(&mut self, options: QueueOptions) -> Queue {
        let mut queue = self
            .controller
            .open_queue(FIRST, options, &self.space)
            .expect("a queue");
        self.until_live(&mut queue);
        queue
    }

    #[track_caller]
    pub(crate) fn until_live(&mut self, queue: &mut Queue) {
        let mut completions = Vec::with_capacity(1);
        for _ in 0..ROUNDS_MAX {
            queue.poll(self.now, &mut completions);
            assert_eq!(completions, []);
            if queue.is_live() {
                return;
            }
            self.tick();
        }
        panic!("not live: {queue:?} of {:?}", self.controller);
    }

    /// One round of the controller and of `queue`.
    pub(crate) fn turn(&mut self, queue: &mut Queue) -> Vec<Completion> {
        let mut completions = Vec::with_capacity(64);
        self.tick();
        queue.kick();
        queue.poll(self.now, &mut completions);
        completions
    }

    /// Rounds until `queue` has nothing in flight.
    #[track_caller]
    pub(crate) fn drain(&mut self, queue: &mut Queue) -> Vec<Completion> {
        let mut all = Vec::new();
        for _ in 0..ROUNDS_MAX {
            if queue.in_flight() == 0 {
                return all;
            }
            all.extend(self.turn(queue));
        }
        panic!("requests never end: {queue:?} of {:?}", self.controller);
    }

    /// Submits `request` and waits for its end.
    #[track_caller]
    pub(crate) fn run(&mut self, queue: &mut Queue, request: Request) -> Completion {
        queue.submit(request).expect("accepted");
        let completions = self.drain(queue);
        assert_eq!(completions.len(), 1, "{completions:?}");
        completions[0]
    }

    /// The piece of the data memory from `offset` on.
    pub(crate) fn span(&self, offset: usize, length: u32) -> DmaSpan {
        DmaSpan {
            iova: Iova::new(self.data.iova().get() + offset as u64),
            length_bytes: length,
        }
    }
}

/// A request that moves data.
pub(crate) fn transfer(
    operation: Operation,
    tag: u64,
    lba: u64,
    blocks: u32,
    data: DmaSpan,
) -> Request {
    Request {
        tag: Tag(tag),
        operation,
        lba: Lba::new(lba),
        block_count: blocks,
        data,
    }
}

/// A request that moves none.
pub(crate) fn bare(operation: Operation, tag: u64, lba: u64, blocks: u32) -> Request {
    transfer(operation, tag, lba, blocks, DmaSpan::EMPTY)
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| {
            let mixed = (index + seed).wrapping_mul(0x9E37_79B1) >> 8;
            mixed.to_le_bytes()[0]
        })
        .collect()
}

const MEDIA_BYTES: u64 = 8 << 20;
/// Two transfers of the largest size, each with room to begin inside a page.
pub(crate) const DATA_BYTES: usize = 4 << 20;
