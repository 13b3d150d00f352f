//! Short seeded lives that end in a power cut, judged by an oracle of what was durable.
//!
//! The oracle remembers the state after every change. After a crash the pool must be in the state
//! after some change that is no older than the last one that it called durable, and every block
//! that it maps must hold the data that was written before the mapping was recorded.

use std::collections::BTreeMap;

use crate::allocation::Allocation;
use crate::error::ExtentError;
use crate::io::DeviceSpec;
use crate::pool::Fault;
use crate::sim::world::{World, device, volume_spec};
use crate::types::{LogicalBlock, PoolBlock, Ticket, VolumeId};
use crate::volume::PoolState;

/// Lives of one test, unless `LODE_CRASH_LIVES` asks for another number: each has three power
/// cuts, and a crash in each recovery.
const LIVES: u64 = 240;
const UNITS: u64 = 40;
/// Units of the volume with many extents.
const LARGE_UNITS: u64 = 1800;
const NAMES: [&str; 3] = ["a", "b", "c"];

/// What clients see: size in units and stamps by unit, of each volume.
type Model = BTreeMap<VolumeId, (u64, BTreeMap<u64, u64>)>;

struct Life {
    world: World,
    /// The state after each change; the first one is the new pool's.
    history: BTreeMap<Ticket, Model>,
    model: Model,
    names: BTreeMap<VolumeId, &'static str>,
    /// Allocations whose data is written but not recorded.
    unrecorded: Vec<(Allocation, u64)>,
    next_stamp: u64,
}

/// How a run differs from a sound one.
#[derive(Clone, Copy, Default)]
struct Breach {
    pool: Option<Fault>,
    ignores_flush: bool,
}

/// Why a run is not acceptable.
type Verdict = Result<(), String>;

impl Life {
    fn new(devices: &[DeviceSpec], seed: u64, breach: Breach) -> Self {
        let mut world = World::create(devices, seed);
        world.settle();
        world.pool.fault = breach.pool;
        for disk in &mut world.disks {
            disk.ignores_flush = breach.ignores_flush;
        }
        Self {
            world,
            history: BTreeMap::from([(Ticket::default(), Model::new())]),
            model: Model::new(),
            names: BTreeMap::new(),
            unrecorded: Vec::new(),
            next_stamp: 1,
        }
    }

    /// Gives the first volume so many extents that its map has several levels of nodes, most of
    /// which are not in memory after an import.
    fn prefill(&mut self) {
        let spec = volume_spec("big", LARGE_UNITS * 4096);
        let (volume, ticket) = self.world.pool.create_volume(&spec, None).expect("new");
        self.model.insert(volume, (LARGE_UNITS, BTreeMap::new()));
        self.names.insert(volume, "big");
        self.note(ticket);
        for index in 0..LARGE_UNITS / 2 {
            let ticket = self.world.write(volume, index * 2, 1, 1).expect("space");
            let (_, stamps) = self.model.get_mut(&volume).unwrap();
            stamps.insert(index * 2, 1);
            if index + 1 == LARGE_UNITS / 2 {
                self.note(ticket);
            }
        }
        self.world.checkpoint();
        self.history
            .retain(|&ticket, _| ticket == self.world.pool.recorded());
        self.next_stamp = 2;
        self.world.import();
        self.world.settle();
    }

    fn run(mut self, steps: u64, breach: Breach) -> Verdict {
        for round in 0..3 {
            for step in 0..steps {
                self.step();
                if round == 0 && step % 8 == 0 {
                    self.world.pool.check().map_err(|error| error.to_string())?;
                }
                if let PoolState::Failed(error) = self.world.pool.state() {
                    return Err(format!("failed: {error}"));
                }
            }
            self.crash(breach)?;
        }
        for (allocation, _) in self.unrecorded {
            allocation.abandon();
        }
        Ok(())
    }

    fn step(&mut self) {
        match self.world.below(32) {
            0 => self.create(),
            1 => self.delete(),
            2 => self.resize(),
            3..10 => self.allocate(),
            10..17 => self.record(),
            17 => self.cancel(),
            18..21 => self.unmap(),
            21 | 22 => self.world.pool.commit(),
            23 => {
                if self.world.below(3) == 0 {
                    self.world.pool.checkpoint();
                }
            }
            _ => self.pump(),
        }
    }

    fn pump(&mut self) {
        for _ in 0..self.world.below(6) {
            self.pump_once();
        }
    }

    fn pump_once(&mut self) {
        while let Some(io) = self.world.pool.next_io() {
            self.world.pending.push(io);
        }
        let pending = self.world.pending.len();
        if pending > 0 {
            let index = self.world.below(u64::try_from(pending).unwrap());
            self.world.complete(usize::try_from(index).unwrap());
        }
    }

    fn note(&mut self, ticket: Ticket) {
        self.history.insert(ticket, self.model.clone());
    }

