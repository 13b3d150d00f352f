//! What is not in memory yet.

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
    /// A block of the space map.
    Space(crate::space::SpaceNode),
}
