//! The emulated controller as a host sees it.
#![expect(unreachable_pub, reason = "modules of a test binary share items")]

mod basics;
mod files;
mod host;
