//! The client against the memory server.

mod calls;
mod sessions;
