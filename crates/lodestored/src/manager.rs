//! The server's way to the keeper of the pools: its calls are made on the core and carried out
//! on the control thread.

use std::sync::Arc;

use lode_server::{CreatePool, DeviceDetails, Managed, PoolManager, PoolManagerError};
use tokio::runtime::Handle;

use crate::pools::Pools;
use crate::registry::Registry;

/// The server's way to the keeper of the pools.
#[derive(Debug)]
pub(crate) struct Manager {
    pools: Arc<Pools>,
    registry: Arc<Registry>,
    /// The control thread's runtime.
    control: Handle,
}

impl Manager {
    /// Carries calls out on the runtime that this is called on.
    pub(crate) fn new(pools: Arc<Pools>) -> Self {
        let registry = Arc::clone(pools.registry());
        Self {
            pools,
            registry,
            control: Handle::current(),
        }
    }

    /// Runs `work` on the control thread; what it began is finished also when the caller goes
    /// away.
    fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, PoolManagerError>> + Send + 'static,
    ) -> Managed<T> {
        let running = self.control.spawn(work);
        Box::pin(async move { running.await.unwrap_or(Err(PoolManagerError::Stopping)) })
    }
}

impl PoolManager for Manager {
    fn create(&self, request: CreatePool) -> Managed<String> {
        let pools = Arc::clone(&self.pools);
        self.run(async move { pools.create(request).await })
    }

    fn import(&self, devices: Vec<String>) -> Managed<String> {
        let pools = Arc::clone(&self.pools);
        self.run(async move { pools.import(devices).await })
    }

    fn export(&self, name: String) -> Managed<()> {
        let pools = Arc::clone(&self.pools);
        self.run(async move { pools.export(name).await })
    }

    fn pool_uuid(&self, pool: &str) -> String {
        self.registry.pool_uuid(pool)
    }

    fn device(&self, name: &str) -> DeviceDetails {
        self.registry.device(name)
    }
}