    fn any_volume(&mut self) -> Option<VolumeId> {
        let count = u64::try_from(self.model.len()).unwrap();
        let index = usize::try_from(self.world.below(count.max(1))).unwrap();
        self.model.keys().nth(index).copied()
    }

    fn create(&mut self) {
        let name = NAMES[usize::try_from(self.world.below(3)).unwrap()];
        let units = 1 + self.world.below(UNITS);
        let spec = volume_spec(name, units * 4096);
        if let Ok((volume, ticket)) = self.world.pool.create_volume(&spec, None) {
            self.model.insert(volume, (units, BTreeMap::new()));
            self.names.insert(volume, name);
            self.note(ticket);
        }
    }

    fn delete(&mut self) {
        let Some(volume) = self.any_volume() else {
            return;
        };
        if self.world.below(3) > 0 || self.is_busy(volume) {
            return;
        }
        if let Ok(ticket) = self.world.pool.delete_volume(volume, None) {
            self.model.remove(&volume);
            self.note(ticket);
        }
    }

    fn resize(&mut self) {
        let Some(volume) = self.any_volume() else {
            return;
        };
        let units = 1 + self.world.below(UNITS);
        if self.is_busy(volume) {
            return;
        }
        if let Ok(ticket) = self.world.pool.resize_volume(volume, units * 4096) {
            let (size, stamps) = self.model.get_mut(&volume).unwrap();
            *size = units;
            stamps.retain(|&unit, _| unit < units);
            self.note(ticket);
        }
    }

    fn is_busy(&self, volume: VolumeId) -> bool {
        self.unrecorded
            .iter()
            .any(|(allocation, _)| allocation.volume() == volume)
    }

    fn overlaps(&self, volume: VolumeId, first: u64, end: u64) -> bool {
        self.unrecorded.iter().any(|(allocation, _)| {
            let start = allocation.first().get();
            allocation.volume() == volume && start < end && first < start + allocation.count()
        })
    }

    fn range(&mut self) -> Option<(VolumeId, u64, u32)> {
        let volume = self.any_volume()?;
        let units = self.model[&volume].0;
        let first = self.world.below(units);
        let count = 1 + self.world.below((units - first).min(6));
        let is_free = !self.overlaps(volume, first, first + count);
        is_free.then(|| (volume, first, u32::try_from(count).unwrap()))
    }

    fn allocate(&mut self) {
        let Some((volume, first, count)) = self.range() else {
            return;
        };
        match self
            .world
            .pool
            .allocate(volume, LogicalBlock::new(first), count)
        {
            Ok(allocation) => {
                let stamp = self.next_stamp;
                self.next_stamp += 1;
                for run in allocation.runs() {
                    for offset in 0..u64::from(run.count) {
                        let block = PoolBlock::new(run.physical.get() + offset);
                        self.world.write_data(block, stamp);
                    }
                }
                self.unrecorded.push((allocation, stamp));
            }
            Err(ExtentError::NotResident(missing)) => self.world.pool.load(missing),
            Err(_full) => {}
        }
    }

    fn record(&mut self) {
        let Some((allocation, stamp)) = self.unrecorded.pop() else {
            return;
        };
        let volume = allocation.volume();
        let (first, end) = (
            allocation.first().get(),
            allocation.first().get() + allocation.count(),
        );
        match self.world.pool.record(allocation) {
            Ok(ticket) => {
                let (_, stamps) = self.model.get_mut(&volume).unwrap();
                stamps.extend((first..end).map(|unit| (unit, stamp)));
                self.note(ticket);
            }
            Err((allocation, error)) => {
                if let ExtentError::NotResident(missing) = error {
                    self.world.pool.load(missing);
                }
                self.unrecorded.push((allocation, stamp));
            }
        }
    }

    fn cancel(&mut self) {
        if let Some((allocation, _)) = self.unrecorded.pop() {
            self.world.pool.cancel(allocation);
        }
    }

    fn unmap(&mut self) {
        let Some((volume, first, count)) = self.range() else {
            return;
        };
        match self
            .world
            .pool
            .unmap(volume, LogicalBlock::new(first), count)
        {
            Ok(unmapped) => {
                let (_, stamps) = self.model.get_mut(&volume).unwrap();
                stamps.retain(|&unit, _| !(first..first + unmapped.done).contains(&unit));
                self.note(unmapped.ticket);
            }
            Err(ExtentError::NotResident(missing)) => self.world.pool.load(missing),
            Err(_full) => {}
        }
    }

