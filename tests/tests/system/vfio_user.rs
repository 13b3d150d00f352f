//! The daemon over a controller in another process.

use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use lode_api::v1::{
    CreatePoolRequest, Durability, ExportPoolRequest, ImportPoolRequest, ReadRequest, WriteRequest,
};
use lode_tests::{Daemon, Emulator, Site};
use tonic::{Code, Status};

/// A volume: its pool and its name.
type Place = (&'static str, &'static str);
/// Behind the socket.
const FAR: Place = ("tank", "far");
/// In the daemon's own memory.
const CLOSE: Place = ("near", "close");
const SIZE: u64 = 8 << 20;
/// How long a call may take that has to end with an error.
const LIMIT: Duration = Duration::from_secs(60);

/// A site whose pool `tank` is behind a socket, with another pool in the daemon's own memory.
struct Far {
    site: Site,
}

impl Far {
    fn new() -> Self {
        let site =
            Site::on_device(|folder| format!("vfio-user:{}", folder.join("nvme.sock").display()));
        Self {
            site: site.and_pool("near", "memory:64MiB"),
        }
    }

    fn socket(&self) -> PathBuf {
        self.site.folder().join("nvme.sock")
    }

    fn device(&self) -> String {
        format!("vfio-user:{}", self.socket().display())
    }

    fn emulator(&self) -> Emulator {
        let file = self.site.device_file();
        let device = format!("file:{}?size=256MiB&create", file.display());
        Emulator::start(&device, &self.socket())
    }
}

async fn write(daemon: &Daemon, place: Place, offset: u64, fill: u8) -> Result<(), Status> {
    let request = WriteRequest {
        pool: place.0.to_owned(),
        volume: place.1.to_owned(),
        offset_bytes: offset,
        data: Bytes::from(vec![fill; 65536]),
        durability: Durability::Data.into(),
    };
    daemon.blocks().await.write(request).await.map(|_| ())
}

async fn holds(daemon: &Daemon, place: Place, offset: u64, fill: u8) -> bool {
    let request = ReadRequest {
        pool: place.0.to_owned(),
        volume: place.1.to_owned(),
        offset_bytes: offset,
        length_bytes: 65536,
    };
    let answer = daemon.blocks().await.read(request).await.expect("the read");
    answer.into_inner().data.iter().all(|byte| *byte == fill)
}

async fn create(daemon: &Daemon, place: Place) {
    let request = lode_api::v1::CreateVolumeRequest {
        pool: place.0.to_owned(),
        name: place.1.to_owned(),
        size_bytes: SIZE,
        ..Default::default()
    };
    let made = daemon.volumes().await.create_volume(request).await;
    made.expect("the volume is made");
}

/// What making a pool on `device` is refused with.
async fn refused(daemon: &Daemon, device: String) -> Status {
    let request = CreatePoolRequest {
        name: "new".to_owned(),
        devices: vec![device],
        ..CreatePoolRequest::default()
    };
    let mut pools = daemon.pools().await;
    let ended = tokio::time::timeout(LIMIT, pools.create_pool(request)).await;
    ended.expect("it ends").expect_err("it is refused")
}

#[tokio::test]
async fn a_pool_in_another_process_survives_a_restart_of_either() {
    let far = Far::new();
    let emulator = far.emulator();
    let daemon = far.site.start();
    create(&daemon, FAR).await;
    write(&daemon, FAR, 0, 1).await.expect("the write");
    assert!(daemon.terminate().success());

    let daemon = far.site.start();
    assert!(holds(&daemon, FAR, 0, 1).await, "the daemon restarted");
    write(&daemon, FAR, 65536, 2).await.expect("the write");
    daemon.kill();
    assert!(emulator.terminate().success());
    assert!(!far.socket().exists(), "the socket goes with its server");

    let _emulator = far.emulator();
    let daemon = far.site.start();
    assert!(holds(&daemon, FAR, 0, 1).await, "both restarted");
    assert!(holds(&daemon, FAR, 65536, 2).await, "after a kill");
}

