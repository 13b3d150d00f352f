//! Both ends of the socket: the driver over it, and peers that hang, lie or vanish.

mod client_end;
mod conformance;
mod hostile_client;
mod lying_server;
mod rig;
mod script;
