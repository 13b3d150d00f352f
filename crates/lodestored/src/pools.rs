//! Opens, makes and closes pools: at the start, on request, and at the end.
//!
//! Controllers are brought up on threads of their own and polled by the core from then on; the pool
//! is attached on the core, and whoever asked waits for it to serve. One change at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lode_engine::{PoolIndex, device_spec};
use lode_extent::{DeviceSpec, ExistingPool, ExtentError, Pool, PoolSpec, PoolState};
use lode_reactor::CoreHandle;
use lode_server::{CreatePool, PoolManagerError};
use lode_units::{Clock, SystemRandom, WallClock};
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::config;
use crate::device_name::DeviceSpec as DeviceName;
use crate::drive::{Device, Drive, Opener};
use crate::node::Node;
use crate::registry::Registry;

/// The keeper of the pools.
#[derive(Debug)]
pub(crate) struct Pools {
    core: CoreHandle<Node>,
    opener: Opener,
    open: Mutex<BTreeMap<String, OpenPool>>,
}

#[derive(Clone, Debug)]
struct OpenPool {
    index: PoolIndex,
    devices: Vec<String>,
    /// The request that made it, when it was made by one.
    request_id: Option<String>,
}

type Result<T> = std::result::Result<T, PoolManagerError>;

impl Pools {
    pub(crate) fn new(core: CoreHandle<Node>, opener: Opener) -> Self {
        Self {
            core,
            opener,
            open: Mutex::default(),
        }
    }

    /// What is known of devices and pools besides what the shard knows.
    pub(crate) const fn registry(&self) -> &Arc<Registry> {
        &self.opener.registry
    }

    /// Opens a pool of the configuration; makes it when it may and its devices are blank.
    pub(crate) async fn open_configured(&self, pool: &config::Pool) -> Result<()> {
        let mut open = self.open.lock().await;
        let devices = self.open_devices(&pool.devices).await?;
        let imported = self.attach_import(&pool.name, devices).await;
        let outcome = match imported {
            Err((devices, ExtentError::NotAPool { .. })) if pool.create => {
                tracing::info!(pool = pool.name, "its devices hold no pool: making it");
                let spec = PoolSpec {
                    name: pool.name.clone(),
                    existing: ExistingPool::Refuse,
                };
                self.attach_new(devices, spec).await
            }
            outcome => outcome,
        };
        let index = self.kept(outcome).await?;
        let found = self.identity(index).await?;
        if found != pool.name {
            self.close(index).await?;
            let message = format!("its devices hold pool {found:?}");
            return Err(PoolManagerError::Internal { message });
        }
        let (devices, request_id) = (pool.devices.clone(), None);
        open.insert(
            pool.name.clone(),
            OpenPool {
                index,
                devices,
                request_id,
            },
        );
        Ok(())
    }

    /// Makes a pool.
    pub(crate) async fn create(&self, request: CreatePool) -> Result<String> {
        let mut open = self.open.lock().await;
        let name = request.name;
        if let Some(pool) = open.get(&name) {
            let is_retry = request.request_id.is_some()
                && pool.request_id == request.request_id
                && pool.devices == request.devices;
            return if is_retry {
                Ok(name)
            } else {
                Err(PoolManagerError::PoolExists { name })
            };
        }
        let devices = self.open_devices(&request.devices).await?;
        let spec = PoolSpec {
            name: name.clone(),
            existing: request.existing,
        };
        let outcome = self.attach_new(devices, spec).await;
        let index = self.kept(outcome).await?;
        let (devices, request_id) = (request.devices, request.request_id);
        open.insert(
            name.clone(),
            OpenPool {
                index,
                devices,
                request_id,
            },
        );
        Ok(name)
    }

    /// Takes the pool that the devices hold into use, under the name that it has.
    pub(crate) async fn import(&self, names: Vec<String>) -> Result<String> {
        let mut open = self.open.lock().await;
        let devices = self.open_devices(&names).await?;
        let outcome = self.attach_import("", devices).await;
        let index = self.kept(outcome).await?;
        let pool = self.identity(index).await?;
        if open.contains_key(&pool) {
            self.close(index).await?;
            return Err(PoolManagerError::PoolExists { name: pool });
        }
        open.insert(
            pool.clone(),
            OpenPool {
                index,
                devices: names,
                request_id: None,
            },
        );
        Ok(pool)
    }

