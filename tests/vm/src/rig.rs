//! Lodestore's driver over a controller behind VFIO, with a little memory to move data through.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use lode_block::{BlockDevice, Completion, DeviceError, Operation, Request, Tag};
use lode_bus::{DmaMemory, DmaSpan, IovaSpace, PagePreference};
use lode_nvme::{
    Controller, ControllerEvent, ControllerOptions, Namespace, NamespaceQueue, QueueOptions,
};
use lode_units::{Clock, Instant, Lba, MonotonicClock, NamespaceId};
use lode_vfio::sysfs::{Consent, Patience, Sysfs};
use lode_vfio::{PciAddress, VfioBus};

use crate::pattern;

pub(crate) type Queue = NamespaceQueue<VfioBus>;

/// A controller in use.
pub(crate) struct Rig {
    pub(crate) controller: Controller<VfioBus>,
    pub(crate) space: IovaSpace,
    pub(crate) data: DmaMemory,
    pub(crate) clock: MonotonicClock,
}

/// Hands `address` to VFIO. What it holds is the test's own.
pub(crate) fn bind(address: PciAddress) -> Result<()> {
    Sysfs::of_this_machine()
        .bind(address, Consent::EvenInUse, Patience::default())
        .with_context(|| format!("binding {address}"))?;
    Ok(())
}

impl Rig {
    /// Binds, opens and brings up with options of the tests' own.
    pub(crate) fn start(address: PciAddress) -> Result<Self> {
        bind(address)?;
        Self::open(address, ControllerOptions::default())
    }

    /// Opens and brings up a controller that is bound.
    pub(crate) fn open(address: PciAddress, options: ControllerOptions) -> Result<Self> {
        let bus = VfioBus::open(address).with_context(|| format!("opening {address}"))?;
        let space = IovaSpace::new();
        let data = space.allocate(DATA_BYTES, PagePreference::HugeIfReserved)?;
        let clock = MonotonicClock::new();
        let mut controller = Controller::new(bus, options, &space)?;
        controller.map_memory(&data)?;
        controller.bring_up(&clock).context("bring-up")?;
        Ok(Self {
            controller,
            space,
            data,
            clock,
        })
    }

    /// The namespace numbered `id`.
    pub(crate) fn namespace(&self, id: u32) -> Result<Namespace> {
        let wanted = NamespaceId::new(id);
        self.controller
            .namespaces()
            .iter()
            .find(|namespace| namespace.id == wanted)
            .cloned()
            .with_context(|| {
                format!(
                    "namespace {id}; refused are {:?}",
                    self.controller.refused_namespaces()
                )
            })
    }

    /// A queue that the controller has created.
    pub(crate) fn queue(&mut self, id: u32, options: QueueOptions) -> Result<Queue> {
        let namespace = NamespaceId::new(id);
        let mut queue = self
            .controller
            .open_queue(namespace, options, &self.space)?;
        let mut none = Vec::with_capacity(1);
        self.until("a live queue", |rig| {
            queue.poll(rig.clock.now(), &mut none);
            Ok(queue.is_live())
        })?;
        Ok(queue)
    }

    /// Polls the controller until `is_done`.
    pub(crate) fn until(
        &mut self,
        what: &str,
        mut is_done: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let deadline = self.clock.now() + PATIENCE;
        loop {
            if is_done(self)? {
                return Ok(());
            }
            let now = self.clock.now();
            self.controller.poll(now);
            ensure!(now < deadline, "no {what}: {:?}", self.controller);
        }
    }

    /// The `length_bytes` at `offset` of the data memory.
    pub(crate) fn span(&self, offset: usize, length_bytes: usize) -> DmaSpan {
        let whole = DmaSpan {
            iova: self.data.iova(),
            length_bytes: u32::try_from(DATA_BYTES).expect("two mebibytes"),
        };
        let small = |value: usize| u32::try_from(value).expect("inside the data memory");
        whole.part(small(offset), small(length_bytes))
    }

    /// Submits one request, waits for it, and returns how it ended.
    pub(crate) fn run(&mut self, queue: &mut Queue, request: Request) -> Result<Ended> {
        queue
            .submit(request)
            .map_err(|rejected| anyhow!("rejected: {:?}", rejected.reason))?;
        queue.kick();
        Ok(self.wait(queue)?.result)
    }

