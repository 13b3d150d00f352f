//! The devices of pools: opened on their controllers, and let go of with them.

use std::sync::Arc;

use lode_reactor::CoreHandle;
use lode_server::PoolManagerError;

use super::{Pools, Result};
use crate::device_name::DeviceSpec;
use crate::drive::{Device, Drive};
use crate::node::Node;

impl Pools {
    /// Opens all devices with queues for the core `home`, or none.
    pub(super) async fn open_devices(
        &self,
        home: &CoreHandle<Node>,
        names: &[String],
    ) -> Result<Vec<Device>> {
        let mut devices = Vec::with_capacity(names.len());
        for name in names {
            match self.open_device(home, name).await {
                Ok(device) => devices.push(device),
                Err(error) => {
                    self.let_go(devices).await;
                    return Err(error);
                }
            }
        }
        Ok(devices)
    }

    /// Opens a device on its controller, which is brought up when it is not in use yet and lives on
    /// the core `home` then.
    async fn open_device(&self, home: &CoreHandle<Node>, name: &str) -> Result<Device> {
        let device = || name.to_owned();
        let spec: DeviceSpec = name.parse().map_err(|message| {
            let device = device();
            PoolManagerError::InvalidDevice { device, message }
        })?;
        if self.registry().uses(name) {
            return Err(PoolManagerError::DeviceInUse { device: device() });
        }
        let core = home.core();
        if let Some(controller) = DeviceSpec::controller(name) {
            for other in &self.cores {
                let (opener, wanted) = (self.opener.clone(), spec.namespace());
                let (controller, name) = (controller.clone(), device());
                let opened = other
                    .call(move |node| node.open(&controller, &name, core, wanted, &opener))
                    .await;
                if let Some(opened) = opened.map_err(|_| PoolManagerError::Stopping)? {
                    return opened;
                }
            }
        }
        let (opener, owned) = (self.opener.clone(), device());
        let signal = Arc::clone(home.signal());
        let opening = move || opener.open(&owned, core, &signal, &spec);
        let opening = tokio::task::spawn_blocking(opening);
        let (drive, device) = opening.await.map_err(|error| PoolManagerError::Internal {
            message: error.to_string(),
        })??;
        let adopted = home.call(move |node| node.adopt(drive)).await;
        adopted.map_err(|_| PoolManagerError::Stopping)?;
        Ok(device)
    }

    /// Closes queues, and shuts the controllers down on which no device is left.
    pub(super) async fn let_go(&self, devices: Vec<Device>) {
        // The queues go first: nothing of them is in flight any more.
        let gone: Arc<[_]> = devices.into_iter().map(|device| device.figures).collect();
        let mut drives = Vec::new();
        for core in &self.cores {
            let gone = Arc::clone(&gone);
            let unused = core.call(move |node| node.close(&gone)).await;
            drives.extend(unused.unwrap_or_default());
        }
        let clock = self.opener.clock;
        let shut_down = move |drive: Drive| drive.shut_down(&clock);
        let closing = tokio::task::spawn_blocking(move || drives.into_iter().for_each(shut_down));
        if let Err(error) = closing.await {
            tracing::error!(%error, "letting go of devices failed");
        }
    }
}
