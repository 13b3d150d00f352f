//! The server: gRPC services over the gateway of each core, and metrics and health over HTTP.
//!
//! Owns: [`Server`], the gRPC services with standard health and reflection; [`ListenAddress`],
//! where it may listen; [`HttpServer`] and the [`Monitor`] that it shows; [`MetricsSource`], which
//! whoever counts something implements; [`PoolManager`], what it asks of whoever opens devices;
//! the one table from errors to gRPC codes.
//!
//! A call is served on the core that its connection was handed to; its futures hold indices and
//! DMA buffers only, so that they are `Send` although they never move.
//!
//! Invariants:
//! 1. Every failure carries its reason and what it concerns; the code follows from the reason.
//! 2. Lengths are checked to the byte before a buffer is taken.
//! 3. A call that ends early leaves nothing behind: buffers go back when their requests end.

mod block;
mod deadline;
mod failure;
mod http;
mod info;
mod listen;
mod metrics;
mod open;
mod pool;
mod pool_manager;
mod server;
mod stats;
mod volume;

pub use http::{CoreProbe, HttpServer, Monitor, Pinged};
pub use listen::{ListenAddress, ListenError, RemoteAccess};
pub use metrics::{Families, Label, Labels, MetricsSource, ProcessSource, ShardSource};
pub use pool_manager::{CreatePool, DeviceDetails, Managed, PoolManager, PoolManagerError};
pub use server::{LocalExecutor, Server, Serving, http2_builder};
