//! PoolService: the pools in use, and through the pool manager those to make, import and export.

use std::sync::Arc;

use lode_api::v1::pool_service_server::PoolService;
use lode_api::v1::{
    CreatePoolRequest, CreatePoolResponse, Device, ErrorReason, ExportPoolRequest,
    ExportPoolResponse, GetPoolRequest, GetPoolResponse, ImportPoolRequest, ImportPoolResponse,
    ListPoolsRequest, ListPoolsResponse, Pool, PoolState, WriteCache,
};
use lode_engine::{ControlError, DeviceStatus, PoolStatus};
use lode_extent::{ExistingPool, PoolState as ExtentPoolState};
use lode_units::limits::{POOL_DEVICES_MAX, REQUEST_ID_LENGTH_MAX_BYTES};
use tonic::{Request, Response, Status};

use crate::failure::Failure;
use crate::open;
use crate::pool_manager::{CreatePool, PoolManager};
use crate::server::Shared;

/// Answers from the shard's account of its pools.
#[derive(Clone, Debug)]
pub(crate) struct Pools {
    shared: Arc<Shared>,
}

impl Pools {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    fn manager(&self) -> &dyn PoolManager {
        self.shared.pools.as_ref()
    }

    /// The pool of that name, or the only one.
    async fn find(&self, name: &str) -> Result<Pool, Failure> {
        let mut pools = open::pools().await?;
        if name.is_empty() {
            if pools.len() != 1 {
                let count = pools.len();
                return Err(ControlError::PoolNotNamed { count }.into());
            }
            return Ok(self.describe(pools.remove(0)));
        }
        let found = pools.into_iter().find(|pool| pool.name == name);
        found.map(|pool| self.describe(pool)).ok_or_else(|| {
            let name = name.to_owned();
            ControlError::UnknownPool { name }.into()
        })
    }

    fn describe(&self, status: PoolStatus) -> Pool {
        let (state, failure) = match status.state {
            ExtentPoolState::Starting => (PoolState::Starting, String::new()),
            ExtentPoolState::Ready => (PoolState::Ready, String::new()),
            ExtentPoolState::Exporting | ExtentPoolState::Exported => {
                (PoolState::Exporting, String::new())
            }
            ExtentPoolState::Failed(error) => (PoolState::Failed, error.to_string()),
        };
        let devices = status.devices.into_iter();
        Pool {
            uuid: self.manager().pool_uuid(&status.name),
            name: status.name,
            state: state.into(),
            failure,
            capacity_bytes: status.usage.capacity_bytes,
            allocated_bytes: status.usage.allocated_bytes,
            metadata_bytes: status.usage.metadata_bytes,
            reserved_bytes: status.usage.reserved_bytes,
            free_bytes: status.usage.free_bytes,
            virtual_bytes: status.usage.virtual_bytes,
            volume_count: status.volume_count as u64,
            superblock_copies_failed: status.counters.superblock_copies_failed,
            devices: devices.map(|device| self.describe_device(device)).collect(),
        }
    }

    fn describe_device(&self, status: DeviceStatus) -> Device {
        let details = self.manager().device(&status.name);
        Device {
            uuid: details.uuid,
            state: details.state.into(),
            is_emulated: details.is_emulated,
            size_bytes: status.geometry.capacity_bytes(),
            block_size_bytes: status.geometry.block_size.bytes(),
            write_cache: WriteCache::from(status.geometry.write_cache).into(),
            supports_fua: status.geometry.supports_write_through,
            model: details.model,
            serial: details.serial,
            firmware: details.firmware,
            health: details.health,
            name: status.name,
        }
    }
}

#[tonic::async_trait]
impl PoolService for Pools {
    async fn list_pools(
        &self,
        _request: Request<ListPoolsRequest>,
    ) -> Result<Response<ListPoolsResponse>, Status> {
        let pools = open::pools().await?;
        let pools = pools.into_iter().map(|pool| self.describe(pool)).collect();
        Ok(Response::new(ListPoolsResponse { pools }))
    }

    async fn get_pool(
        &self,
        request: Request<GetPoolRequest>,
    ) -> Result<Response<GetPoolResponse>, Status> {
        let pool = Some(self.find(&request.into_inner().name).await?);
        Ok(Response::new(GetPoolResponse { pool }))
    }

    async fn create_pool(
        &self,
        request: Request<CreatePoolRequest>,
    ) -> Result<Response<CreatePoolResponse>, Status> {
        let request = request.into_inner();
        open::check_name("name", &request.name)?;
        check_devices(&request.devices)?;
        check_request_id(&request.request_id)?;
        let created = self.manager().create(CreatePool {
            name: request.name.clone(),
            devices: request.devices.clone(),
            request_id: Some(request.request_id).filter(|id| !id.is_empty()),
            existing: if request.allow_overwrite {
                ExistingPool::Overwrite
            } else {
                ExistingPool::Refuse
            },
        });
        let name = created.await.map_err(|error| {
            let failure = Failure::from(error).about(&request.name, "");
            failure.with_device_name(&request.devices)
        })?;
        let pool = Some(self.find(&name).await?);
        Ok(Response::new(CreatePoolResponse { pool }))
    }

    async fn import_pool(
        &self,
        request: Request<ImportPoolRequest>,
    ) -> Result<Response<ImportPoolResponse>, Status> {
        let devices = request.into_inner().devices;
        check_devices(&devices)?;
        let imported = self.manager().import(devices.clone()).await;
        let name = imported.map_err(|error| Failure::from(error).with_device_name(&devices))?;
        let pool = Some(self.find(&name).await?);
        Ok(Response::new(ImportPoolResponse { pool }))
    }

    async fn export_pool(
        &self,
        request: Request<ExportPoolRequest>,
    ) -> Result<Response<ExportPoolResponse>, Status> {
        let name = request.into_inner().name;
        open::check_name("name", &name)?;
        let exported = self.manager().export(name.clone()).await;
        exported.map_err(|error| Failure::from(error).about(&name, ""))?;
        Ok(Response::new(ExportPoolResponse {}))
    }
}

fn check_devices(devices: &[String]) -> Result<(), Failure> {
    if devices.is_empty() || devices.len() > POOL_DEVICES_MAX {
        let message = format!("a pool spans 1 to {POOL_DEVICES_MAX} devices");
        return Err(Failure::invalid_field("devices", message));
    }
    Ok(())
}

/// Refuses a request id that is too long.
pub(crate) fn check_request_id(request_id: &str) -> Result<(), Failure> {
    if request_id.len() > REQUEST_ID_LENGTH_MAX_BYTES {
        let message = format!("a request id has at most {REQUEST_ID_LENGTH_MAX_BYTES} bytes");
        return Err(Failure::new(ErrorReason::InvalidRequestId, message).with_field("request_id"));
    }
    Ok(())
}
