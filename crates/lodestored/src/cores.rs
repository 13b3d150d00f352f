//! The cores of the daemon: started together, each connected with every other, ended together.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::bail;
use lode_block::{BufferPool, BufferPoolSpec};
use lode_bus::{BusError, DmaMemory, IovaSpace, PagePreference};
use lode_engine::{Shard, ShardStats};
use lode_nvme::{ControllerOptions, QueueOptions};
use lode_reactor::{Built, Core, CoreExit, CoreHandle, CoreOptions, CorePort};
use lode_units::{CoreId, MonotonicClock};
use tokio::task::JoinSet;

use crate::config::{Config, HugePages, Memory, Poll};
use crate::drive::{Opener, Queue};
use crate::node::{Interrupts, Node};
use crate::registry::Registry;

/// Cores that run, without pools yet.
pub(crate) struct Started {
    pub(crate) cores: Vec<CoreHandle<Node>>,
    /// The figures of each core's shard.
    pub(crate) stats: Vec<Arc<ShardStats>>,
    pub(crate) opener: Opener,
    pub(crate) clock: MonotonicClock,
}

/// Starts the cores and allocates all memory that requests will use.
pub(crate) async fn start(config: &Config) -> anyhow::Result<Started> {
    let clock = MonotonicClock::new();
    let space = Arc::new(IovaSpace::new());
    let processors = config.core.cores.processors();
    let interrupts = match config.core.poll {
        Poll::Always | Poll::Adaptive => Interrupts::RestWhenBusy,
        Poll::Interrupt => Interrupts::Fire,
    };
    let mut cores = Vec::with_capacity(processors.len());
    let (mut stats, mut memories) = (Vec::new(), Vec::new());
    for (number, cpu) in (0..).zip(processors) {
        let options = options(config, CoreId::new(number), cpu, clock);
        let (told, heard) = mpsc::channel();
        let (memory, space) = (config.memory.clone(), Arc::clone(&space));
        // Allocated on the core's own thread, so that the system takes memory close to it.
        cores.push(Core::spawn(options, move |_context| {
            let (shard, buffers) = allocate(&memory, &space)?;
            let all = shard.memories().chain(buffers.memories());
            told.send((shard.stats(), all.cloned().collect::<Vec<_>>()))?;
            let hosted = Node::new(shard, interrupts);
            Ok(Built { hosted, buffers })
        })?);
        let (figures, own) = heard.recv()?;
        stats.push(figures);
        memories.extend(own);
    }
    tracing::info!(
        cores = %config.core.cores,
        bytes = memories.iter().map(DmaMemory::length_bytes).sum::<usize>(),
        "memory for requests is allocated"
    );
    connect(&cores).await?;
    let opener = Opener {
        space,
        // A device reads and writes memory of every core: a pool's home carries out what came in on
        // another core with that core's buffers.
        memories: memories.into(),
        clock,
        registry: Arc::new(Registry::default()),
        uses_interrupts: config.core.poll != Poll::Always,
        controller: ControllerOptions {
            queue_pairs: queue_pairs(cores.len()),
            ..ControllerOptions::default()
        },
        queue: QueueOptions::default(),
    };
    Ok(Started {
        cores,
        stats,
        opener,
        clock,
    })
}

/// Lays a line between every two cores.
async fn connect(cores: &[CoreHandle<Node>]) -> anyhow::Result<()> {
    for (position, first) in cores.iter().enumerate() {
        for second in &cores[position + 1..] {
            let (at_first, at_second) = CorePort::pair(first.signal(), second.signal());
            let peer = second.core();
            first
                .call(move |node| node.connect(peer, Box::new(at_first)))
                .await?;
            let peer = first.core();
            second
                .call(move |node| node.connect(peer, Box::new(at_second)))
                .await?;
        }
    }
    Ok(())
}

/// Waits until any core has ended, which none does by itself, and says how.
pub(crate) async fn any_exit(cores: &[CoreHandle<Node>]) -> String {
    let mut ending = JoinSet::new();
    for core in cores {
        let core = core.clone();
        ending.spawn(async move { (core.core(), core.exited().await) });
    }
    match ending.join_next().await {
        Some(Ok((core, exit))) => format!("core {core} has ended: {exit:?}"),
        Some(Err(error)) => error.to_string(),
        None => "there are no cores".to_owned(),
    }
}

/// Whether every core answers.
pub(crate) async fn all_answer(cores: &[CoreHandle<Node>]) -> bool {
    for core in cores {
        if core.call(|_node| ()).await.is_err() {
            return false;
        }
    }
    true
}

/// Stops all cores at once; what is under way on them has `grace` to end.
pub(crate) async fn shut_down(cores: Vec<CoreHandle<Node>>, grace: Duration) -> anyhow::Result<()> {
    let mut ending = JoinSet::new();
    for core in cores {
        ending.spawn(async move { (core.core(), core.shutdown(grace).await) });
    }
    for (core, exit) in ending.join_all().await {
        if exit != CoreExit::Stopped {
            bail!("core {core} did not stop cleanly: {exit:?}");
        }
    }
    Ok(())
}

/// The shard of a core and the buffers of its clients.
fn allocate(memory: &Memory, space: &IovaSpace) -> Result<(Shard<Queue>, BufferPool), BusError> {
    let preference = match memory.huge_pages {
        HugePages::IfReserved => PagePreference::HugeIfReserved,
        HugePages::Never => PagePreference::Ordinary,
    };
    let sizes = [
        (4 << 10, memory.small_buffers),
        (64 << 10, memory.medium_buffers),
        (1 << 20, memory.large_buffers),
    ];
    let sizes = sizes.map(|(length_bytes, count)| BufferPoolSpec {
        length_bytes,
        count,
    });
    let shard = Shard::new(space, preference)?;
    Ok((shard, BufferPool::new(&sizes, space, preference)?))
}

/// How many queue pairs a controller is asked for: one for each core, and as many again so that two
/// of its namespaces can be in use.
fn queue_pairs(cores: usize) -> u16 {
    let wanted = u16::try_from(2 * cores).unwrap_or(u16::MAX);
    ControllerOptions::default().queue_pairs.max(wanted)
}

fn options(
    config: &Config,
    core: CoreId,
    cpu: Option<usize>,
    clock: MonotonicClock,
) -> CoreOptions {
    let mut options = CoreOptions::new(core, clock);
    options.cpu = cpu;
    options.idle_budget = config.core.idle_budget;
    options.poll = config.core.poll.into();
    options
}
