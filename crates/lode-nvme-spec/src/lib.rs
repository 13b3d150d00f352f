//! The bytes of NVMe: what a driver and a controller say to each other, and nothing else.
//!
//! Owns: the registers ([`registers`]), the two queue entries ([`SubmissionEntry`],
//! [`CompletionEntry`]), the [`Status`] inside the latter, the fields of each command
//! ([`command`]), and the data structures that commands move ([`identify`], [`log_page`]).
//! Sections refer to NVMe Base 2.0, the NVM Command Set 1.0 and the NVMe over PCIe Transport
//! 1.0.
//!
//! A driver and an emulated controller each use this crate and share only it. Values that come
//! from the other side are open: a number without a meaning decodes to a variant that keeps the
//! number, and never to a panic. Nothing here blocks, allocates or decides.
//!
//! Invariants:
//! 1. Every structure has the size and the offsets of the specification, proved at compile time.
//! 2. Encoding then decoding gives the same value back; reserved bytes are encoded as zero.

mod bits;
pub mod command;
mod completion;
mod event;
pub mod feature;
pub mod identify;
pub mod log_page;
mod opcode;
mod open_enum;
pub mod prp;
pub mod registers;
mod status;
mod submission;

pub use completion::{CommandEnd, CompletionEntry};
pub use event::{AsyncEvent, ErrorEvent, EventType, HealthEvent, NoticeEvent};
pub use opcode::{AdminOpcode, NvmOpcode};
pub use status::{GenericStatus, MediaStatus, PathStatus, SpecificStatus, Status, StatusCode};
pub use submission::{DataPointer, SubmissionEntry};
