//! What can go wrong, and what the caller can do about it.

use lode_units::DeviceIndex;
use uuid::Uuid;

use crate::load::Missing;
use crate::types::{LogicalBlock, VolumeId};
use crate::volume::VolumeLimits;

/// Why the pool refused or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExtentError {
    /// The pool is still being created or imported: wait until it is ready.
    #[error("the pool is not ready")]
    NotReady,
    /// The pool is being exported or has been: import it again.
    #[error("the pool is exported")]
    Exported,
    /// An earlier failure made the pool read-only; [`Pool::state`](crate::Pool::state) says which.
    #[error("the pool is read-only after a failure")]
    ReadOnly,
    /// Metadata must be read first: [`Pool::load`](crate::Pool::load) it and retry.
    #[error("metadata is not in memory")]
    NotResident(Missing),
    /// Changes wait for a checkpoint: retry once [`Pool::durable`](crate::Pool::durable) or a
    /// checkpoint has moved on. The checkpoint is already asked for.
    #[error("the journal is full until the running checkpoint ends")]
    JournalFull,
    /// A shrink of this volume is still giving its space back: retry a growth later.
    #[error("volume {volume} is still being trimmed")]
    TrimPending {
        /// The volume.
        volume: VolumeId,
    },
    /// Too little free space; a commit may release `pending_blocks` more.
    #[error(
        "no space: {wanted_blocks} blocks wanted, {free_blocks} free, {pending_blocks} being freed"
    )]
    NoSpace {
        /// 4 KiB blocks asked for.
        wanted_blocks: u64,
        /// 4 KiB blocks that data may still take.
        free_blocks: u64,
        /// 4 KiB blocks that become free with the next durable commit or checkpoint.
        pending_blocks: u64,
    },
    /// No volume has this id.
    #[error("no volume {volume}")]
    UnknownVolume {
        /// The id.
        volume: VolumeId,
    },
    /// A volume of this name exists (and not from this very request).
    #[error("volume {name:?} exists")]
    AlreadyExists {
        /// The name.
        name: String,
    },
    /// The request id was used before for a different mutation.
    #[error("request id was used for another operation")]
    RequestIdReused,
    /// The pool holds as many volumes as it can.
    #[error("the pool holds {limit} volumes, its limit")]
    TooManyVolumes {
        /// The limit.
        limit: usize,
    },
    /// A name is empty, too long, or holds a control character.
    #[error(
        "a name has 1 to 255 bytes and no control character (this one has {length_bytes} bytes)"
    )]
    InvalidName {
        /// Its length.
        length_bytes: usize,
    },
    /// A request id is empty or too long.
    #[error("a request id has 1 to 64 bytes (this one has {length_bytes})")]
    InvalidRequestId {
        /// Its length.
        length_bytes: usize,
    },
    /// A volume's block size is neither 512 nor 4096 bytes.
    #[error("a volume's block size is 512 or 4096 bytes, not {bytes}")]
    InvalidBlockSize {
        /// What was asked for.
        bytes: u32,
    },
    /// A volume size is zero, too large, or no multiple of the block size.
    #[error("invalid volume size {size_bytes}")]
    InvalidSize {
        /// The size asked for.
        size_bytes: u64,
    },
    /// A volume's limit or burst is higher than any that can be set.
    #[error(
        "a volume's limits are at most {} a second with a burst of {} ms, not {limits:?}",
        VolumeLimits::RATE_MAX,
        VolumeLimits::BURST_MAX_MS
    )]
    InvalidLimits {
        /// What was asked for.
        limits: VolumeLimits,
    },
    /// A range is empty, too long, or ends beyond the volume.
    #[error("blocks {first}+{count} lie outside the volume")]
    OutOfRange {
        /// First unit.
        first: LogicalBlock,
        /// Units.
        count: u64,
    },
    /// Metadata of this volume cannot be read; other volumes serve.
    #[error("metadata of volume {volume} is damaged")]
    ObjectDamaged {
        /// The volume.
        volume: VolumeId,
    },
    /// No device, or more than a pool can span.
    #[error("a pool spans 1 to 16 devices, not {found}")]
    DeviceCount {
        /// How many were offered.
        found: usize,
    },
    /// A device, or the pool, is too small or too large to hold the format.
    #[error("device {device} of {size_bytes} bytes does not fit the format")]
    DeviceSize {
        /// Position in the caller's list.
        device: DeviceIndex,
        /// Its size.
        size_bytes: u64,
    },
    /// The device already holds a pool, or other data where a pool's superblocks would be.
    #[error("device {device} holds a pool or other data")]
    HoldsPool {
        /// Position in the caller's list.
        device: DeviceIndex,
    },
    /// The device holds no pool.
    #[error("device {device} holds no pool")]
    NotAPool {
        /// Position in the caller's list.
        device: DeviceIndex,
    },
    /// The device holds a pool whose superblocks are all damaged.
    #[error("every superblock of device {device} is damaged")]
    SuperblocksDamaged {
        /// Position in the caller's list.
        device: DeviceIndex,
    },
    /// The pool was written by a version of the format that this program does not know.
    #[error("device {device} has format version {found}, this program knows {supported}")]
    UnsupportedVersion {
        /// Position in the caller's list.
        device: DeviceIndex,
        /// The version found.
        found: u16,
        /// The newest version known.
        supported: u16,
    },
    /// The pool uses features that this program does not know.
    #[error("the pool uses unknown features {features:#x}")]
    UnsupportedFeatures {
        /// The unknown incompatible feature bits.
        features: u64,
    },
    /// The device is shorter than the pool says.
    #[error("device {device} has {found_bytes} bytes, the pool expects {expected_bytes}")]
    DeviceTruncated {
        /// Position in the caller's list.
        device: DeviceIndex,
        /// The size recorded in the pool.
        expected_bytes: u64,
        /// The size found.
        found_bytes: u64,
    },
    /// A device of the pool was not offered.
    #[error("device {index} of the pool ({uuid}) is missing")]
    DeviceMissing {
        /// Its place in the pool.
        index: u16,
        /// Its identity.
        uuid: Uuid,
    },
    /// A device that belongs to another pool, or one offered twice.
    #[error("device {device} belongs to another pool or is named twice")]
    ForeignDevice {
        /// Position in the caller's list.
        device: DeviceIndex,
    },
    /// The journal holds a damaged block before valid ones: acknowledged changes are lost.
    #[error("journal block {sequence} is damaged")]
    JournalDamaged {
        /// The block's sequence number.
        sequence: u64,
    },
    /// A metadata block is damaged beyond what can be served around.
    #[error("metadata block {block} of device {device} is damaged")]
    MetadataDamaged {
        /// Position in the caller's list.
        device: DeviceIndex,
        /// 4 KiB block on that device.
        block: u64,
    },
    /// Metadata whose checksums hold contradicts itself: the pool has to be checked and repaired.
    #[error("the pool's metadata contradicts itself")]
    Contradiction,
    /// Reading, writing or flushing metadata failed.
    #[error("{operation} of block {block} of device {device} failed")]
    Io {
        /// What was tried.
        operation: IoOperation,
        /// Position in the caller's list.
        device: DeviceIndex,
        /// 4 KiB block on that device (0 for a flush).
        block: u64,
        /// What the device said.
        #[source]
        source: IoFailure,
    },
}

/// What a metadata operation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoOperation {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
}

impl std::fmt::Display for IoOperation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
        })
    }
}

/// How a metadata operation failed, as the device reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IoFailure {
    /// The medium could not deliver or keep the blocks.
    #[error("media error")]
    Media,
    /// The device is gone or its path failed.
    #[error("device unavailable")]
    Unavailable,
    /// The device is full (a thin namespace): NVMe Capacity Exceeded.
    #[error("device capacity exceeded")]
    CapacityExceeded,
    /// Anything else.
    #[error("device error")]
    Other,
}

/// Why a lookup gave no mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// Metadata must be read first: [`Pool::load`](crate::Pool::load) it and retry.
    #[error("metadata is not in memory")]
    NotResident(Missing),
    /// No volume has this id.
    #[error("no volume {0}")]
    UnknownVolume(VolumeId),
    /// The part of the volume's map that holds this block cannot be read.
    #[error("the map of volume {volume} is damaged at block {block}")]
    Damaged {
        /// The volume.
        volume: VolumeId,
        /// First unit that cannot be mapped.
        block: LogicalBlock,
    },
}
