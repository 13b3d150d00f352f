//! Opens, makes and closes pools: at the start, on request, and at the end.
//!
//! Controllers are brought up on threads of their own and polled by a core from then on. A pool is
//! attached on its home first; whoever asked waits for it to serve there and to be a guest on every
//! other core. One change at a time, which gives a pool the same index on every core.

mod devices;
mod guests;

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
use crate::drive::{Device, Opener};
use crate::node::Node;
use crate::registry::Registry;

/// The keeper of the pools.
#[derive(Debug)]
pub(crate) struct Pools {
    cores: Vec<CoreHandle<Node>>,
    opener: Opener,
    open: Mutex<BTreeMap<String, OpenPool>>,
}

#[derive(Clone, Debug)]
struct OpenPool {
    place: Place,
    devices: Vec<String>,
    /// The request that made it, when it was made by one.
    request_id: Option<String>,
}

/// Where a pool lives.
#[derive(Clone, Debug)]
struct Place {
    home: CoreHandle<Node>,
    /// The same on every core.
    index: PoolIndex,
}

type Result<T> = std::result::Result<T, PoolManagerError>;

impl Pools {
    pub(crate) fn new(cores: Vec<CoreHandle<Node>>, opener: Opener) -> Self {
        Self {
            cores,
            opener,
            open: Mutex::default(),
        }
    }

    /// What is known of devices and pools besides what the shard knows.
    pub(crate) const fn registry(&self) -> &Arc<Registry> {
        &self.opener.registry
    }

    /// The home of the next pool: the core that is home to the fewest, the first of them.
    fn home(&self, open: &BTreeMap<String, OpenPool>) -> &CoreHandle<Node> {
        let pools_of = |core: &&CoreHandle<Node>| {
            let homes = open.values().map(|pool| pool.place.home.core());
            homes.filter(|home| *home == core.core()).count()
        };
        let chosen = self.cores.iter().min_by_key(pools_of);
        chosen.expect("the configuration has a core at least")
    }

