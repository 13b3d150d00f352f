//! The space map: which blocks of the pool are taken.

/// A block of the space map: its height above the bitmaps and its index at that height.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpaceNode {
    pub(crate) level: u8,
    pub(crate) index: u32,
}
