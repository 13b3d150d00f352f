//! How durable a write is when it is acknowledged.

/// The durability that a caller asks for, weakest first; the effective level is the strongest
/// of the call's, the handle's and the volume's (`max`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// Acknowledged when the device has completed the write; a power cut may lose it until a
    /// flush.
    #[default]
    None,
    /// The data, and the metadata needed to reach them, survive a power cut (O_DSYNC).
    Data,
    /// The object's attributes survive as well (O_SYNC).
    Full,
}
