//! One running daemon.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use lode_api::v1::block_service_client::BlockServiceClient;
use lode_api::v1::info_service_client::InfoServiceClient;
use lode_api::v1::pool_service_client::PoolServiceClient;
use lode_api::v1::volume_service_client::VolumeServiceClient;
use lode_api::v1::{CreateVolumeRequest, Volume};
use serde::Deserialize;
use tonic::transport::{Channel, Endpoint};

use crate::{program, until};

/// How long a daemon may take to become ready or to end, on a machine with much else to do.
const LIMIT: Duration = Duration::from_secs(60);

/// What a daemon prints.
pub(crate) const LOG: &str = "daemon.log";
/// What a daemon writes when it is ready.
pub(crate) const READY: &str = "ready.json";

/// Above the longest I/O with its message around it.
const MESSAGE_LENGTH_MAX: usize = 8 << 20;

/// A daemon, killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    ready: Ready,
    log: PathBuf,
}

/// What a daemon writes when it is ready.
#[derive(Debug, Deserialize)]
struct Ready {
    grpc: Addresses,
    http: SocketAddr,
    pid: u32,
}

/// One address or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Addresses {
    One(SocketAddr),
    Several(Vec<SocketAddr>),
}

impl Daemon {
    pub(crate) fn start(mut command: Command, folder: &Path) -> Result<Self, String> {
        let log = folder.join(LOG);
        let ready_file = folder.join(READY);
        // A file of an earlier daemon would be mistaken for this one's.
        match std::fs::remove_file(&ready_file) {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
        }
        let mut child = command.spawn().expect("the daemon can be started");
        let found = until(LIMIT, || {
            // Half a file is no JSON yet.
            let ready = std::fs::read(&ready_file)
                .ok()
                .and_then(|text| serde_json::from_slice::<Ready>(&text).ok());
            match ready {
                Some(ready) => Some(Ok(ready)),
                None => child.try_wait().transpose().map(Err),
            }
        });
        let said = || std::fs::read_to_string(&log).unwrap_or_default();
        match found {
            Ok(Ok(ready)) => {
                assert_eq!(ready.pid, child.id(), "the ready file is this daemon's");
                Ok(Self { child, ready, log })
            }
            Ok(Err(ended)) => Err(format!("ended with {ended:?}: {}", said())),
            Err(timeout) => {
                child.kill().expect("a running child can be killed");
                child.wait().expect("a killed child ends");
                Err(format!("{timeout}: {}", said()))
            }
        }
    }

    /// Starts a daemon on its embedded default, with its data below `folder`, and waits until it
    /// is ready.
    ///
    /// # Errors
    /// What the daemon printed, when it did not become ready.
    ///
    /// # Panics
    /// When it cannot be started at all.
    pub fn start_dev(folder: &Path) -> Result<Self, String> {
        let log = File::create(folder.join(LOG)).expect("the folder takes a file");
        let mut command = Command::new(program("lodestored"));
        command
            .arg("--dev")
            .arg("--data-dir")
            .arg(folder.join("lodestore-dev"))
            .args(["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"])
            .arg("--ready-file")
            .arg(folder.join(READY))
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file's handle can be copied"))
            .stderr(log);
        Self::start(command, folder)
    }

    /// Where gRPC is served.
    ///
    /// # Panics
    /// When the daemon names no address.
    #[must_use]
    pub fn grpc(&self) -> SocketAddr {
        match &self.ready.grpc {
            Addresses::One(address) => *address,
            Addresses::Several(addresses) => *addresses.first().expect("an address"),
        }
    }

    /// Where gRPC is served, as a URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.grpc())
    }

    /// Where the metrics are served.
    #[must_use]
    pub fn http(&self) -> SocketAddr {
        self.ready.http
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the daemon has printed.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Whether the process still runs.
    #[must_use]
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends the process without a warning (SIGKILL), as a power cut would.
    ///
    /// # Panics
    /// When it had ended before.
    pub fn kill(mut self) {
        assert!(
            self.is_running(),
            "it runs until it is killed: {}",
            self.log()
        );
        self.end();
    }

    /// Asks the process to end (SIGTERM) and waits until it has.
    ///
    /// # Panics
    /// When it does not end in time.
    pub fn terminate(mut self) -> ExitStatus {
        let asked = Command::new("kill")
            .args(["-TERM", &self.pid().to_string()])
            .status()
            .expect("kill can be started");
        assert!(asked.success(), "the daemon can be signalled");
        match until(LIMIT, || self.child.try_wait().transpose()) {
            Ok(status) => status.expect("a child can be waited for"),
            Err(timeout) => panic!("SIGTERM: {timeout}: {}", self.log()),
        }
    }

    /// A new connection.
    ///
    /// # Panics
    /// When the daemon does not accept it.
    pub async fn connect(&self) -> Channel {
        Endpoint::from_shared(self.url())
            .expect("an address is a URL")
            .tcp_nodelay(true)
            .connect()
            .await
            .expect("the daemon accepts connections")
    }

    /// A client of the block service on a connection of its own.
    pub async fn blocks(&self) -> BlockServiceClient<Channel> {
        BlockServiceClient::new(self.connect().await)
            .max_decoding_message_size(MESSAGE_LENGTH_MAX)
            .max_encoding_message_size(MESSAGE_LENGTH_MAX)
    }

    /// A client of the volume service on a connection of its own.
    pub async fn volumes(&self) -> VolumeServiceClient<Channel> {
        VolumeServiceClient::new(self.connect().await)
    }

    /// A client of the pool service on a connection of its own.
    pub async fn pools(&self) -> PoolServiceClient<Channel> {
        PoolServiceClient::new(self.connect().await)
    }

    /// A client of the info service on a connection of its own.
    pub async fn info(&self) -> InfoServiceClient<Channel> {
        InfoServiceClient::new(self.connect().await)
    }

    /// Makes a volume with blocks of 4096 bytes in the only pool.
    ///
    /// # Panics
    /// When the daemon refuses.
    pub async fn create_volume(&self, name: &str, size_bytes: u64) -> Volume {
        let request = CreateVolumeRequest {
            name: name.to_owned(),
            size_bytes,
            ..CreateVolumeRequest::default()
        };
        self.volumes()
            .await
            .create_volume(request)
            .await
            .expect("the volume is made")
            .into_inner()
            .volume
            .expect("the answer holds the volume")
    }

    fn end(&mut self) {
        self.child
            .kill()
            .expect("an unwaited child can be signalled");
        self.child.wait().expect("a killed child ends");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.is_running() {
            self.end();
        }
    }
}