    /// Opens a pool of the configuration; makes it when it may and its devices are blank.
    pub(crate) async fn open_configured(&self, pool: &config::Pool) -> Result<()> {
        let mut open = self.open.lock().await;
        let home = self.home(&open);
        let devices = self.open_devices(home, &pool.devices).await?;
        let imported = self.attach_import(home, &pool.name, devices).await;
        let outcome = match imported {
            Err((devices, ExtentError::NotAPool { .. })) if pool.create => {
                tracing::info!(pool = pool.name, "its devices hold no pool: making it");
                let spec = PoolSpec {
                    name: pool.name.clone(),
                    existing: ExistingPool::Refuse,
                };
                self.attach_new(home, devices, spec).await
            }
            outcome => outcome,
        };
        let place = self.kept(outcome).await?;
        let found = self.identity(&place).await?;
        if found != pool.name {
            self.close(&place).await?;
            let message = format!("its devices hold pool {found:?}");
            return Err(PoolManagerError::Internal { message });
        }
        let (devices, request_id) = (pool.devices.clone(), None);
        open.insert(
            pool.name.clone(),
            OpenPool {
                place,
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
        let home = self.home(&open);
        let devices = self.open_devices(home, &request.devices).await?;
        let spec = PoolSpec {
            name: name.clone(),
            existing: request.existing,
        };
        let outcome = self.attach_new(home, devices, spec).await;
        let place = self.kept(outcome).await?;
        let (devices, request_id) = (request.devices, request.request_id);
        open.insert(
            name.clone(),
            OpenPool {
                place,
                devices,
                request_id,
            },
        );
        Ok(name)
    }

    /// Takes the pool that the devices hold into use, under the name that it has.
    pub(crate) async fn import(&self, names: Vec<String>) -> Result<String> {
        let mut open = self.open.lock().await;
        let home = self.home(&open);
        let devices = self.open_devices(home, &names).await?;
        let outcome = self.attach_import(home, "", devices).await;
        let place = self.kept(outcome).await?;
        let pool = self.identity(&place).await?;
        if open.contains_key(&pool) {
            self.close(&place).await?;
            return Err(PoolManagerError::PoolExists { name: pool });
        }
        open.insert(
            pool.clone(),
            OpenPool {
                place,
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
        self.close(&pool.place).await?;
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
        for core in &self.cores {
            // A core that has ended has nothing under way.
            let _stopped = core.call(Node::stop_admitting).await;
        }
        while self.requests_in_flight().await > 0 && self.opener.clock.now() < deadline {
            sleep(POLL_INTERVAL).await;
        }
        let mut open = self.open.lock().await;
        for (name, pool) in std::mem::take(&mut *open) {
            match self.close(&pool.place).await {
                Ok(()) => tracing::info!(pool = name, "closed"),
                Err(error) => tracing::error!(pool = name, %error, "not closed cleanly"),
            }
        }
    }

    /// Requests under way on all cores.
    async fn requests_in_flight(&self) -> usize {
        let mut sum = 0;
        for core in &self.cores {
            sum += core
                .call(|node| node.requests_in_flight())
                .await
                .unwrap_or(0);
        }
        sum
    }

    async fn attach_import(
        &self,
        home: &CoreHandle<Node>,
        name: &str,
        devices: Vec<Device>,
    ) -> Attached {
        let pool = Pool::import(&specs(&devices));
        self.attach(home, name.to_owned(), devices, pool).await
    }

    async fn attach_new(
        &self,
        home: &CoreHandle<Node>,
        devices: Vec<Device>,
        spec: PoolSpec,
    ) -> Attached {
        let name = spec.name.clone();
        let now = WallClock.unix_seconds();
        match Pool::create(spec, &specs(&devices), &mut SystemRandom, now) {
            Ok(pool) => self.attach(home, name, devices, pool).await,
            Err(error) => Err((devices, error)),
        }
    }

    /// Attaches a pool at home and waits until it serves there. Gives the devices back when it does
    /// not.
    async fn attach(
        &self,
        home: &CoreHandle<Node>,
        name: String,
        devices: Vec<Device>,
        pool: Pool,
    ) -> Attached {
        let attached = home
            .call(move |node| node.attach(&name, devices, pool))
            .await;
        let Ok(index) = attached else {
            return Err((Vec::new(), ExtentError::NotReady));
        };
        let deadline = self.opener.clock.now() + START_LIMIT;
        loop {
            match home.call(move |node| node.pool_state(index)).await {
                Ok(Some(PoolState::Starting)) if self.opener.clock.now() < deadline => {
                    sleep(POLL_INTERVAL).await;
                }
                Ok(Some(PoolState::Ready)) => {
                    let home = home.clone();
                    return Ok(Place { home, index });
                }
                Ok(Some(PoolState::Failed(error))) => {
                    let detach = move |node: &mut Node| node.detach(index);
                    let devices = self.until_detached(home, detach).await;
                    return Err((devices.unwrap_or_default(), error));
                }
                Ok(_) | Err(_) => return Err((Vec::new(), ExtentError::NotReady)),
            }
        }
    }

    /// The place of a pool that serves, on every core from now on; the devices of one that does not
    /// are let go of.
    async fn kept(&self, outcome: Attached) -> Result<Place> {
        match outcome {
            Ok(place) => {
                self.identity(&place).await?;
                self.attach_guests(&place).await?;
                Ok(place)
            }
            Err((devices, error)) => {
                self.let_go(devices).await;
                Err(error.into())
            }
        }
    }

    /// The name of a pool that serves; shows its UUID and those of its devices.
    async fn identity(&self, place: &Place) -> Result<String> {
        let index = place.index;
        let identity = place.home.call(move |node| node.pool_identity(index)).await;
        let identity = identity.ok().flatten();
        let (identity, devices) = identity.ok_or(PoolManagerError::Stopping)?;
        let uuids = identity.device_uuids.iter().map(ToString::to_string);
        let devices: Arc<[_]> = devices.into_iter().zip(uuids).collect();
        for core in &self.cores {
            let devices = Arc::clone(&devices);
            let told = core.call(move |node| node.take_uuids(&devices)).await;
            told.map_err(|_| PoolManagerError::Stopping)?;
        }
        let name = identity.name;
        self.registry().show_pool(&name, identity.uuid.to_string());
        Ok(name)
    }

    /// Takes a pool off every core, its home last, and lets go of its devices.
    async fn close(&self, place: &Place) -> Result<()> {
        self.detach_guests(place).await?;
        let index = place.index;
        let exported = place.home.call(move |node| node.export(index)).await;
        exported.map_err(|_| PoolManagerError::Stopping)?;
        let detach = move |node: &mut Node| node.detach(index);
        let devices = self.until_detached(&place.home, detach).await;
        self.let_go(devices.ok_or_else(not_closed)?).await;
        Ok(())
    }

    /// Takes a pool that is closing or failed off a core; `None` when that takes too long.
    async fn until_detached(
        &self,
        core: &CoreHandle<Node>,
        detach: impl Fn(&mut Node) -> Option<Vec<Device>> + Copy + Send + 'static,
    ) -> Option<Vec<Device>> {
        let deadline = self.opener.clock.now() + START_LIMIT;
        while self.opener.clock.now() < deadline {
            match core.call(detach).await {
                Ok(Some(devices)) => return Some(devices),
                Ok(None) => sleep(POLL_INTERVAL).await,
                Err(_) => break,
            }
        }
        None
    }
}

/// A pool that serves, or its devices and why it does not.
type Attached = std::result::Result<Place, (Vec<Device>, ExtentError)>;

fn not_closed() -> PoolManagerError {
    let message = "the pool did not close in time".to_owned();
    PoolManagerError::Internal { message }
}

fn specs(devices: &[Device]) -> Vec<DeviceSpec> {
    devices
        .iter()
        .map(|device| device_spec(&device.queue))
        .collect()
}

/// How long a pool may take to start or to close.
const START_LIMIT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(1);
