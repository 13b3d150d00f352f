//! What crosses the engine's upper edge outside of the data path.

use lode_block::Geometry;
use lode_extent::{
    Counters, ExtentError, LogicalBlock, PieceKind, PoolState, RequestId, Usage, VolumeInfo,
    VolumeLimits, VolumeSpec,
};

use uuid::Uuid;

use crate::port::PeerIndex;
use crate::request::{DataCompletion, PoolIndex, Token, VolumeHandle};

/// A question or a change that concerns a pool or a volume as a whole.
#[derive(Debug)]
#[must_use = "a request is submitted or its caller is told"]
pub enum ControlRequest {
    /// Describe every pool. Answered by [`ControlReply::Pools`].
    ListPools,
    /// Find a volume and open it. Answered by [`ControlReply::Volume`].
    OpenVolume {
        /// Which.
        volume: VolumeName,
    },
    /// Make a volume. Answered by [`ControlReply::Volume`] once it is durable.
    CreateVolume {
        /// The pool; may be empty when there is only one.
        pool: String,
        /// What it is to be.
        spec: VolumeSpec,
        /// Names the mutation, so that a retry of it gives the same answer.
        request: Option<RequestId>,
    },
    /// Change a volume's size. Answered by [`ControlReply::Volume`] once it is durable.
    ResizeVolume {
        /// Which.
        volume: VolumeName,
        /// The new size in bytes.
        size_bytes: u64,
        /// Whether data beyond the new size may be lost.
        shrink: Shrink,
    },
    /// Change how much a volume may do. Answered by [`ControlReply::Volume`] once it is durable;
    /// in force a little before.
    LimitVolume {
        /// Which.
        volume: VolumeName,
        /// What is to change.
        change: LimitChange,
    },
    /// Delete a volume. Requests under way end first. Answered by [`ControlReply::Done`] once it
    /// is durable.
    DeleteVolume {
        /// Which.
        volume: VolumeName,
        /// Names the mutation, so that a retry of it gives the same answer.
        request: Option<RequestId>,
    },
    /// List volumes in the order of their names. Answered by [`ControlReply::Volumes`].
    ListVolumes {
        /// The pool; may be empty when there is only one.
        pool: String,
        /// List those after this name only.
        after: Option<String>,
        /// The most to list.
        limit: usize,
    },
    /// List how a volume is mapped. Answered by [`ControlReply::Extents`].
    ListExtents {
        /// Which.
        volume: VolumeHandle,
        /// Where to begin.
        first: LogicalBlock,
        /// How many 4 KiB units to cover at most.
        count: u32,
    },
}

/// Who is told when a control request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// The caller that made it.
    Client(Token),
    /// The caller of another core, by that core's token.
    Peer(PeerIndex, Token),
}

/// A change of a volume's limits: what is `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitChange {
    /// The most operations in a second; 0: no limit.
    pub iops_max: Option<u64>,
    /// The most bytes in a second, read and written together; 0: no limit.
    pub bandwidth_max_bytes: Option<u64>,
    /// How much may be saved up, as the time in which it is saved.
    pub burst_ms: Option<u32>,
}

impl LimitChange {
    /// `limits` with this change.
    #[must_use]
    pub fn applied_to(&self, limits: VolumeLimits) -> VolumeLimits {
        VolumeLimits {
            iops_max: self.iops_max.unwrap_or(limits.iops_max),
            bandwidth_max_bytes: self
                .bandwidth_max_bytes
                .unwrap_or(limits.bandwidth_max_bytes),
            burst_ms: self.burst_ms.unwrap_or(limits.burst_ms),
        }
    }
}

/// Whether data may be lost when a volume is made smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shrink {
    /// Refuse.
    Refuse,
    /// Allow.
    Allow,
}

/// A volume by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeName {
    /// The pool; may be empty when there is only one.
    pub pool: String,
    /// The volume.
    pub volume: String,
}

/// The answer to a [`ControlRequest`].
#[derive(Debug)]
pub enum ControlReply {
    /// Every pool.
    Pools(Vec<PoolStatus>),
    /// A volume.
    Volume(VolumeStatus),
    /// Volumes.
    Volumes(Vec<VolumeInfo>),
    /// How a range is mapped, without gaps.
    Extents(Vec<Extent>),
    /// It is done.
    Done,
}

/// A pool as it stands.
#[derive(Clone, Debug)]
pub struct PoolStatus {
    /// Its place on this shard.
    pub index: PoolIndex,
    /// Its name.
    pub name: String,
    /// Whether it serves.
    pub state: PoolState,
    /// How its space is used.
    pub usage: Usage,
    /// What it has done.
    pub counters: Counters,
    /// Its devices.
    pub devices: Vec<DeviceStatus>,
    /// How many volumes it holds.
    pub volume_count: usize,
}

/// Who a pool is: what its devices say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolIdentity {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: Uuid,
    /// The UUID that it gave each device, in the order in which they were attached.
    pub device_uuids: Vec<Uuid>,
}

/// A device of a pool as it stands.
#[derive(Clone, Debug)]
pub struct DeviceStatus {
    /// Its name, as in the configuration.
    pub name: String,
    /// What it promises.
    pub geometry: Geometry,
    /// Commands that failed since the pool was attached.
    pub errors: u64,
    /// Commands in flight.
    pub in_flight: usize,
}

/// A volume as it stands, open.
#[derive(Clone, Debug)]
pub struct VolumeStatus {
    /// The pool's name.
    pub pool: String,
    /// The open volume.
    pub handle: VolumeHandle,
    /// What it is.
    pub info: VolumeInfo,
}

/// A stretch of a volume that is mapped in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How.
    pub kind: PieceKind,
    /// Where it begins, in 4 KiB units.
    pub first: LogicalBlock,
    /// How long it is, in 4 KiB units.
    pub count: u32,
}

/// Why a [`ControlRequest`] failed. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// No pool has this name.
    #[error("no pool {name:?}")]
    UnknownPool {
        /// The name.
        name: String,
    },
    /// The pool was not named and there is more than one, or none.
    #[error("the pool must be named: there are {count}")]
    PoolNotNamed {
        /// How many pools there are.
        count: usize,
    },
    /// No volume has this name.
    #[error("no volume {name:?}")]
    UnknownVolume {
        /// The name.
        name: String,
    },
    /// The handle names no volume.
    #[error("the volume no longer exists")]
    StaleHandle,
    /// The new size is smaller, and that was not allowed.
    #[error("{size_bytes} bytes is less than the volume's {current_bytes}; data would be lost")]
    WouldShrink {
        /// The size asked for.
        size_bytes: u64,
        /// The present size.
        current_bytes: u64,
    },
    /// The volume is being resized or deleted.
    #[error("volume {name:?} is being changed by another request")]
    Busy {
        /// The volume.
        name: String,
    },
    /// A device failed while the change was being prepared.
    #[error("the change failed: {0}")]
    Io(crate::error::IoError),
    /// The pool refused.
    #[error(transparent)]
    Pool(#[from] ExtentError),
    /// Too many control requests are under way.
    #[error("too many requests are under way")]
    TooMany,
    /// The daemon is stopping.
    #[error("the daemon is stopping")]
    Stopping,
}

/// The end of a request of either kind.
#[derive(Debug)]
#[must_use = "a completion belongs to a caller"]
pub enum Completion {
    /// Of a data request.
    Data(DataCompletion),
    /// Of a control request.
    Control {
        /// The request's mark.
        token: Token,
        /// How it ended; boxed, so that completions of data stay small.
        result: Box<Result<ControlReply, ControlError>>,
    },
}
