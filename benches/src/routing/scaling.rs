//! From one core to two on one volume: the pool's home and a guest, each on a thread and a
//! processor of its own, reads and pure overwrites. The control has nothing in common: what it
//! lacks to twice one core is the machine's, not the sharing's.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use anyhow::{Context, ensure};
use lode_block::Durability;
use lode_bus::IovaSpace;
use lode_engine::{Completion, DataOperation, Letter, Port, Shard, VolumeHandle};
use lode_reactor::{CorePort, Signal};
use lode_units::{CoreId, Instant};
use rustix::thread::sched_getaffinity;

use super::worker::{pin, processors};
use super::{PAGES, per, ratio};
use crate::engine::{Ground, SPAN_BYTES, client_buffers, mapped_volume};
use crate::load::{Load, Loop};
use crate::null::NullDevice;
use crate::report::{Report, figure};
use crate::rounds::{Sample, interleave, ratios};

type Core = Load<NullDevice, fn(Instant)>;

/// The two ends of a line, as the engine wants them.
#[derive(Debug)]
struct End(CorePort<Letter>);

impl Port for End {
    fn send(&mut self, letter: Letter) -> Result<(), Letter> {
        self.0.send(letter)
    }

    fn receive(&mut self) -> Option<Letter> {
        self.0.receive()
    }

    fn flush(&mut self) {
        self.0.flush();
    }
}

/// Both cores, the volume that each uses, and the processors for them.
struct Cores {
    home: Core,
    guest: Core,
    volumes: [VolumeHandle; 2],
    processors: [usize; 2],
}

pub(super) fn run(report: &Report, rounds: usize) -> anyhow::Result<()> {
    let available = sched_getaffinity(None)?;
    let mut available = processors(&available);
    let (Some(first), Some(second)) = (available.next(), available.next()) else {
        return report.note("scaling: NOT measured, there is one processor only");
    };
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    report.note(&format!(
        "scaling: one core against two on one volume, QD 32 each; {} processors, load before {}",
        2 + available.count(),
        load.split(' ').next().unwrap_or("unknown"),
    ))?;
    let mut sharing = sharing([first, second])?;
    let mut apart = apart([first, second])?;
    for (name, operation) in [
        ("read", DataOperation::Read),
        ("write", DataOperation::Write),
    ] {
        report.note("off: one core; on: two on one volume")?;
        sharing.measure(report, rounds, &format!("scaling.{name}"), operation)?;
        report.note("control: two cores, each with a pool and a volume of its own")?;
        apart.measure(report, rounds, &format!("scaling.{name}.apart"), operation)?;
    }
    Ok(())
}

fn hops(core: &Core) -> u64 {
    let stats = core.shard.stats();
    stats.hand_offs.iter().map(lode_stats::Counter::read).sum()
}

/// Two cores that have nothing in common, each with a pool and a volume that is all mapped.
fn apart(processors: [usize; 2]) -> anyhow::Result<Cores> {
    let pump: fn(Instant) = |_| {};
    let (home, _, first) = mapped_volume(pump)?;
    let (guest, _, second) = mapped_volume(pump)?;
    Ok(Cores {
        home,
        guest,
        volumes: [first, second],
        processors,
    })
}

/// A pool at home on the first core and a guest on the second, with a volume that is all mapped.
fn sharing(processors: [usize; 2]) -> anyhow::Result<Cores> {
    let ground = Ground::default();
    let pump: fn(Instant) = |_| {};
    let (mut home, index, volume) = ground.make(pump)?;
    let space = IovaSpace::new();
    let shard = Shard::new(&space, PAGES)?;
    let mut guest = Load::new(shard, client_buffers(&space)?, pump);
    let signal = || Signal::new().map(Arc::new);
    let (at_home, at_guest) = CorePort::pair(&signal()?, &signal()?);
    home.shard.connect(CoreId::new(1), Box::new(End(at_home)));
    guest.shard.connect(CoreId::new(0), Box::new(End(at_guest)));
    let spec = home.shard.guest_spec(index).context("the pool serves")?;
    let device = vec![("null".to_owned(), ground.device())];
    guest.shard.attach_guest(CoreId::new(0), spec, device);
    for core in [&mut home, &mut guest] {
        core.shard
            .devices_mut(index)
            .for_each(NullDevice::become_null);
    }
    Ok(Cores {
        home,
        guest,
        volumes: [volume; 2],
        processors,
    })
}

impl Cores {
    fn measure(
        &mut self,
        report: &Report,
        rounds: usize,
        id: &str,
        operation: DataOperation,
    ) -> anyhow::Result<()> {
        // The leases come with the first requests.
        self.two(operation)?;
        let before = hops(&self.guest);
        let one = |cores: &mut Self| cores.one(operation);
        let pairs = interleave(self, rounds * ROUNDS_FACTOR, one, |cores| {
            cores.two(operation)
        })?;
        let moved: u64 = pairs.iter().map(|(_, two)| two.operations / 2).sum();
        let hops = hops(&self.guest) - before;
        let mut figures = ratio(ratios(&pairs)).to_vec();
        figures.push(figure("core_hops_per_io", per(hops, moved)));
        report.line(id, &figures)
    }

    /// What each core does.
    fn plans(&self, operation: DataOperation) -> [Loop; 2] {
        self.volumes.map(|volume| Loop {
            volume,
            operation,
            durability: Durability::None,
            block_bytes: 4096,
            span_bytes: SPAN_BYTES,
            depth: 32,
            operations: OPERATIONS,
        })
    }

    /// The home alone.
    fn one(&mut self, operation: DataOperation) -> anyhow::Result<Sample> {
        let cpu = self.processors[0];
        let [plan, _] = self.plans(operation);
        let home = &mut self.home;
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                pin(cpu)?;
                home.run(&plan)
            });
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("the home panicked"))?
        })
    }

    /// Both at once.
    fn two(&mut self, operation: DataOperation) -> anyhow::Result<Sample> {
        let [first, second] = self.processors;
        let [plan, guest_plan] = self.plans(operation);
        let (home, guest) = (&mut self.home, &mut self.guest);
        let (start, guest_ended) = (Barrier::new(2), AtomicBool::new(false));
        let (start, guest_ended) = (&start, &guest_ended);
        let (here, there) = std::thread::scope(|scope| {
            let here = scope.spawn(move || {
                pin(first)?;
                start.wait();
                let sample = home.run(&plan)?;
                // What the guest cannot do by itself it still asks for.
                while !guest_ended.load(Ordering::Acquire) {
                    home.poll();
                }
                let strays = home.done.drain(..).filter(is_data).count();
                ensure!(strays == 0, "{strays} completions for nobody");
                Ok(sample)
            });
            let there = scope.spawn(move || {
                let pinned = pin(second);
                start.wait();
                let outcome = pinned.and_then(|()| guest.run(&guest_plan));
                guest_ended.store(true, Ordering::Release);
                outcome
            });
            (here.join(), there.join())
        });
        let panicked = |_| anyhow::anyhow!("a core panicked");
        let (here, there) = (here.map_err(panicked)??, there.map_err(panicked)??);
        Ok(Sample {
            operations: here.operations + there.operations,
            elapsed: here.elapsed.max(there.elapsed),
        })
    }
}

const fn is_data(completion: &Completion) -> bool {
    matches!(completion, Completion::Data(_))
}

const OPERATIONS: u64 = 100_000;
/// Short rounds and many: what else the machine does changes within a second.
const ROUNDS_FACTOR: usize = 5;
