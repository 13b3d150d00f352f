//! Connections handed to cores.

use std::net::SocketAddr;
use std::time::Duration;

use lode_reactor::{Connection, Listener, accept, gateway};
use lode_units::CoreId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;

use crate::fake::{FakeHost, options, run, spawn};

/// Tells the core and whether Nagle's delay is off, and echoes bytes until the client goes.
async fn serve(mut connection: Connection, told: mpsc::UnboundedSender<(CoreId, bool)>) {
    let is_prompt = match &connection {
        Connection::Tcp(stream) => stream.nodelay().expect("an open socket"),
        Connection::Unix(_) => true,
    };
    let core = gateway::core().expect("a core");
    told.send((core, is_prompt)).expect("the test waits");
    while let Ok(byte) = connection.read_u8().await {
        connection.write_u8(byte).await.expect("room");
    }
}

/// A connection that is served.
async fn connect(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_u8(7).await.expect("sent");
    assert_eq!(stream.read_u8().await.expect("echoed"), 7);
    stream
}

fn cores() -> Vec<lode_reactor::CoreHandle<FakeHost>> {
    let numbered = |core| {
        let mut options = options();
        options.core = CoreId::new(core);
        spawn(options, FakeHost::new(1, 0))
    };
    vec![numbered(0), numbered(1)]
}

#[test]
fn connections_are_spread_over_the_cores_without_delay() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (told, mut heard) = mpsc::unbounded_channel();
        let accepting = accept(Listener::Tcp(listener), cores(), move |connection| {
            serve(connection, told.clone())
        });
        tokio::spawn(accepting);
        let mut served = Vec::new();
        let mut open = Vec::new();
        for _ in 0..8 {
            open.push(connect(address).await);
            let (core, is_prompt) = heard.recv().await.expect("told");
            assert!(is_prompt);
            served.push(core.get());
        }
        // Each client's second connection, as its first, is on either core.
        assert_eq!(served, [0, 1, 1, 0, 0, 1, 1, 0]);
    });
}

#[test]
fn a_connection_goes_to_the_core_that_has_the_fewest() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (told, mut heard) = mpsc::unbounded_channel();
        let cores = cores();
        let accepting = accept(Listener::Tcp(listener), cores.clone(), move |connection| {
            serve(connection, told.clone())
        });
        tokio::spawn(accepting);
        let mut open = Vec::new();
        for _ in 0..6 {
            let stream = connect(address).await;
            open.push((stream, heard.recv().await.expect("told").0.get()));
        }
        open.retain(|(_, core)| *core == 0);
        while cores[1].connections() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(cores[0].connections(), 3);
        for _ in 0..3 {
            open.push((connect(address).await, 1));
            assert_eq!(heard.recv().await.expect("told").0.get(), 1);
        }
    });
}

#[test]
fn a_core_that_has_ended_gets_no_more_connections() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let cores = cores();
        cores[0].shutdown(Duration::from_secs(10)).await;
        let last = cores[1].clone();
        let (told, mut heard) = mpsc::unbounded_channel();
        let accepting = accept(Listener::Unix(listener), cores, move |connection| {
            serve(connection, told.clone())
        });
        let accepting = tokio::spawn(accepting);
        // The first is handed to the core that has ended, and dropped with it.
        let mut lost = UnixStream::connect(&path).await.expect("it listens");
        assert!(lost.read_u8().await.is_err());
        for byte in 0..3 {
            let mut stream = UnixStream::connect(&path).await.expect("it listens");
            stream.write_u8(byte).await.expect("sent");
            assert_eq!(stream.read_u8().await.expect("echoed"), byte);
            assert_eq!(heard.recv().await.expect("told").0.get(), 1);
        }
        last.shutdown(Duration::from_secs(10)).await;
        drop(UnixStream::connect(&path).await.expect("it listens still"));
        accepting.await.expect("it ends with the last core");
    });
}