    /// Writes a pool back and lets go of it.
    pub(crate) async fn export(&self, name: String) -> Result<()> {
        let mut open = self.open.lock().await;
        let Some(pool) = open.get(&name).cloned() else {
            return Err(PoolManagerError::UnknownPool { name });
        };
        self.close(pool.index).await?;
        open.remove(&name);
        self.registry().hide_pool(&name);
        Ok(())
    }

    /// Lets go of each controller that the kernel wants back, with every pool that has a device of
    /// it: what is under way ends, the pools are written back, the controller is shut down. Never
    /// returns.
    pub(crate) async fn heed_removals(&self) -> std::convert::Infallible {
        loop {
            let controller = self.registry().next_removal().await;
            for name in self.pools_on(&controller).await {
                match self.export(name.clone()).await {
                    Ok(()) => {
                        tracing::warn!(pool = name, controller, "exported: the kernel wanted it");
                    }
                    Err(error) => {
                        tracing::error!(pool = name, controller, %error, "cannot let go of it");
                    }
                }
            }
        }
    }

    /// The pools that have a device of this controller.
    async fn pools_on(&self, controller: &str) -> Vec<String> {
        let is_on = |device: &String| DeviceName::controller(device).as_deref() == Some(controller);
        let open = self.open.lock().await;
        open.iter()
            .filter(|(_, pool)| pool.devices.iter().any(is_on))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Closes every pool cleanly, once the requests under way have ended.
    pub(crate) async fn close_all(&self, grace: Duration) {
        let deadline = self.opener.clock.now() + grace;
        let stopped = self.core.call(Node::stop_admitting).await;
        while stopped.is_ok() && self.opener.clock.now() < deadline {
            match self.core.call(|node| node.requests_in_flight()).await {
                Ok(0) | Err(_) => break,
                Ok(_) => sleep(POLL_INTERVAL).await,
            }
        }
        let mut open = self.open.lock().await;
        for (name, pool) in std::mem::take(&mut *open) {
            match self.close(pool.index).await {
                Ok(()) => tracing::info!(pool = name, "closed"),
                Err(error) => tracing::error!(pool = name, %error, "not closed cleanly"),
            }
        }
    }

    /// Opens all devices or none.
    async fn open_devices(&self, names: &[String]) -> Result<Vec<Device>> {
        let mut devices = Vec::with_capacity(names.len());
        for name in names {
            match self.open_device(name).await {
                Ok(device) => devices.push(device),
                Err(error) => {
                    self.let_go(devices).await;
                    return Err(error);
                }
            }
        }
        Ok(devices)
    }

    /// Opens a device on its controller, which is brought up when it is not in use yet.
    async fn open_device(&self, name: &str) -> Result<Device> {
        let device = || name.to_owned();
        let spec: DeviceName = name.parse().map_err(|message| {
            let device = device();
            PoolManagerError::InvalidDevice { device, message }
        })?;
        if self.registry().uses(name) {
            return Err(PoolManagerError::DeviceInUse { device: device() });
        }
        if let Some(controller) = DeviceName::controller(name) {
            let (opener, name, wanted) = (self.opener.clone(), device(), spec.namespace());
            let opened = self
                .core
                .call(move |node| node.open(&controller, &name, wanted, &opener))
                .await;
            if let Some(opened) = opened.map_err(|_| PoolManagerError::Stopping)? {
                return opened;
            }
        }
        let (opener, owned) = (self.opener.clone(), device());
        let opening = tokio::task::spawn_blocking(move || opener.open(&owned, &spec));
        let (drive, device) = opening.await.map_err(|error| PoolManagerError::Internal {
            message: error.to_string(),
        })??;
        let adopted = self.core.call(move |node| node.adopt(drive)).await;
        adopted.map_err(|_| PoolManagerError::Stopping)?;
        Ok(device)
    }

    async fn attach_import(&self, name: &str, devices: Vec<Device>) -> Attached {
        let pool = Pool::import(&specs(&devices));
        self.attach(name.to_owned(), devices, pool).await
    }

    async fn attach_new(&self, devices: Vec<Device>, spec: PoolSpec) -> Attached {
        let name = spec.name.clone();
        let now = WallClock.unix_seconds();
        match Pool::create(spec, &specs(&devices), &mut SystemRandom, now) {
            Ok(pool) => self.attach(name, devices, pool).await,
            Err(error) => Err((devices, error)),
        }
    }

    /// Attaches a pool and waits until it serves. Gives the devices back when it does not.
    async fn attach(&self, name: String, devices: Vec<Device>, pool: Pool) -> Attached {
        let attached = self
            .core
            .call(move |node| node.attach(&name, devices, pool))
            .await;
        let Ok(index) = attached else {
            return Err((Vec::new(), ExtentError::NotReady));
        };
        let deadline = self.opener.clock.now() + START_LIMIT;
        loop {
            match self.core.call(move |node| node.pool_state(index)).await {
                Ok(Some(PoolState::Starting)) if self.opener.clock.now() < deadline => {
                    sleep(POLL_INTERVAL).await;
                }
                Ok(Some(PoolState::Ready)) => return Ok(index),
                Ok(Some(PoolState::Failed(error))) => {
                    return Err((self.detach(index).await, error));
                }
                Ok(_) | Err(_) => return Err((Vec::new(), ExtentError::NotReady)),
            }
        }
    }

    /// The index of a pool that serves; the devices of one that does not are let go of.
    async fn kept(&self, outcome: Attached) -> Result<PoolIndex> {
        match outcome {
            Ok(index) => {
                self.identity(index).await?;
                Ok(index)
            }
            Err((devices, error)) => {
                self.let_go(devices).await;
                Err(error.into())
            }
        }
    }

    /// The name of a pool that serves; shows its UUID.
    async fn identity(&self, index: PoolIndex) -> Result<String> {
        let identity = self.core.call(move |node| node.pool_identity(index)).await;
        let identity = identity.ok().flatten().ok_or(PoolManagerError::Stopping)?;
        let name = identity.name;
        self.registry().show_pool(&name, identity.uuid.to_string());
        Ok(name)
    }

    async fn close(&self, index: PoolIndex) -> Result<()> {
        let stopping = |_| PoolManagerError::Stopping;
        self.core
            .call(move |node| node.export(index))
            .await
            .map_err(stopping)?;
        let devices = self.detach(index).await;
        if devices.is_empty() {
            let message = "the pool did not close in time".to_owned();
            return Err(PoolManagerError::Internal { message });
        }
        self.let_go(devices).await;
        Ok(())
    }

    /// Takes a pool that is closing or failed off the core; nothing when that takes too long.
    async fn detach(&self, index: PoolIndex) -> Vec<Device> {
        let deadline = self.opener.clock.now() + START_LIMIT;
        while self.opener.clock.now() < deadline {
            match self.core.call(move |node| node.detach(index)).await {
                Ok(Some(devices)) => return devices,
                Ok(None) => sleep(POLL_INTERVAL).await,
                Err(_) => break,
            }
        }
        Vec::new()
    }

    /// Closes devices, and shuts the controllers down on which none is left.
    async fn let_go(&self, devices: Vec<Device>) {
        // Their queues go first: nothing of them is in flight any more.
        let gone: Vec<_> = devices.into_iter().map(|device| device.figures).collect();
        let Ok(drives) = self.core.call(move |node| node.close(&gone)).await else {
            return;
        };
        let clock = self.opener.clock;
        let shut_down = move |drive: Drive| drive.shut_down(&clock);
        let closing = tokio::task::spawn_blocking(move || drives.into_iter().for_each(shut_down));
        if let Err(error) = closing.await {
            tracing::error!(%error, "letting go of devices failed");
        }
    }
}

/// A pool that serves, or its devices and why it does not.
type Attached = std::result::Result<PoolIndex, (Vec<Device>, ExtentError)>;

fn specs(devices: &[Device]) -> Vec<DeviceSpec> {
    devices
        .iter()
        .map(|device| device_spec(&device.queue))
        .collect()
}

/// How long a pool may take to start or to close.
const START_LIMIT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(1);
