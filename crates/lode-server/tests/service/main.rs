//! The services over real connections, with volumes in memory in place of a shard.

mod blocks;
mod bulk;
mod connections;
mod fixture;
mod http;
mod memory_host;
mod pools;
mod stats;
mod stream;
mod volumes;
