//! Both ends of the socket: the driver over it, peers that hang, lie or vanish, and peers that
//! others wrote.

mod client_end;
mod conformance;
mod foreign_backend;
mod foreign_client;
mod foreign_server;
mod hostile_client;
mod lying_server;
mod rig;
mod script;
