//! Lodestore as the daemon composes it: server, core, engine and driver over the emulated
//! controller in memory.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context, bail};
use lode_block::{BufferPool, BufferPoolSpec};
use lode_bus::{Bus, DmaMemory, IovaSpace, PagePreference};
use lode_engine::{Completion, ControlRequest, DataRequest, PoolIndex, Shard, Token, device_spec};
use lode_extent::{ExistingPool, Pool, PoolSpec, PoolState};
use lode_nvme::{Controller, ControllerOptions, NamespaceQueue, QueueOptions};
use lode_nvme_emu::{EmulatedController, EmulatorSpec};
use lode_reactor::{BuildError, Built, Core, CoreExit, CoreHandle, CoreOptions, Hosted, Listener};
use lode_server::{CreatePool, DeviceDetails, Managed, PoolManager, PoolManagerError, Server};
use lode_units::{CoreId, Instant, MonotonicClock, SeededRandom};
use rustix::thread::{Pid, gettid};
use tokio::net::TcpListener;

use super::Question;

/// A core with one pool on one device in memory.
#[derive(Debug)]
pub(super) struct Store {
    core: CoreHandle<Node>,
    thread_id: Pid,
    clock: MonotonicClock,
}

/// What the core hosts.
#[derive(Debug)]
struct Node {
    shard: Shard<NamespaceQueue<EmulatedController>>,
    controller: Controller<EmulatedController>,
    pool: PoolIndex,
    /// When the controller itself wants to be polled.
    due: Instant,
}

impl Store {
    /// Starts the core on `cpu`.
    pub(super) fn start(cpu: Option<usize>, question: Question) -> anyhow::Result<Self> {
        let clock = MonotonicClock::new();
        let mut options = CoreOptions::new(CoreId::new(0), clock);
        options.cpu = cpu;
        if question == Question::ProcessorTime {
            options.idle_budget = Duration::ZERO;
        }
        let (told, id) = mpsc::sync_channel(1);
        let core = Core::spawn(options, move |_context| {
            told.send(gettid())?;
            build(clock)
        })?;
        let thread_id = id.recv()?;
        Ok(Self {
            core,
            thread_id,
            clock,
        })
    }

    pub(super) const fn thread_id(&self) -> Pid {
        self.thread_id
    }

    /// Serves it on a port of its own, from a task of this runtime; returns the address.
    pub(super) async fn serve(&self) -> anyhow::Result<String> {
        loop {
            let state = self
                .core
                .call(|node| node.shard.pool_state(node.pool).cloned());
            match state.await? {
                Some(PoolState::Ready) => break,
                Some(PoolState::Starting) => tokio::task::yield_now().await,
                other => bail!("the pool is {other:?}"),
            }
        }
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = format!("http://{}", listener.local_addr()?);
        let server = Server::new(self.clock, 1, Arc::new(NoPools));
        tokio::spawn(server.serve(Listener::Tcp(listener), vec![self.core.clone()]));
        Ok(address)
    }

    /// Ends the core.
    pub(super) async fn stop(&self, grace: Duration) -> anyhow::Result<()> {
        match self.core.shutdown(grace).await {
            CoreExit::Stopped => Ok(()),
            exit => bail!("the core did not stop cleanly: {exit:?}"),
        }
    }
}

fn build(clock: MonotonicClock) -> Result<Built<Node>, BuildError> {
    let space = IovaSpace::new();
    let mut shard = Shard::new(&space, PagePreference::HugeIfReserved)?;
    let specs = [(4 << 10, 1024), (64 << 10, 256), (1 << 20, 64)];
    let specs = specs.map(|(length_bytes, count)| BufferPoolSpec {
        length_bytes,
        count,
    });
    let buffers = BufferPool::new(&specs, &space, PagePreference::HugeIfReserved)?;
    let memories: Vec<DmaMemory> = shard
        .memories()
        .chain(buffers.memories())
        .cloned()
        .collect();
    let spec: EmulatorSpec = DEVICE.parse()?;
    let device = EmulatedController::open(&spec)?;
    let mut controller = Controller::new(device, ControllerOptions::default(), &space)?;
    controller.bring_up(&clock)?;
    for memory in &memories {
        controller.map_memory(memory)?;
    }
    let namespace = controller.namespaces().first().context("no namespace")?.id;
    let queue = controller.open_queue(namespace, QueueOptions::default(), &space)?;
    controller.settle(&clock)?;
    let spec = PoolSpec {
        name: "bench".to_owned(),
        existing: ExistingPool::Refuse,
    };
    let pool = Pool::create(spec, &[device_spec(&queue)], &mut SeededRandom::new(1), 0)?;
    let pool = shard.attach("bench", vec![("memory".to_owned(), queue)], pool);
    let hosted = Node {
        shard,
        controller,
        pool,
        due: Instant::ZERO,
    };
    Ok(Built { hosted, buffers })
}

impl Hosted for Node {
    fn submit(&mut self, request: DataRequest) -> Result<(), DataRequest> {
        self.shard.submit(request)
    }

    fn control(&mut self, token: Token, request: ControlRequest) -> Result<(), ControlRequest> {
        self.shard.control(token, request);
        Ok(())
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) -> usize {
        self.controller.bus().advance(now);
        if now >= self.due {
            self.controller.poll(now);
            self.due = self.controller.next_deadline();
            while self.controller.take_event().is_some() {}
        }
        self.shard.poll(now, completions)
    }

    fn in_flight(&self) -> usize {
        usize::from(self.shard.is_busy())
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.shard
            .next_deadline()
            .into_iter()
            .chain([self.due])
            .min()
    }

    fn arm(&mut self) {}

    fn disarm(&mut self) {}
}

/// The one pool is there from the start.
#[derive(Debug)]
struct NoPools;

impl NoPools {
    fn refuse<T: Send + 'static>() -> Managed<T> {
        Box::pin(async { Err(PoolManagerError::Stopping) })
    }
}

impl PoolManager for NoPools {
    fn create(&self, _request: CreatePool) -> Managed<String> {
        Self::refuse()
    }

    fn import(&self, _devices: Vec<String>) -> Managed<String> {
        Self::refuse()
    }

    fn export(&self, _name: String) -> Managed<()> {
        Self::refuse()
    }

    fn pool_uuid(&self, _pool: &str) -> String {
        String::new()
    }

    fn device(&self, _name: &str) -> DeviceDetails {
        DeviceDetails::default()
    }
}

/// Twice what is read and imported, so that space given back is not needed at once.
const DEVICE: &str = "memory:2GiB?lba=4096";
