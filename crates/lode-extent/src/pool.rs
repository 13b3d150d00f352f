//! The pool's state machine: what callers see, and how outcomes find their way.

mod api;
mod background;
mod checkpoint;
mod commit;
mod load;
mod map;
mod probe;
mod publish;
mod start;
mod unmap;
mod volumes;

pub use map::ALLOCATION_BLOCKS_MAX;

use lode_units::{DeviceIndex, Random};

use crate::core::Core;
use crate::error::{ExtentError, IoFailure};
use crate::io::{DeviceSpec, MetadataIo};
use crate::io_queue::{InFlight, IoQueue, Purpose};
use crate::layout::PoolLayout;
use crate::pool::checkpoint::Checkpoint;
use crate::pool::publish::Publish;
use crate::pool::start::Start;
use crate::types::{IoId, PoolBlock, VolumeId};
use crate::volume::{Counters, PoolSpec, PoolState};

/// One pool: its space, its volumes' maps, and the journal that makes their changes durable.
///
/// Lives on one thread. The caller pumps it: [`next_io`](Self::next_io) until it gives `None`,
/// after each call that changes the pool and after each [`complete_io`](Self::complete_io).
/// Nothing here blocks. `lookup` does not allocate unless its answer has more than four pieces;
/// calls that change the pool may.
#[derive(Debug)]
pub struct Pool {
    state: PoolState,
    /// In the caller's order.
    devices: Vec<DeviceSpec>,
    /// The caller's position of each device of the pool, in pool order.
    caller_position: Vec<usize>,
    /// Where its blocks lie; nowhere before it is known.
    layout: PoolLayout,
    io: IoQueue,
    core: Option<Box<Core>>,
    start: Option<Start>,
    checkpoint: Checkpoint,
    publish: Option<Publish>,
    is_checkpoint_wanted: bool,
    /// A checkpoint was tried, and the map of free space cannot be read.
    is_checkpoint_stuck: bool,
    /// A block of the object table that cannot be read: some volumes are not known.
    damaged_table: Option<PoolBlock>,
    /// Keys of maps whose leaf, or the way to it, cannot be read.
    damaged_maps: Vec<(VolumeId, u64)>,
    /// The block of the metadata that was found unreadable last.
    damaged_block: Option<PoolBlock>,
    counters: Counters,
    #[cfg(test)]
    pub(crate) fault: Option<Fault>,
}

impl Pool {
    /// Begins to make a pool on `devices`, in pool order. Ready once the format is durable.
    ///
    /// # Errors
    /// A name, a device count or a device size that the format cannot hold. Devices that hold a
    /// pool are found later: the state becomes [`PoolState::Failed`] with
    /// [`ExtentError::HoldsPool`].
    pub fn create(
        spec: PoolSpec,
        devices: &[DeviceSpec],
        random: &mut dyn Random,
        unix_seconds: u64,
    ) -> Result<Self, ExtentError> {
        let start = Start::create(spec, devices, random, unix_seconds)?;
        let mut pool = Self::starting(devices);
        pool.probe(start);
        Ok(pool)
    }

    /// Begins to open the pool on `devices`, given in any order. Ready after recovery; whatever
    /// is wrong with the devices shows in [`state`](Self::state).
    #[must_use]
    pub fn import(devices: &[DeviceSpec]) -> Self {
        let mut pool = Self::starting(devices);
        match Start::import(devices) {
            Ok(start) => pool.probe(start),
            Err(error) => pool.fail(error),
        }
        pool
    }

    fn starting(devices: &[DeviceSpec]) -> Self {
        Self {
            state: PoolState::Starting,
            devices: devices.to_vec(),
            caller_position: Vec::new(),
            layout: PoolLayout::default(),
            io: IoQueue::default(),
            core: None,
            start: None,
            checkpoint: Checkpoint::Idle,
            publish: None,
            is_checkpoint_wanted: false,
            is_checkpoint_stuck: false,
            damaged_table: None,
            damaged_maps: Vec::new(),
            damaged_block: None,
            counters: Counters::default(),
            #[cfg(test)]
            fault: None,
        }
    }

    /// Whether the pool serves.
    #[must_use]
    pub fn state(&self) -> &PoolState {
        &self.state
    }

    /// The next device operation that the pool wants; `None` when it waits for outcomes or for
    /// calls.
    pub fn next_io(&mut self) -> Option<MetadataIo> {
        if let Some(io) = self.io.next() {
            return Some(io);
        }
        self.drive();
        self.counters.flushes = self.io.flushes();
        self.io.next()
    }

