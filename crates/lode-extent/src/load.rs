//! What is not in memory yet.

use crate::space::SpaceNode;
use crate::types::VolumeId;

/// A metadata block that has to be read before an operation can go on. Opaque: hand it to
/// [`Pool::load`](crate::Pool::load).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing(pub(crate) MissingBlock);

/// Which block is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingBlock {
    /// A node of a volume's extent map, on the way to `key`.
    Map { volume: VolumeId, key: u64 },
    /// A node of the object table.
    Objects { key: u64 },
    /// A node of the request table.
    Requests { key: u64 },
    /// A block of the space map.
    Space(SpaceNode),
}