async fn write_until_refused(daemon: &Daemon) -> Status {
    loop {
        if let Err(status) = write(daemon, FAR, 65536, 2).await {
            return status;
        }
    }
}

/// Kills it while writes are under way.
async fn kill_soon(emulator: Emulator) {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    emulator.kill();
}

#[tokio::test]
async fn a_killed_emulator_costs_errors_in_time_and_its_pool_comes_back() {
    let far = Far::new();
    let emulator = far.emulator();
    let mut daemon = far.site.start();
    create(&daemon, FAR).await;
    create(&daemon, CLOSE).await;
    write(&daemon, FAR, 0, 1).await.expect("the write");
    let both = async { tokio::join!(write_until_refused(&daemon), kill_soon(emulator)).0 };
    let failed = tokio::time::timeout(LIMIT, both).await.expect("no hang");
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    assert!(daemon.is_running(), "{}", daemon.log());
    write(&daemon, CLOSE, 0, 3).await.expect("the other pool");
    assert!(holds(&daemon, CLOSE, 0, 3).await);

    // The socket that the dead server left behind is replaced.
    let _emulator = far.emulator();
    let mut pools = daemon.pools().await;
    let request = ExportPoolRequest {
        name: "tank".to_owned(),
    };
    pools.export_pool(request).await.expect("let go of");
    let request = ImportPoolRequest {
        devices: vec![far.device()],
    };
    pools.import_pool(request).await.expect("taken again");
    assert!(holds(&daemon, FAR, 0, 1).await, "what was durable");
    write(&daemon, FAR, 65536, 4).await.expect("it serves");
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}

#[tokio::test]
async fn a_stopped_emulator_costs_errors_in_time() {
    let far = Far::new();
    let emulator = far.emulator();
    let mut daemon = far.site.start();
    create(&daemon, FAR).await;
    create(&daemon, CLOSE).await;
    emulator.signal("STOP");
    let ended = tokio::time::timeout(LIMIT, write(&daemon, FAR, 0, 1)).await;
    let failed = ended.expect("no hang").expect_err("nobody does it");
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    write(&daemon, CLOSE, 0, 3).await.expect("the other pool");
    let said = refused(&daemon, far.device()).await;
    assert!(!said.message().is_empty());
    emulator.signal("CONT");
    assert!(daemon.is_running(), "{}", daemon.log());
    let log = daemon.log();
    assert!(log.contains("did not end"), "the reason is logged: {log}");
}

#[tokio::test]
async fn what_is_wrong_with_a_socket_is_said() {
    let site = Site::new();
    let daemon = site.start();
    let device = |name: &str| format!("vfio-user:{}", site.folder().join(name).display());

    let said = refused(&daemon, device("absent")).await;
    assert_eq!(said.code(), Code::NotFound, "{said}");

    let silent = UnixListener::bind(site.folder().join("silent")).expect("a socket");
    let said = refused(&daemon, device("silent")).await;
    assert!(
        said.message().contains("did not end VERSION within 5s"),
        "{said}"
    );
    drop(silent);
    let said = refused(&daemon, device("silent")).await;
    assert!(said.message().contains("nobody answers"), "{said}");

    let other = UnixListener::bind(site.folder().join("other")).expect("a socket");
    let speaks = std::thread::spawn(move || {
        let (mut client, _) = other.accept().expect("a client");
        client
            .write_all(b"220 mail.example ESMTP ready\r\n")
            .expect("it listens");
        client
    });
    let said = refused(&daemon, device("other")).await;
    assert!(
        said.message().contains("does not speak vfio-user"),
        "{said}"
    );
    speaks.join().expect("no panic");

    let said = refused(&daemon, "vfio-user:relative".to_owned()).await;
    assert_eq!(said.code(), Code::InvalidArgument, "{said}");
}
