//! Pools on the cores that are not their home.

use std::sync::Arc;

use lode_reactor::CoreHandle;
use lode_server::PoolManagerError;

use super::{Place, Pools, Result, not_closed};
use crate::drive::{Device, PairFigures, QueueFigures};
use crate::node::Node;

impl Pools {
    /// Makes a pool that serves at home a guest on every other core, one after the other.
    pub(super) async fn attach_guests(&self, place: &Place) -> Result<()> {
        let stopping = |_| PoolManagerError::Stopping;
        let index = place.index;
        let identity = place.home.call(move |node| node.pool_identity(index)).await;
        let identity = identity.map_err(stopping)?;
        let (identity, devices) = identity.ok_or(PoolManagerError::Stopping)?;
        self.show_pairs(place, &identity.name, &place.home, devices.len());
        for core in self.others(place) {
            let spec = place.home.call(move |node| node.guest_spec(index)).await;
            let spec = spec.map_err(stopping)?.ok_or(PoolManagerError::Stopping)?;
            let devices = match self.open_more(core, &devices).await {
                Ok(devices) => devices,
                Err(error) => {
                    tracing::warn!(
                        pool = identity.name,
                        core = %core.core(),
                        home = %place.home.core(),
                        %error,
                        "this core has no queue pairs of its own: it sends every request home"
                    );
                    Vec::new()
                }
            };
            self.show_pairs(place, &identity.name, core, devices.len());
            let home = place.home.core();
            core.call(move |node| node.attach_guest(home, spec, devices))
                .await
                .map_err(stopping)?;
        }
        Ok(())
    }

    /// Takes a pool off every core but its home. What is under way there ends first.
    pub(super) async fn detach_guests(&self, place: &Place) -> Result<()> {
        let index = place.index;
        self.registry().devices().hide_pairs(index);
        for core in self.others(place) {
            let closed = core.call(move |node| node.close_guest(index)).await;
            closed.map_err(|_| PoolManagerError::Stopping)?;
        }
        for core in self.others(place) {
            let detach = move |node: &mut Node| node.detach_guest(index);
            let devices = self.until_detached(core, detach).await;
            self.let_go(devices.ok_or_else(not_closed)?).await;
        }
        Ok(())
    }

    /// Shows how many queue pairs a core has for a pool.
    fn show_pairs(&self, place: &Place, name: &str, core: &CoreHandle<Node>, count: usize) {
        let pairs = PairFigures {
            pool: place.index,
            name: name.to_owned(),
            core: core.core(),
            count,
        };
        self.registry().devices().show_pairs(pairs);
    }

    /// Opens a queue for `core` on each of a pool's devices, or none.
    async fn open_more(
        &self,
        core: &CoreHandle<Node>,
        devices: &[Arc<QueueFigures>],
    ) -> Result<Vec<Device>> {
        let mut opened = Vec::with_capacity(devices.len());
        for device in devices {
            match self.open_one_more(core, device).await {
                Ok(device) => opened.push(device),
                Err(error) => {
                    self.let_go(opened).await;
                    return Err(error);
                }
            }
        }
        Ok(opened)
    }

    /// Opens a queue for `core` on a device, wherever its controller lives.
    async fn open_one_more(
        &self,
        core: &CoreHandle<Node>,
        device: &Arc<QueueFigures>,
    ) -> Result<Device> {
        let number = core.core();
        for owner in &self.cores {
            let (opener, device) = (self.opener.clone(), Arc::clone(device));
            let opened = owner
                .call(move |node| node.open_more(&device, number, &opener))
                .await;
            if let Some(opened) = opened.map_err(|_| PoolManagerError::Stopping)? {
                return opened;
            }
        }
        Err(PoolManagerError::Stopping)
    }

    /// Every core but a pool's home.
    fn others(&self, place: &Place) -> impl Iterator<Item = &CoreHandle<Node>> {
        let home = place.home.core();
        self.cores.iter().filter(move |core| core.core() != home)
    }
}
