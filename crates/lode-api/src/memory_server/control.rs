//! Pools and volumes of the memory server.

use std::collections::{BTreeMap, HashMap};

use tonic::{Request, Response, Status};

use super::volume::MemoryVolume;
use super::{Ignored, Service};
use crate::v1::info_service_server::InfoService;
use crate::v1::pool_service_server::PoolService;
use crate::v1::volume_service_server::VolumeService;
use crate::v1::{
    CreatePoolRequest, CreatePoolResponse, CreateVolumeRequest, CreateVolumeResponse,
    DeleteVolumeRequest, DeleteVolumeResponse, Device, DeviceState, ErrorDetail, ErrorReason,
    ExportPoolRequest, ExportPoolResponse, GetInfoRequest, GetInfoResponse, GetPoolRequest,
    GetPoolResponse, GetVolumeRequest, GetVolumeResponse, ImportPoolRequest, ImportPoolResponse,
    LimitVolumeRequest, LimitVolumeResponse, Limits, ListExtentsRequest, ListExtentsResponse,
    ListPoolsRequest, ListPoolsResponse, ListVolumesRequest, ListVolumesResponse, Pool, PoolState,
    ResizeVolumeRequest, ResizeVolumeResponse,
};

/// How many items a page holds when the client leaves it open: few, so that paging is used.
const PAGE_SIZE: usize = 3;

/// All pools and volumes.
#[derive(Debug)]
pub(super) struct Store {
    pools: BTreeMap<String, Vec<String>>,
    volumes: BTreeMap<(String, String), MemoryVolume>,
    requests: HashMap<String, String>,
    next_id: u64,
}

impl Store {
    pub(super) fn new() -> Self {
        Self {
            pools: BTreeMap::from([("memory".to_owned(), Vec::new())]),
            volumes: BTreeMap::new(),
            requests: HashMap::new(),
            next_id: 1,
        }
    }

    pub(super) fn volume(&mut self, pool: &str, name: &str) -> Result<&mut MemoryVolume, Status> {
        let pool = self.pool_name(pool)?;
        let key = (pool, name.to_owned());
        self.volumes.get_mut(&key).ok_or_else(|| {
            ErrorDetail::new(ErrorReason::VolumeNotFound)
                .with_pool(key.0)
                .with_volume(name)
                .into_status(format!("there is no volume {name:?}"))
        })
    }

    fn pool_name(&self, name: &str) -> Result<String, Status> {
        match name {
            "" if self.pools.len() == 1 => {
                Ok(self.pools.keys().next().cloned().unwrap_or_default())
            }
            "" => Err(ErrorDetail::new(ErrorReason::PoolAmbiguous).into_status("name a pool")),
            name if self.pools.contains_key(name) => Ok(name.to_owned()),
            name => Err(ErrorDetail::new(ErrorReason::PoolNotFound)
                .with_pool(name)
                .into_status(format!("there is no pool {name:?}"))),
        }
    }

    fn describe_pool(&self, name: &str) -> Pool {
        let volumes = || self.volumes.values().filter(|volume| volume.pool == name);
        let devices = self.pools.get(name).into_iter().flatten();
        Pool {
            name: name.to_owned(),
            state: PoolState::Ready.into(),
            virtual_bytes: volumes().map(|volume| volume.size_bytes).sum(),
            volume_count: volumes().map(|_| 1).sum(),
            devices: devices.map(|device| describe_device(device)).collect(),
            ..Pool::default()
        }
    }

    /// Whether the request with this id was served before.
    fn is_repeated(&mut self, id: &str, contents: String) -> Result<bool, Status> {
        if id.is_empty() {
            return Ok(false);
        }
        match self.requests.get(id) {
            Some(earlier) if *earlier == contents => Ok(true),
            Some(_) => Err(ErrorDetail::new(ErrorReason::RequestIdReused)
                .into_status("the request id was used before")),
            None => {
                self.requests.insert(id.to_owned(), contents);
                Ok(false)
            }
        }
    }

