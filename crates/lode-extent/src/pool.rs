//! The pool's state machine.

use lode_units::{DeviceIndex, Random};
use smallvec::SmallVec;

use crate::allocation::Allocation;
use crate::error::{ExtentError, IoFailure, LookupError};
use crate::io::{DeviceSpec, MetadataIo};
use crate::load::Missing;
use crate::piece::Piece;
use crate::types::{IoId, LogicalBlock, PoolBlock, RequestId, Ticket, VolumeId};
use crate::volume::{Counters, PoolSpec, PoolState, Unmapped, Usage, VolumeInfo, VolumeSpec};

/// One pool: its space, its volumes' maps, and the journal that makes their changes durable.
#[derive(Debug)]
pub struct Pool {
    state: PoolState,
    counters: Counters,
}

impl Pool {
    /// Begins to make a pool on `devices`, in pool order.
    ///
    /// # Errors
    /// What [`ExtentError`] says of names, device counts and sizes.
    pub fn create(
        spec: PoolSpec,
        devices: &[DeviceSpec],
        random: &mut dyn Random,
        unix_seconds: u64,
    ) -> Result<Self, ExtentError> {
        let _unused = (spec, devices, random, unix_seconds);
        Ok(Self::starting())
    }

    /// Begins to open the pool on `devices`, given in any order.
    #[must_use]
    pub fn import(devices: &[DeviceSpec]) -> Self {
        let _unused = devices;
        Self::starting()
    }

    fn starting() -> Self {
        Self {
            state: PoolState::Starting,
            counters: Counters::default(),
        }
    }

    /// Whether the pool serves.
    #[must_use]
    pub fn state(&self) -> &PoolState {
        &self.state
    }

    /// The next device operation that the pool wants, until `None`: ask again after each call
    /// that changes the pool and after each completion.
    pub fn next_io(&mut self) -> Option<MetadataIo> {
        None
    }

    /// Takes the outcome of an operation: the bytes of a read, `None` for a write or flush.
    pub fn complete_io(&mut self, id: IoId, outcome: Result<Option<&[u8]>, IoFailure>) {
        let _unused = (id, outcome);
    }

    /// Makes a volume.
    ///
    /// # Errors
    /// [`ExtentError::AlreadyExists`] unless the same request made the same volume.
    pub fn create_volume(
        &mut self,
        spec: &VolumeSpec,
        request: Option<&RequestId>,
    ) -> Result<(VolumeId, Ticket), ExtentError> {
        let _unused = (spec, request);
        Err(ExtentError::NotReady)
    }

    /// Changes a volume's size.
    ///
    /// # Errors
    /// See [`ExtentError`].
    pub fn resize_volume(
        &mut self,
        volume: VolumeId,
        new_size_bytes: u64,
    ) -> Result<Ticket, ExtentError> {
        let _unused = (volume, new_size_bytes);
        Err(ExtentError::NotReady)
    }

    /// Deletes a volume.
    ///
    /// # Errors
    /// See [`ExtentError`].
    pub fn delete_volume(
        &mut self,
        volume: VolumeId,
        request: Option<&RequestId>,
    ) -> Result<Ticket, ExtentError> {
        let _unused = (volume, request);
        Err(ExtentError::NotReady)
    }

    /// A volume by its id.
    #[must_use]
    pub fn volume(&self, volume: VolumeId) -> Option<VolumeInfo> {
        let _unused = volume;
        None
    }

    /// A volume by its name.
    #[must_use]
    pub fn find_volume(&self, name: &str) -> Option<VolumeInfo> {
        let _unused = name;
        None
    }

    /// At most `limit` volumes in the order of their names, those after `after` in that order.
    #[must_use]
    pub fn volumes(&self, after: Option<&str>, limit: usize) -> Vec<VolumeInfo> {
        let _unused = (after, limit);
        Vec::new()
    }

    /// A number that grows with each change of the volume's mapping.
    #[must_use]
    pub fn mapping_sequence(&self, volume: VolumeId) -> Option<u64> {
        let _unused = volume;
        None
    }

    /// How `count` units from `first` on are mapped; the pieces are appended to `into`.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub fn lookup(
        &self,
        volume: VolumeId,
        first: LogicalBlock,
        count: u32,
        into: &mut SmallVec<[Piece; 4]>,
    ) -> Result<(), LookupError> {
        let _unused = (first, count, into);
        Err(LookupError::UnknownVolume(volume))
    }

    /// Starts to read what was missing.
    pub fn load(&mut self, missing: Missing) {
        let _unused = missing;
    }

    /// The device and its 4 KiB block that hold a block of the pool.
    #[must_use]
    pub fn locate(&self, block: PoolBlock) -> (DeviceIndex, u64) {
        (DeviceIndex::new(0), block.get())
    }

    /// Reserves space for `count` units from `first` on.
    ///
    /// # Errors
    /// See [`ExtentError`].
    pub fn allocate(
        &mut self,
        volume: VolumeId,
        first: LogicalBlock,
        count: u32,
    ) -> Result<Allocation, ExtentError> {
        let _unused = (volume, first, count);
        Err(ExtentError::NotReady)
    }

    /// Maps an allocation whose data is written.
    ///
    /// # Errors
    /// Gives the allocation back beside the reason.
    pub fn record(&mut self, allocation: Allocation) -> Result<Ticket, (Allocation, ExtentError)> {
        Err((allocation, ExtentError::NotReady))
    }

    /// Gives an allocation back unused.
    pub fn cancel(&mut self, allocation: Allocation) {
        allocation.abandon();
    }

    /// Makes holes of whole units, as many as one bounded call can.
    ///
    /// # Errors
    /// See [`ExtentError`].
    pub fn unmap(
        &mut self,
        volume: VolumeId,
        first: LogicalBlock,
        count: u32,
    ) -> Result<Unmapped, ExtentError> {
        let _unused = (volume, first, count);
        Err(ExtentError::NotReady)
    }

    /// Starts to make durable all that is recorded.
    pub fn commit(&mut self) {}

    /// The last change that survives a power cut.
    #[must_use]
    pub fn durable(&self) -> Ticket {
        Ticket::default()
    }

    /// The last change recorded.
    #[must_use]
    pub fn recorded(&self) -> Ticket {
        Ticket::default()
    }

    /// Asks for a checkpoint.
    pub fn checkpoint(&mut self) {}

    /// Commits, checkpoints and marks the pool clean.
    pub fn export(&mut self) {}

    /// How the space is used.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage::default()
    }

    /// What was done so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