    /// Waits for one completion.
    pub(crate) fn wait(&mut self, queue: &mut Queue) -> Result<Completion> {
        let mut completions = Vec::with_capacity(1);
        self.until("completion", |rig| {
            Ok(queue.poll(rig.clock.now(), &mut completions) > 0)
        })?;
        completions.pop().context("a completion")
    }

    /// Writes the pattern of `round` to `count` blocks from `lba` on.
    pub(crate) fn write(
        &mut self,
        queue: &mut Queue,
        (lba, count): (u64, u32),
        round: u64,
    ) -> Result<Ended> {
        let block = queue.geometry().block_size.bytes();
        let content = pattern::blocks(lba, count, round, block);
        self.data.copy_from_slice(0, &content);
        let data = self.span(0, content.len());
        self.run(queue, request(Operation::Write, (lba, count), data))
    }

    /// Reads `count` blocks from `lba` on.
    pub(crate) fn read(
        &mut self,
        queue: &mut Queue,
        (lba, count): (u64, u32),
    ) -> Result<Result<Vec<u8>, DeviceError>> {
        let length = length_of(queue, count);
        self.data.fill_zero(0, length);
        let data = self.span(0, length);
        let ended = self.run(queue, request(Operation::Read, (lba, count), data))?;
        Ok(ended.map(|()| {
            let mut content = vec![0; length];
            self.data.copy_to_slice(0, &mut content);
            content
        }))
    }

    /// Reads and compares with the pattern of `round`.
    pub(crate) fn verify(
        &mut self,
        queue: &mut Queue,
        (lba, count): (u64, u32),
        round: u64,
    ) -> Result<()> {
        let found = self.read(queue, (lba, count))??;
        let block = queue.geometry().block_size.bytes();
        ensure!(
            found == pattern::blocks(lba, count, round, block),
            "{count} blocks at {lba} do not hold what round {round} wrote"
        );
        Ok(())
    }

    /// Flushes.
    pub(crate) fn flush(&mut self, queue: &mut Queue) -> Result<Ended> {
        self.run(queue, request(Operation::Flush, (0, 0), DmaSpan::EMPTY))
    }

    /// Waits for an event that `is_wanted`, taking all on the way.
    pub(crate) fn event(
        &mut self,
        what: &str,
        is_wanted: impl Fn(&ControllerEvent) -> bool,
    ) -> Result<ControllerEvent> {
        let mut found = None;
        self.until(what, |rig| {
            while let Some(event) = rig.controller.take_event() {
                if is_wanted(&event) {
                    found = Some(event);
                }
            }
            Ok(found.is_some())
        })?;
        found.context("an event")
    }

    /// Shuts the controller down and gives the function back to vfio-pci. Every queue must have
    /// been dropped.
    pub(crate) fn close(mut self) -> Result<()> {
        self.controller.shut_down(&self.clock).context("shutdown")
    }

    /// The moment.
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }
}

/// How a request ended.
pub(crate) type Ended = Result<(), DeviceError>;

/// A request with no mark of its own.
pub(crate) fn request(operation: Operation, (lba, count): (u64, u32), data: DmaSpan) -> Request {
    Request {
        tag: Tag(lba),
        operation,
        lba: Lba::new(lba),
        block_count: count,
        data,
    }
}

/// How many bytes `count` blocks are.
pub(crate) fn length_of(queue: &Queue, count: u32) -> usize {
    usize::try_from(queue.geometry().block_size.bytes() * count).expect("fits in memory")
}

/// Ends a scenario that met an outcome other than the expected one.
pub(crate) fn expect_error(
    what: &str,
    outcome: Ended,
    is_expected: impl Fn(&DeviceError) -> bool,
) -> Result<DeviceError> {
    match outcome {
        Err(error) if is_expected(&error) => Ok(error),
        Err(error) => bail!("{what} ended with {error}"),
        Ok(()) => bail!("{what} succeeded"),
    }
}

/// Status code and type of an error, without the bits that say more and "do not retry"; 0 when
/// no completion told of it.
pub(crate) fn code(error: &DeviceError) -> u16 {
    error.status.map_or(0, |status| status & 0x7FF)
}

/// Beyond every deadline of the driver together; emulation is slow.
const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const DATA_BYTES: usize = 2 << 20;
