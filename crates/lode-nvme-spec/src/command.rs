//! The fields of each command: a plain struct, encoded into and decoded from a
//! [`SubmissionEntry`](crate::SubmissionEntry). Decoding takes every bit pattern; what a value
//! means is the controller's business.

mod admin;
mod nvm;
mod queue;

pub use admin::{Abort, DoorbellBufferConfig, GetFeatures, GetLogPage, Identify, SetFeatures};
pub use nvm::{BlockCommand, BlockFlags, DatasetManagement, DatasetRange, flush};
pub use queue::{CreateCompletionQueue, CreateSubmissionQueue, DeleteQueue};
