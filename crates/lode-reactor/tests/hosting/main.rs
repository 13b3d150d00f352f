//! Cores with a stand-in for the shard: gateway, poller, mailbox, start and end.

mod connections;
mod core;
mod fake;
mod gateway;
mod poller;
mod ports;
