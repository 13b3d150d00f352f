//! Both ends of a vfio-user socket under foreign bytes: the first byte says which end reads the
//! rest. A panic, or waiting without end, is a finding.

#![no_main]

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use lode_nvme_emu::{EmulatedController, EmulatorSpec};
use lode_units::MonotonicClock;
use lode_vfio_user::{DoorbellTransport, Patience, Server, VfioUserBus};

fuzz_target!(|input: &[u8]| {
    let Some((end, bytes)) = input.split_first() else {
        return;
    };
    let (ours, mut theirs) = UnixStream::pair().expect("sockets");
    // What does not fit into the socket is not sent: nobody reads yet.
    theirs.set_nonblocking(true).expect("a socket");
    let _is_cut = theirs.write_all(bytes);
    theirs
        .shutdown(std::net::Shutdown::Write)
        .expect("connected");
    if end % 2 == 0 {
        read_as_client(ours);
    } else {
        read_as_server(ours);
    }
});

fn read_as_client(socket: UnixStream) {
    let patience = Patience {
        setup: Duration::from_secs(1),
        request: Duration::from_secs(1),
    };
    let name = "vfio-user:fuzz".to_owned();
    let _refused = VfioUserBus::attach(name, socket, patience, MonotonicClock::new());
}

fn read_as_server(socket: UnixStream) {
    let spec: EmulatorSpec = "memory:1MiB".parse().expect("a controller");
    let controller = EmulatedController::open(&spec).expect("memory");
    let mut server = Server::new(
        controller,
        DoorbellTransport::Mapped,
        MonotonicClock::new(),
    )
    .expect("memory");
    // Never written to: the client's end of the socket is what ends its stay.
    let (never, _kept) = std::io::pipe().expect("a pipe");
    let _foreign = server.serve(socket, never.as_fd());
}