    fn create(&mut self, request: &CreateVolumeRequest) -> Result<(), Status> {
        let pool = self.pool_name(&request.pool)?;
        if self.is_repeated(&request.request_id, format!("{request:?}"))? {
            return Ok(());
        }
        let block_size = match request.block_size_bytes {
            0 => 4096,
            block_size => block_size,
        };
        let refuse = |reason, message: &str| {
            let detail = ErrorDetail::new(reason).with_volume(&request.name);
            Err(detail.into_status(message))
        };
        if request.name.is_empty() || request.name.len() > 255 {
            return refuse(ErrorReason::InvalidName, "the name has no valid length");
        }
        if request.size_bytes == 0 || !request.size_bytes.is_multiple_of(u64::from(block_size)) {
            return refuse(ErrorReason::InvalidSize, "the size is not valid");
        }
        let key = (pool.clone(), request.name.clone());
        if self.volumes.contains_key(&key) {
            return refuse(ErrorReason::VolumeExists, "the name is taken");
        }
        let mut volume =
            MemoryVolume::new(pool, request.name.clone(), request.size_bytes, block_size);
        volume.id = self.next_id;
        volume.durability = request.durability();
        volume.limits = request.limits.unwrap_or_default();
        self.next_id += 1;
        self.volumes.insert(key, volume);
        Ok(())
    }

    fn delete(&mut self, request: &DeleteVolumeRequest) -> Result<(), Status> {
        if self.is_repeated(&request.request_id, format!("{request:?}"))? {
            return Ok(());
        }
        let volume = self.volume(&request.pool, &request.name)?;
        let key = (volume.pool.clone(), volume.name.clone());
        self.volumes.remove(&key);
        Ok(())
    }
}

fn describe_device(name: &str) -> Device {
    Device {
        name: name.to_owned(),
        state: DeviceState::Online.into(),
        is_emulated: true,
        ..Device::default()
    }
}

/// The page of `items` that starts at the position in `token`, and the next page's token.
fn page<T>(items: Vec<T>, size: u32, token: &str) -> Result<(Vec<T>, String), Status> {
    let start: usize = match token {
        "" => 0,
        token => token.parse().map_err(|_| {
            ErrorDetail::new(ErrorReason::InvalidPageToken).into_status("not a token of mine")
        })?,
    };
    let size = match usize::try_from(size) {
        Ok(0) | Err(_) => PAGE_SIZE,
        Ok(size) => size,
    };
    let end = start.saturating_add(size);
    let next = if end < items.len() {
        end.to_string()
    } else {
        String::new()
    };
    Ok((items.into_iter().skip(start).take(size).collect(), next))
}

impl Service {
    fn answer<T>(&self, message: T) -> Result<Response<T>, Status> {
        if self.0.loses_answer() {
            let detail = ErrorDetail::new(ErrorReason::PoolNotReady);
            return Err(detail.into_status("the answer was lost"));
        }
        Ok(Response::new(message))
    }
}

#[tonic::async_trait]
impl InfoService for Service {
    async fn get_info(
        &self,
        _request: Request<GetInfoRequest>,
    ) -> Result<Response<GetInfoResponse>, Status> {
        let limits = Limits {
            stream_credits_max: self.0.behaviour.credits,
            ..Limits::of_this_build()
        };
        Ok(Response::new(GetInfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            build: "memory".to_owned(),
            limits: Some(limits),
            core_count: 1,
            ..GetInfoResponse::default()
        }))
    }
}

#[tonic::async_trait]
impl PoolService for Service {
    async fn list_pools(
        &self,
        _request: Request<ListPoolsRequest>,
    ) -> Result<Response<ListPoolsResponse>, Status> {
        let store = self.0.store();
        let pools = store.pools.keys().map(|name| store.describe_pool(name));
        Ok(Response::new(ListPoolsResponse {
            pools: pools.collect(),
        }))
    }

    async fn get_pool(
        &self,
        request: Request<GetPoolRequest>,
    ) -> Result<Response<GetPoolResponse>, Status> {
        let store = self.0.store();
        let name = store.pool_name(&request.get_ref().name)?;
        let pool = Some(store.describe_pool(&name));
        Ok(Response::new(GetPoolResponse { pool }))
    }

