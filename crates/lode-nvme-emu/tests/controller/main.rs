//! The emulated controller as a host sees it.
#![expect(unreachable_pub, reason = "modules of a test binary share items")]

mod admin;
mod basics;
mod events;
mod faults;
mod files;
mod host;
mod hostile;
mod lifecycle;
mod mounted;
mod power;
mod signals;
