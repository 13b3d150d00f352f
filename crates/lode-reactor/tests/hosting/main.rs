//! Cores with a stand-in for the shard: gateway, poller, mailbox, start and end.

mod core;
mod fake;
mod gateway;
mod poller;
