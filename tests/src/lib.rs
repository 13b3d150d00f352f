//! The harness of the whole-system tests: a real daemon in a temporary folder.
//!
//! Owns: [`Site`], a folder with a configuration and device files that outlives its daemons;
//! [`Daemon`], one running process, ended when dropped; [`Emulator`],
//! one that serves a controller; [`Refusal`], what a failed call said;
//! [`http`], the metrics page's client; [`power_loss`], the loop that kills a daemon under load
//! and judges what survived; [`foreign_pool`], pools whose metadata somebody else changed.
//!
//! A failed step panics with what it was about: this is test code, and a test has no better
//! answer. Every wait has a deadline.

mod daemon;
mod emulator;
pub mod foreign_pool;
pub mod http;
pub mod power_loss;
mod programs;
mod raw_codec;
mod refusal;
mod site;
mod wait;

pub use daemon::Daemon;
pub use emulator::Emulator;
pub use programs::program;
pub use raw_codec::RawCodec;
pub use refusal::Refusal;
pub use site::Site;
pub use wait::{Timeout, until};
