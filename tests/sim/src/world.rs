//! One run: boots of the machine one after the other, each ended by a power cut at any moment.

use std::collections::BTreeMap;
use std::time::Duration;

use lode_engine::Completion;
use lode_extent::{DeviceSpec, PoolState};
use lode_nvme_emu::Media;
use lode_units::{BlockSize, Instant, Random, SeededRandom};

use crate::history::History;
use crate::machine::{Machine, MachineSpec, pick};
use crate::model::Volume;
use crate::pending::Pending;
use crate::tamper::Defect;

/// A run under way.
pub(crate) struct World {
    pub(crate) machine: Machine,
    pub(crate) random: SeededRandom,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) pending: BTreeMap<u64, Pending>,
    pub(crate) boot: Boot,
    pub(crate) history: History,
    pub(crate) tally: Tally,
    /// Counts events: the time of the model.
    pub(crate) tick: u64,
    pub(crate) next_token: u64,
    pub(crate) media: Vec<Media>,
    pub(crate) specs: Vec<DeviceSpec>,
    pub(crate) block_size: BlockSize,
    pub(crate) defect: Defect,
    pub(crate) has_pool: bool,
    /// The pool may have lost blocks that nothing refers to.
    pub(crate) has_leaked: bool,
    /// The boot before did not get past its recovery.
    pub(crate) was_recovering: bool,
    pub(crate) now: Instant,
    completions: Vec<Completion>,
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Power cuts.
    pub crashes: u64,
    /// Power cuts before the pool had recovered from the one before.
    pub crashes_in_recovery: u64,
    /// Those of them right after another one.
    pub crashes_in_recovery_again: u64,
    /// Requests of clients.
    pub requests: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Blocks compared with what they may hold.
    pub blocks_compared: u64,
    /// Faults other than power cuts.
    pub faults: u64,
    /// Polls of everything.
    pub polls: u64,
}

impl Tally {
    /// What two runs did together.
    #[must_use]
    pub const fn and(mut self, other: &Self) -> Self {
        self.crashes += other.crashes;
        self.crashes_in_recovery += other.crashes_in_recovery;
        self.crashes_in_recovery_again += other.crashes_in_recovery_again;
        self.requests += other.requests;
        self.failures += other.failures;
        self.blocks_compared += other.blocks_compared;
        self.faults += other.faults;
        self.polls += other.polls;
        self
    }
}

/// How far a boot is, and what it has met.
#[derive(Debug)]
pub(crate) struct Boot {
    pub(crate) phase: Phase,
    pub(crate) harm: Harm,
    /// The faults that may come.
    pub(crate) plan: Harm,
    /// The pool serves no more, or not all of it: the next power cut is near.
    pub(crate) is_spoilt: bool,
    /// Space that the pool could not use at the last poll, because its map cannot be read.
    pub(crate) is_space_unreadable: bool,
    /// How many requests clients keep in flight.
    pub(crate) depth: usize,
}

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The pool is made or recovers.
    Starting,
    /// Every volume is opened, every block is read.
    Surveying,
    /// Clients do as they please.
    Serving,
    /// Clients wait for what they have in flight.
    Quiescing,
}

/// What faults may do to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Harm {
    /// There were none.
    None,
    /// Requests take longer.
    Delay,
    /// Requests fail.
    Failure,
}

impl World {
    pub(crate) fn new(seed: u64, defect: Defect, history: History) -> Self {
        let mut random = SeededRandom::new(seed);
        let block_size = [BlockSize::B512, BlockSize::B4096][pick(&mut random, 2)];
        let media: Vec<_> = (0..=random.below(2)).map(|_| used_media()).collect();
        let machine = Machine::new(MachineSpec {
            media: media.clone(),
            block_size,
            defect,
            seed: random.next_u64(),
            makes_pool: true,
        });
        Self {
            machine,
            random,
            volumes: (0..VOLUMES).map(Volume::new).collect(),
            pending: BTreeMap::new(),
            boot: Boot::first(),
            history,
            tally: Tally::default(),
            tick: 1,
            next_token: 1,
            media,
            specs: Vec::new(),
            block_size,
            defect,
            has_pool: false,
            has_leaked: false,
            was_recovering: false,
            now: Instant::from_nanos(1),
            completions: Vec::new(),
        }
    }

    /// The whole run: the first thing that must not be, if there is any.
    pub(crate) fn run(&mut self) -> Result<(), String> {
        let boots = 2 + self.random.below(4);
        for _ in 0..boots {
            self.play()?;
            self.crash()?;
            self.boot = self.next_boot();
        }
        self.boot.plan = Harm::None;
        self.start()?;
        self.survey()?;
        self.quiesce()?;
        self.crash()
    }