    /// The power fails; the pool comes back and is judged.
    fn crash(&mut self, breach: Breach) -> Verdict {
        let promised = self.world.pool.durable();
        for (allocation, _) in std::mem::take(&mut self.unrecorded) {
            allocation.abandon();
        }
        self.world.crash();
        // A crash during recovery changes nothing.
        self.world.import();
        let steps = self.world.below(12);
        for _ in 0..steps {
            if *self.world.pool.state() == PoolState::Starting {
                self.pump_once();
            }
        }
        self.world.crash();
        self.world.import();
        self.world.start();
        if let PoolState::Failed(error) = self.world.pool.state() {
            return Err(format!("no import: {error}"));
        }
        // Before anything is done in the background, which takes tickets of its own.
        let reached = self.world.pool.recorded();
        self.world.pool.fault = breach.pool;
        self.judge(promised, reached)
    }

    fn judge(&mut self, promised: Ticket, reached: Ticket) -> Verdict {
        let mut cursor = crate::check::LoadCursor::default();
        while !self.world.pool.load_all(&mut cursor) {
            self.world.settle();
        }
        let report = self.world.pool.check();
        let report = report.map_err(|error| error.to_string())?;
        if report.damaged > 0 {
            return Err("metadata is damaged".to_owned());
        }
        if reached < promised {
            return Err(format!("{promised} was durable, {reached} came back"));
        }
        let (_, model) = self.history.range(..=reached).next_back().unwrap();
        self.model = model.clone();
        self.history.retain(|&ticket, _| ticket <= reached);
        let found = self.world.pool.volumes(None, 100);
        let ids: Vec<_> = self.model.keys().copied().collect();
        let mut found_ids: Vec<_> = found.iter().map(|volume| volume.id).collect();
        found_ids.sort_unstable();
        if ids != found_ids {
            return Err(format!("volumes {found_ids:?} instead of {ids:?}"));
        }
        for (id, (units, stamps)) in self.model.clone() {
            let info = self.world.pool.volume(id).unwrap();
            if info.is_damaged {
                return Err(format!("volume {id} is damaged"));
            }
            if info.name != self.names[&id] || info.size_bytes != units * 4096 {
                return Err(format!("volume {id} has other attributes"));
            }
            let seen = self.world.stamps(id, 0, u32::try_from(units).unwrap());
            for (unit, seen) in (0..).zip(seen) {
                let expected = stamps.get(&unit).copied().unwrap_or(0);
                if seen != expected {
                    return Err(format!("{id}+{unit}: {seen} instead of {expected}"));
                }
            }
        }
        Ok(())
    }
}

fn devices(seed: u64) -> Vec<DeviceSpec> {
    match seed % 4 {
        0 => vec![device(16, true, true)],
        1 => vec![device(16, true, false)],
        2 => vec![device(16, false, false)],
        _ => vec![device(16, true, true), device(16, true, false)],
    }
}

fn life(seed: u64, breach: Breach) -> Verdict {
    Life::new(&devices(seed), seed, breach).run(60 + seed % 100, breach)
}

/// The first seed of `limit` that shows the breach.
fn caught(breach: Breach, limit: u64) -> Option<u64> {
    (0..limit).find(|&seed| life(seed, breach).is_err())
}

fn lives() -> u64 {
    let asked = std::env::var("LODE_CRASH_LIVES").ok();
    asked.and_then(|asked| asked.parse().ok()).unwrap_or(LIVES)
}

/// Every life of these seeds keeps the rules.
fn no_breach_in(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        if let Err(fault) = life(seed, Breach::default()) {
            panic!("seed {seed}: {fault}");
        }
    }
}

#[test]
fn no_power_cut_loses_what_was_durable() {
    no_breach_in(0..lives());
}

#[test]
fn no_power_cut_shows_what_was_not_written() {
    no_breach_in(lives()..2 * lives());
}

#[test]
fn no_power_cut_breaks_a_map_of_several_levels() {
    for seed in 0..lives() / 6 {
        let mut life = Life::new(&devices(seed), seed, Breach::default());
        life.prefill();
        if let Err(fault) = life.run(60, Breach::default()) {
            panic!("seed {seed}: {fault}");
        }
    }
}

#[test]
fn a_device_that_ignores_flushes_is_noticed() {
    let breach = Breach {
        ignores_flush: true,
        ..Breach::default()
    };
    assert!(caught(breach, 200).is_some());
}

#[test]
fn a_journal_written_before_the_data_is_flushed_is_noticed() {
    let breach = Breach {
        pool: Some(Fault::SkipDataFlush),
        ..Breach::default()
    };
    assert!(caught(breach, 200).is_some());
}

#[test]
fn a_superblock_written_before_its_nodes_is_noticed() {
    let breach = Breach {
        pool: Some(Fault::PublishEarly),
        ..Breach::default()
    };
    assert!(caught(breach, 500).is_some());
}

#[test]
fn space_handed_out_before_its_release_is_durable_is_noticed() {
    let breach = Breach {
        pool: Some(Fault::FreeEarly),
        ..Breach::default()
    };
    assert!(caught(breach, 500).is_some());
}