    /// Takes the outcome of an operation: the bytes of a read, `None` for a write or flush.
    ///
    /// # Panics
    /// When a read completes without exactly the bytes that it asked for.
    pub fn complete_io(&mut self, id: IoId, outcome: Result<Option<&[u8]>, IoFailure>) {
        let Some(io) = self.io.complete(id) else {
            return;
        };
        if outcome == Err(IoFailure::Media) && self.io.read_again(io) {
            return;
        }
        match io.purpose {
            Purpose::Probe => self.probed(io, bytes(io, outcome)),
            Purpose::Load { what, block } => self.loaded(io, what, block, bytes(io, outcome)),
            Purpose::Journal { sequence } => self.journal_read(io, sequence, bytes(io, outcome)),
            Purpose::Commit => self.commit_done(io, outcome.map(|_none| ())),
            Purpose::Checkpoint => self.checkpoint_written(io, outcome.map(|_none| ())),
            Purpose::PublishFlush => self.publish_flushed(io, outcome.map(|_none| ())),
            Purpose::PublishCopy => self.publish_copied(io, outcome.map(|_none| ())),
        }
    }

    /// Lets every part of the machine do what it can.
    fn drive(&mut self) {
        match self.state {
            PoolState::Starting => self.drive_start(),
            PoolState::Ready | PoolState::Exporting => {
                self.drive_background();
                // A checkpoint may record something again: the commit of that comes after it.
                self.drive_checkpoint();
                self.drive_commit();
            }
            PoolState::Exported | PoolState::Failed(_) => {}
        }
    }

    /// Becomes read-only: what is durable stays so.
    fn fail(&mut self, error: ExtentError) {
        if !matches!(self.state, PoolState::Failed(_)) {
            self.state = PoolState::Failed(error);
            self.io.keep_loads_only();
        }
    }

    fn fail_io(&mut self, io: InFlight, source: IoFailure) {
        self.fail(ExtentError::Io {
            operation: io.operation,
            device: device_index(io.device),
            block: io.block,
            source,
        });
    }

    /// The core of a pool whose state is complete.
    pub(crate) fn checked_core(&self) -> Option<&Core> {
        let is_complete = self.state != PoolState::Starting;
        self.core.as_deref().filter(|_| is_complete)
    }

    pub(crate) fn checked_core_mut(&mut self) -> Option<&mut Core> {
        let is_complete = self.state != PoolState::Starting;
        self.core.as_deref_mut().filter(|_| is_complete)
    }

    /// The core of a pool that has one.
    fn core_mut(&mut self) -> &mut Core {
        self.core.as_mut().expect("the pool was found")
    }

    /// The core, in a pool that takes changes.
    fn ready(&mut self) -> Result<&mut Core, ExtentError> {
        match self.state {
            PoolState::Ready => Ok(self.core_mut()),
            PoolState::Starting => Err(ExtentError::NotReady),
            PoolState::Exporting | PoolState::Exported => Err(ExtentError::Exported),
            PoolState::Failed(_) => Err(ExtentError::ReadOnly),
        }
    }
}

/// A rule that a test has the pool break, to see that breaking it is noticed.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Transactions are written without flushing their data first.
    SkipDataFlush,
    /// Superblocks are written beside the nodes that they refer to.
    PublishEarly,
    /// Freed blocks are handed out before the change that freed them is durable.
    FreeEarly,
}

impl Pool {
    #[cfg(test)]
    fn breaks(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    #[cfg(test)]
    fn is_data_flush_skipped(&self) -> bool {
        self.breaks(Fault::SkipDataFlush)
    }

    #[cfg(test)]
    fn is_publish_early(&self) -> bool {
        self.breaks(Fault::PublishEarly)
    }

    #[cfg(test)]
    fn is_space_freed_early(&self) -> bool {
        self.breaks(Fault::FreeEarly)
    }

    #[cfg(not(test))]
    const fn is_data_flush_skipped(&self) -> bool {
        false
    }

    #[cfg(not(test))]
    const fn is_publish_early(&self) -> bool {
        false
    }

    #[cfg(not(test))]
    const fn is_space_freed_early(&self) -> bool {
        false
    }
}

/// The bytes of a read.
fn bytes(io: InFlight, outcome: Result<Option<&[u8]>, IoFailure>) -> Result<&[u8], IoFailure> {
    outcome.map(|data| {
        let data = data.expect("a read completes with bytes");
        let expected = usize::try_from(io.count).expect("a short read") * 4096;
        assert_eq!(data.len(), expected, "a read completes with what it asked");
        data
    })
}

/// The caller's name of a device.
fn device_index(position: usize) -> DeviceIndex {
    DeviceIndex::new(u16::try_from(position).expect("at most 16 devices"))
}