    /// One boot until its end.
    fn play(&mut self) -> Result<(), String> {
        if self.random.below(3) == 0 {
            let most = [60, 200, 600][pick(&mut self.random, 3)];
            let polls = 1 + self.random.below(most);
            return self.poll_times(polls);
        }
        self.start()?;
        if self.boot.is_spoilt {
            return Ok(());
        }
        self.survey()?;
        self.boot.phase = Phase::Serving;
        let polls = 50 + self.random.below(1200);
        self.poll_times(polls)?;
        if self.random.below(2) == 0 && !self.boot.is_spoilt {
            self.quiesce()?;
            if !self.boot.is_spoilt && self.random.below(2) == 0 {
                self.survey()?;
                self.quiesce()?;
            }
        }
        Ok(())
    }

    fn poll_times(&mut self, polls: u64) -> Result<(), String> {
        for _ in 0..polls {
            self.poll()?;
            if self.boot.phase == Phase::Starting && self.is_started() {
                self.survey()?;
            }
            if self.boot.phase == Phase::Surveying && self.pending.is_empty() {
                self.boot.phase = Phase::Serving;
            }
            if self.boot.is_spoilt && self.random.below(30) == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Polls until the pool serves.
    fn start(&mut self) -> Result<(), String> {
        for _ in 0..WAIT_POLLS_MAX {
            if self.is_started() || self.boot.is_spoilt {
                return Ok(());
            }
            self.poll()?;
        }
        Err(format!("the pool never starts: {:?}", self.machine))
    }

    /// Polls until nothing is in flight.
    fn quiesce(&mut self) -> Result<(), String> {
        self.boot.phase = Phase::Quiescing;
        for _ in 0..WAIT_POLLS_MAX {
            if self.pending.is_empty() {
                return Ok(());
            }
            self.poll()?;
        }
        Err(format!("requests never end: {:?}", self.pending))
    }

    fn is_started(&mut self) -> bool {
        let is_ready = self.machine.pool_state() == Some(&PoolState::Ready);
        self.has_pool |= is_ready;
        is_ready
    }

    /// Everything once: time, faults, devices, the shard, clients.
    fn poll(&mut self) -> Result<(), String> {
        self.tally.polls += 1;
        let pause = self.pause();
        self.now += pause;
        self.spoil();
        if self.boot.harm == Harm::Failure {
            self.boot.is_space_unreadable = self.machine.pool_usage().unreadable_bytes > 0;
        }
        let mut completions = std::mem::take(&mut self.completions);
        self.machine.poll(self.now, &mut completions);
        if self.specs.is_empty() {
            self.specs = self.machine.specs().to_vec();
        }
        for completion in completions.drain(..) {
            self.judge(completion)?;
        }
        self.completions = completions;
        if let Some(PoolState::Failed(error)) = self.machine.pool_state() {
            if self.boot.harm < Harm::Failure {
                return Err(format!("the pool failed without a reason: {error}"));
            }
            self.boot.is_spoilt = true;
        }
        if self.boot.phase == Phase::Serving {
            self.act()?;
        }
        Ok(())
    }

    fn pause(&mut self) -> Duration {
        match self.random.below(64) {
            // Long enough for what could not be read to be asked for again.
            0 if self.boot.harm == Harm::Failure && self.random.below(16) == 0 => {
                Duration::from_millis(1100)
            }
            0 => Duration::from_micros(self.random.below(8000)),
            _ => Duration::from_micros(1 + self.random.below(30)),
        }
    }

    fn next_boot(&mut self) -> Boot {
        let plans = [Harm::None, Harm::None, Harm::Delay, Harm::Failure];
        Boot {
            plan: plans[pick(&mut self.random, plans.len())],
            depth: 1 + pick(&mut self.random, 16),
            ..Boot::first()
        }
    }
}

impl Boot {
    const fn first() -> Self {
        Self {
            phase: Phase::Starting,
            harm: Harm::None,
            plan: Harm::None,
            is_spoilt: false,
            is_space_unreadable: false,
            depth: 4,
        }
    }
}

const VOLUMES: usize = 4;
const DEVICE_BYTES: u64 = 16 << 20;
/// The polls after which something that is waited for will never come.
const WAIT_POLLS_MAX: u64 = 60_000;

/// A drive that somebody used before: what is not written does not read as zeros.
fn used_media() -> Media {
    let media = Media::memory(DEVICE_BYTES).expect("memory");
    let junk: Vec<u8> = JUNK.to_le_bytes().repeat(USED_BYTES / 8);
    media.overwrite(0, &junk);
    media
}

/// What is left on a used drive: no client writes such words.
const JUNK: u64 = 0x00A5_A5A5_A5AF_FFFF;
/// How much of it is used: more than runs ever take.
const USED_BYTES: usize = 3 << 20;
