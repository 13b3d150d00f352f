//! One run: boots of the machine one after the other, each ended by a power cut at any moment.

use std::collections::BTreeMap;
use std::time::Duration;

use lode_engine::Completion;
use lode_extent::{DeviceSpec, PoolState};
use lode_nvme_emu::{Fate, Media, UnflushedBlock};
use lode_units::{BlockSize, Instant, Random, SeededRandom};

use crate::history::History;
use crate::machine::{Machine, MachineSpec, pick};
use crate::model::Volume;
use crate::offline;
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
    media: Vec<Media>,
    specs: Vec<DeviceSpec>,
    block_size: BlockSize,
    defect: Defect,
    has_pool: bool,
    had_failed_read: bool,
    now: Instant,
    completions: Vec<Completion>,
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Power cuts.
    pub crashes: u64,
    /// Power cuts before the pool had recovered from the one before.
    pub crashes_in_recovery: u64,
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
        let media: Vec<_> = (0..=random.below(2))
            .map(|_| Media::memory(DEVICE_BYTES).expect("memory"))
            .collect();
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
            had_failed_read: false,
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
            let polls = 1 + self.random.below(600);
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
            0 => Duration::from_micros(self.random.below(8000)),
            _ => Duration::from_micros(1 + self.random.below(30)),
        }
    }

    /// Now and then a fault, of those that this boot may meet.
    fn spoil(&mut self) {
        if self.boot.plan == Harm::None || self.random.below(150) > 0 {
            return;
        }
        let device = pick(&mut self.random, 2);
        let failures = if self.boot.plan == Harm::Failure {
            FAILURES
        } else {
            &[]
        };
        let choice = pick(&mut self.random, 1 + DELAYS.len() + failures.len());
        self.tally.faults += 1;
        let rule = match choice {
            0 => {
                self.machine.fail_controller(device);
                "fatal status"
            }
            _ => {
                let rule = DELAYS.iter().chain(failures).nth(choice - 1);
                let rule = rule.expect("the choice lies within both tables");
                self.machine.install_fault(device, rule);
                rule
            }
        };
        let harm = if choice > DELAYS.len() {
            Harm::Failure
        } else {
            Harm::Delay
        };
        self.boot.harm = self.boot.harm.max(harm);
        self.had_failed_read |= harm == Harm::Failure;
        self.history
            .note(1000 + choice as u64, || format!("fault: {rule}"));
    }

    /// Cuts the power, checks what is left, and boots again.
    fn crash(&mut self) -> Result<(), String> {
        self.tick += 1;
        self.tally.crashes += 1;
        if self.boot.phase != Phase::Serving && self.boot.phase != Phase::Quiescing {
            self.tally.crashes_in_recovery += 1;
        }
        let mut random = SeededRandom::new(self.random.next_u64());
        let odds = [0, 20, 50, 80, 100][pick(&mut random, 5)];
        let shift = BlockSize::B4096.shift() - self.block_size.shift();
        let mut last = None;
        let mut choose = |block: UnflushedBlock| {
            let unit = (block.write, block.lba.get() >> shift);
            let fate = match last {
                // A unit of 4 KiB is not torn: a volume's blocks rely on that.
                Some((known, fate)) if known == unit => fate,
                _ if random.below(100) < odds => Fate::Keep,
                _ => Fate::Lose,
            };
            last = Some((unit, fate));
            fate
        };
        let left = self
            .machine
            .cut_power(self.now, self.pending.len(), &mut choose);
        let left = left.map_err(|what| format!("{what}: {:?}", self.pending))?;
        self.history.note(1, || {
            format!("power cut: {odds} of 100 kept; {:?}", self.boot.phase)
        });
        self.end_all(left)?;
        if self.has_pool {
            self.check_offline()?;
        }
        let now = self.tick;
        for volume in &mut self.volumes {
            volume.handle = None;
            volume.blocks.iter_mut().for_each(|one| one.cut_power(now));
        }
        self.machine = Machine::new(MachineSpec {
            media: self.media.clone(),
            block_size: self.block_size,
            defect: self.defect,
            seed: self.random.next_u64(),
            makes_pool: !self.has_pool,
        });
        Ok(())
    }

    /// Checks all metadata. Blocks freed while the bitmap of their group could not be read stay
    /// taken, which nothing but a repair mends: after a failed read that alone is let pass.
    fn check_offline(&self) -> Result<(), String> {
        match offline::check(&self.media, &self.specs) {
            Err(offline::Fault::Leak) if self.had_failed_read => Ok(()),
            other => other.map_err(|fault| fault.to_string()),
        }
    }

    /// What ends after the power was cut tells nobody anything, but ends exactly once.
    fn end_all(&mut self, completions: Vec<Completion>) -> Result<(), String> {
        for completion in completions {
            let token = match &completion {
                Completion::Data(done) => done.token,
                Completion::Control { token, .. } => *token,
            };
            if self.pending.remove(&token.0).is_none() {
                return Err(format!("request {} ended twice", token.0));
            }
            if let Completion::Data(done) = completion
                && let Some(buffer) = done.buffer
            {
                self.machine.buffers.give_back(buffer);
            }
        }
        if let Some(token) = self.pending.keys().next() {
            return Err(format!("request {token} never ended"));
        }
        if self.machine.buffers.lent() > 0 {
            return Err("a buffer was lost".to_owned());
        }
        Ok(())
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
            depth: 4,
        }
    }
}

/// Faults that every request survives.
const DELAYS: &[&str] = &[
    "queue=io count=1 -> duplicate",
    "queue=io count=2 -> delay=3ms",
    "queue=io opcode=write count=1 -> status=0x082",
    "queue=io opcode=read count=1 -> status=0x082",
    "queue=io opcode=flush count=1 -> status=0x082",
];
/// Faults that may make requests fail.
const FAILURES: &[&str] = &[
    "queue=io count=1 -> drop",
    "queue=io count=1 -> lose",
    "queue=io count=1 -> wrong_id",
    "queue=io opcode=read count=1 -> status=0x281",
    "queue=io opcode=write count=1 -> status=0x280",
    "queue=io opcode=write count=1 -> drop",
    "queue=io opcode=flush count=1 -> status=0x006",
    "queue=io opcode=flush count=1 -> lose",
];

const VOLUMES: usize = 4;
const DEVICE_BYTES: u64 = 16 << 20;
/// The polls after which something that is waited for will never come.
const WAIT_POLLS_MAX: u64 = 60_000;
