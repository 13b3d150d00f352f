//! Space taken for a write that is not recorded yet.

use smallvec::SmallVec;

use crate::types::{LogicalBlock, PoolBlock, VolumeId};

/// A contiguous part of an [`Allocation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatedRun {
    /// First unit of the volume.
    pub logical: LogicalBlock,
    /// First block of the pool. A run lies on one device.
    pub physical: PoolBlock,
    /// Units of 4 KiB, at least 1.
    pub count: u32,
}

/// Space reserved in memory for a range of a volume: write the data, then
/// [`record`](crate::Pool::record) it, or [`cancel`](crate::Pool::cancel) it.
///
/// # Panics
/// Dropping one that was neither recorded, cancelled nor abandoned panics: its blocks would be
/// lost until the next import.
#[derive(Debug)]
#[must_use = "an allocation is recorded or cancelled"]
pub struct Allocation {
    volume: VolumeId,
    runs: SmallVec<[AllocatedRun; 4]>,
    settled: bool,
}

impl Allocation {
    /// An allocation for `volume` that owns `runs`, in logical order and without gaps.
    pub(crate) fn new(volume: VolumeId, runs: SmallVec<[AllocatedRun; 4]>) -> Self {
        assert!(!runs.is_empty(), "an allocation holds space");
        Self {
            volume,
            runs,
            settled: false,
        }
    }

    /// The volume it was made for.
    #[must_use]
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// First unit of the volume that it covers.
    #[must_use]
    pub fn first(&self) -> LogicalBlock {
        self.runs[0].logical
    }

    /// Units of 4 KiB that it covers.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.count)).sum()
    }

    /// The runs, in logical order and without gaps.
    #[must_use]
    pub fn runs(&self) -> &[AllocatedRun] {
        &self.runs
    }

    /// Lets go of the space without giving it back: for a pool that is gone, as after a power
    /// cut. The next import finds the blocks free.
    pub fn abandon(mut self) {
        self.settled = true;
    }

    /// Takes the runs out; the caller settles them.
    pub(crate) fn into_runs(mut self) -> SmallVec<[AllocatedRun; 4]> {
        self.settled = true;
        std::mem::take(&mut self.runs)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if !self.settled && !std::thread::panicking() {
            panic!(
                "allocation of volume {} dropped without being recorded or cancelled",
                self.volume
            );
        }
    }
}
