//! Units, identifiers and limits shared by every crate, and the seams through which time and
//! randomness enter the program.
//!
//! Owns: one newtype for each address space, count and identifier ([`Lba`], [`Iova`],
//! [`QueueId`], …), so that a byte offset cannot be handed in where a logical block is meant;
//! the [`limits`] that bound every queue, with the relations between them checked at compile
//! time; [`Clock`] and [`Random`], which a simulation replaces.
//!
//! Everything here is plain data: nothing blocks and nothing allocates.

mod block_size;
mod clock;
pub mod limits;
mod newtype;
mod random;

pub use block_size::{BlockSize, BlockSizeError};
pub use clock::{Clock, Instant, ManualClock, MonotonicClock, WallClock};
pub use newtype::{BlockCount, CommandId, CoreId, DeviceIndex, Iova, Lba, NamespaceId, QueueId};
pub use random::{Random, SeededRandom, SystemRandom};
