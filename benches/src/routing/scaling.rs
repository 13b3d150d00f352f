//! From one core to two on one volume: the pool's home and a guest, each on a thread and a
//! processor of its own, reads and pure overwrites.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use anyhow::{Context, ensure};
use lode_block::Durability;
use lode_bus::IovaSpace;
use lode_engine::{Completion, DataOperation, Letter, Port, Shard};
use lode_reactor::{CorePort, Signal};
use lode_units::{CoreId, Instant};
use rustix::thread::sched_getaffinity;

use super::worker::{pin, processors};
use super::{PAGES, per, ratio};
use crate::engine::{Ground, SPAN_BYTES, client_buffers};
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

/// Both cores, and the processors for them.
struct Cores {
    home: Core,
    guest: Core,
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
    let mut cores = cores([first, second])?;
    for (name, operation) in [
        ("read", DataOperation::Read),
        ("write", DataOperation::Write),
    ] {
        let plan = Loop {
            volume: cores.1,
            operation,
            durability: Durability::None,
            block_bytes: 4096,
            span_bytes: SPAN_BYTES,
            depth: 32,
            operations: OPERATIONS,
        };
        // The leases come with the first requests.
        cores.0.two(&plan)?;
        let before = hops(&cores.0.guest);
        let pairs = interleave(
            &mut cores.0,
            rounds,
            |cores| cores.one(&plan),
            |cores| cores.two(&plan),
        )?;
        let moved: u64 = pairs.iter().map(|(_, two)| two.operations / 2).sum();
        let hops = hops(&cores.0.guest) - before;
        let mut figures = ratio(ratios(&pairs)).to_vec();
        figures.push(figure("core_hops_per_io", per(hops, moved)));
        report.line(&format!("scaling.{name}"), &figures)?;
    }
    Ok(())
}

fn hops(core: &Core) -> u64 {
    let stats = core.shard.stats();
    stats.hand_offs.iter().map(lode_stats::Counter::read).sum()
}

/// A pool at home on the first core and a guest on the second, with a volume that is all mapped.
fn cores(processors: [usize; 2]) -> anyhow::Result<(Cores, lode_engine::VolumeHandle)> {
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
    let cores = Cores {
        home,
        guest,
        processors,
    };
    Ok((cores, volume))
}

impl Cores {
    /// The home alone.
    fn one(&mut self, plan: &Loop) -> anyhow::Result<Sample> {
        let cpu = self.processors[0];
        let home = &mut self.home;
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                pin(cpu)?;
                home.run(plan)
            });
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("the home panicked"))?
        })
    }

    /// Both at once.
    fn two(&mut self, plan: &Loop) -> anyhow::Result<Sample> {
        let [first, second] = self.processors;
        let (home, guest) = (&mut self.home, &mut self.guest);
        let (start, guest_ended) = (Barrier::new(2), AtomicBool::new(false));
        let (start, guest_ended) = (&start, &guest_ended);
        let (here, there) = std::thread::scope(|scope| {
            let here = scope.spawn(move || {
                pin(first)?;
                start.wait();
                let sample = home.run(plan)?;
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
                let outcome = pinned.and_then(|()| guest.run(plan));
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

const OPERATIONS: u64 = 500_000;