    async fn create_pool(
        &self,
        request: Request<CreatePoolRequest>,
    ) -> Result<Response<CreatePoolResponse>, Status> {
        let mut store = self.0.store();
        let request = request.into_inner();
        if !store.is_repeated(&request.request_id, format!("{request:?}"))? {
            if store.pools.contains_key(&request.name) {
                let detail = ErrorDetail::new(ErrorReason::PoolExists).with_pool(request.name);
                return Err(detail.into_status("the pool is there"));
            }
            store.pools.insert(request.name.clone(), request.devices);
        }
        let pool = Some(store.describe_pool(&request.name));
        self.answer(CreatePoolResponse { pool })
    }

    async fn import_pool(
        &self,
        _request: Request<ImportPoolRequest>,
    ) -> Result<Response<ImportPoolResponse>, Status> {
        let detail = ErrorDetail::new(ErrorReason::NotAPool);
        Err(detail.into_status("memory holds no pool from before"))
    }

    async fn export_pool(
        &self,
        request: Request<ExportPoolRequest>,
    ) -> Result<Response<ExportPoolResponse>, Status> {
        let mut store = self.0.store();
        let name = store.pool_name(&request.get_ref().name)?;
        store.pools.remove(&name);
        store.volumes.retain(|(pool, _), _| *pool != name);
        Ok(Response::new(ExportPoolResponse {}))
    }
}

#[tonic::async_trait]
impl VolumeService for Service {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let volume = {
            let mut store = self.0.store();
            store.create(&request)?;
            store.volume(&request.pool, &request.name)?.describe()
        };
        self.answer(CreateVolumeResponse {
            volume: Some(volume),
        })
    }

    async fn get_volume(
        &self,
        request: Request<GetVolumeRequest>,
    ) -> Result<Response<GetVolumeResponse>, Status> {
        self.0.ignore(Ignored::Volumes).await;
        let request = request.into_inner();
        let mut store = self.0.store();
        let volume = store.volume(&request.pool, &request.name)?.describe();
        Ok(Response::new(GetVolumeResponse {
            volume: Some(volume),
        }))
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        let request = request.into_inner();
        let store = self.0.store();
        let all = store.volumes.values();
        let wanted = all
            .filter(|volume| request.pool.is_empty() || volume.pool == request.pool)
            .map(MemoryVolume::describe);
        let (volumes, next_page_token) =
            page(wanted.collect(), request.page_size, &request.page_token)?;
        Ok(Response::new(ListVolumesResponse {
            volumes,
            next_page_token,
        }))
    }

    async fn resize_volume(
        &self,
        request: Request<ResizeVolumeRequest>,
    ) -> Result<Response<ResizeVolumeResponse>, Status> {
        let request = request.into_inner();
        let mut store = self.0.store();
        let volume = store.volume(&request.pool, &request.name)?;
        if request.size_bytes < volume.size_bytes && !request.allow_shrink {
            let detail = ErrorDetail::new(ErrorReason::ShrinkNotAllowed).with_volume(request.name);
            return Err(detail.into_status("the volume would shrink"));
        }
        volume.resize(request.size_bytes);
        Ok(Response::new(ResizeVolumeResponse {
            volume: Some(volume.describe()),
        }))
    }

    async fn limit_volume(
        &self,
        request: Request<LimitVolumeRequest>,
    ) -> Result<Response<LimitVolumeResponse>, Status> {
        let request = request.into_inner();
        let mut store = self.0.store();
        let volume = store.volume(&request.pool, &request.name)?;
        let limits = &mut volume.limits;
        limits.iops_max = request.iops_max.unwrap_or(limits.iops_max);
        limits.bandwidth_max_bytes = request
            .bandwidth_max_bytes
            .unwrap_or(limits.bandwidth_max_bytes);
        limits.burst_ms = request.burst_ms.unwrap_or(limits.burst_ms);
        Ok(Response::new(LimitVolumeResponse {
            volume: Some(volume.describe()),
        }))
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        self.0.store().delete(request.get_ref())?;
        self.answer(DeleteVolumeResponse {})
    }

    async fn list_extents(
        &self,
        request: Request<ListExtentsRequest>,
    ) -> Result<Response<ListExtentsResponse>, Status> {
        let request = request.into_inner();
        let mut store = self.0.store();
        let all = store.volume(&request.pool, &request.name)?.extents();
        let (extents, next_page_token) = page(all, request.page_size, &request.page_token)?;
        Ok(Response::new(ListExtentsResponse {
            extents,
            next_page_token,
        }))
    }
}
