//! A server on one core with one volume, and a client connected to it.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lode_api::v1::block_service_client::BlockServiceClient;
use lode_api::v1::stats_service_client::StatsServiceClient;
use lode_api::v1::volume_service_client::VolumeServiceClient;
use lode_api::v1::{CreateVolumeRequest, ErrorDetail, ErrorReason};
use lode_block::{BufferPool, BufferPoolSpec};
use lode_bus::{IovaSpace, PagePreference};
use lode_engine::{IoError, ShardStats};
use lode_reactor::{Built, Core, CoreExit, CoreHandle, CoreOptions, Listener};
use lode_server::{
    CreatePool, DeviceDetails, Managed, PoolManager, PoolManagerError, Server, Serving,
};
use lode_units::{CoreId, MonotonicClock};
use tokio::net::TcpListener;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::memory_host::{MemoryHost, POOL, Script};

/// The volume that every fixture has: 8 MiB in blocks of 512 bytes.
pub(crate) const VOLUME: &str = "v";
pub(crate) const VOLUME_BYTES: u64 = 8 << 20;

/// A pool manager that notes what it is asked and answers as the test says.
#[derive(Debug, Default)]
pub(crate) struct ScriptedPools {
    pub(crate) asked: Mutex<Vec<String>>,
    pub(crate) fail: Mutex<Option<PoolManagerError>>,
}

impl ScriptedPools {
    fn answer<T: Send + 'static>(&self, asked: String, value: T) -> Managed<T> {
        self.asked.lock().expect("not poisoned").push(asked);
        let failed = self.fail.lock().expect("not poisoned").clone();
        Box::pin(async move { failed.map_or(Ok(value), Err) })
    }
}

impl PoolManager for ScriptedPools {
    fn create(&self, request: CreatePool) -> Managed<String> {
        self.answer(format!("{request:?}"), POOL.into())
    }

    fn import(&self, devices: Vec<String>) -> Managed<String> {
        self.answer(format!("import {devices:?}"), POOL.into())
    }

    fn export(&self, name: String) -> Managed<()> {
        self.answer(format!("export {name}"), ())
    }

    fn pool_uuid(&self, _pool: &str) -> String {
        "a-uuid".into()
    }

    fn device(&self, _name: &str) -> DeviceDetails {
        DeviceDetails::default()
    }
}

/// The server and what tests reach of it.
pub(crate) struct Fixture {
    pub(crate) script: Arc<Script>,
    pub(crate) pools: Arc<ScriptedPools>,
    pub(crate) core: CoreHandle<MemoryHost>,
    pub(crate) server: Server,
    /// What the stand-in has counted: nothing, unless a test does.
    pub(crate) figures: Arc<ShardStats>,
    pub(crate) address: SocketAddr,
    pub(crate) channel: Channel,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let script = Arc::new(Script::default());
        let pools = Arc::new(ScriptedPools::default());
        let clock = MonotonicClock::new();
        let core = spawn(clock, Arc::clone(&script));
        let server = Server::new(clock, 1, Arc::clone(&pools) as Arc<dyn PoolManager>);
        let figures = Arc::new(ShardStats::default());
        server.watch_core(core.clone(), Arc::clone(&figures));
        server.set_serving(Serving::Yes).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let listener = Listener::Tcp(listener);
        tokio::spawn(server.clone().serve(listener, vec![core.clone()]));
        let channel = connect(address).await;
        let fixture = Self {
            script,
            pools,
            core,
            server,
            figures,
            address,
            channel,
        };
        fixture.create(VOLUME, VOLUME_BYTES, 512).await;
        fixture
    }

    pub(crate) fn blocks(&self) -> BlockServiceClient<Channel> {
        BlockServiceClient::new(self.channel.clone())
            .max_decoding_message_size(8 << 20)
            .max_encoding_message_size(8 << 20)
    }

    pub(crate) fn stats(&self) -> StatsServiceClient<Channel> {
        StatsServiceClient::new(self.channel.clone())
    }

    pub(crate) fn volumes(&self) -> VolumeServiceClient<Channel> {
        VolumeServiceClient::new(self.channel.clone())
    }

    pub(crate) async fn create(&self, name: &str, size_bytes: u64, block_size_bytes: u32) {
        let request = CreateVolumeRequest {
            name: name.into(),
            size_bytes,
            block_size_bytes,
            ..CreateVolumeRequest::default()
        };
        let created = self.volumes().create_volume(request).await;
        created.expect("the volume is made");
    }

    /// Holds data requests back, or lets them go on.
    pub(crate) fn hold(&self, is_held: bool) {
        self.script.hold.store(is_held, Ordering::Release);
        self.core.signal().notify();
    }

    pub(crate) fn fail(&self, error: Option<IoError>) {
        *self.script.fail.lock().expect("not poisoned") = error;
    }

    /// Waits until so many requests are at the gateway.
    pub(crate) async fn until_requests(&self, count: u64) {
        while self.core.stats().requests.read() != count {
            tokio::task::yield_now().await;
        }
    }

    /// Stops the core: everything under way has ended, and every buffer is back.
    pub(crate) async fn stop(self) {
        drop(self.channel);
        self.server.stop().await;
        let exit = self.core.shutdown(Duration::from_secs(60)).await;
        assert_eq!(exit, CoreExit::Stopped);
        assert_eq!(
            self.core.stats().buffers_lent.read(),
            0,
            "a buffer is missing"
        );
        assert_eq!(self.core.stats().task_panics.read(), 0);
    }
}

fn spawn(clock: MonotonicClock, script: Arc<Script>) -> CoreHandle<MemoryHost> {
    let options = CoreOptions::new(CoreId::new(0), clock);
    Core::spawn(options, |_context| {
        let specs =
            [(4096, 512), (65536, 16), (1 << 20, 16)].map(|(length_bytes, count)| BufferPoolSpec {
                length_bytes,
                count,
            });
        let buffers = BufferPool::new(&specs, &IovaSpace::new(), PagePreference::Ordinary)?;
        let hosted = MemoryHost::new(script);
        Ok(Built { hosted, buffers })
    })
    .expect("a core")
}

pub(crate) async fn connect(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    endpoint.connect().await.expect("the server listens")
}

/// Runs a test's future, with a bound on how long it may take before it counts as stuck.
pub(crate) fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(STUCK_AFTER, future)
            .await
            .expect("the test makes progress")
    })
}

/// Asserts that a call failed with that code and reason, and returns the detail.
pub(crate) fn failed<T: std::fmt::Debug>(
    result: Result<T, Status>,
    code: Code,
    reason: ErrorReason,
) -> ErrorDetail {
    let status = result.expect_err("the call fails");
    assert_eq!(status.code(), code, "{status:?}");
    let detail = ErrorDetail::from_status(&status).expect("a detail");
    assert_eq!(detail.reason(), reason, "{status:?}");
    detail
}

const STUCK_AFTER: Duration = Duration::from_secs(60);
