//! VolumeService: volumes of the pools in use.

mod extents;
mod limits;
mod listing;

use lode_api::v1::volume_service_server::VolumeService;
use lode_api::v1::{
    CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse,
    Durability, ErrorReason, GetVolumeRequest, GetVolumeResponse, LimitVolumeRequest,
    LimitVolumeResponse, ListExtentsRequest, ListExtentsResponse, ListVolumesRequest,
    ListVolumesResponse, ResizeVolumeRequest, ResizeVolumeResponse, Volume,
};
use lode_block::Durability as BlockDurability;
use lode_engine::{ControlReply, ControlRequest, Shrink, VolumeName};
use lode_extent::{RequestId, SyncAttribute, VolumeInfo, VolumeSpec};
use lode_units::{BlockSize, WallClock};
use tonic::{Request, Response, Status};

use crate::failure::Failure;
use crate::open;

pub(crate) use extents::{ExtentWalk, Run, range};
pub(crate) use limits::shown as shown_limits;

/// Asks the shard of the core that the call arrived on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Volumes;

#[tonic::async_trait]
impl VolumeService for Volumes {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let name = request.name.clone();
        let volume = create(request)
            .await
            .map_err(|failure| failure.about("", &name))?;
        let volume = Some(volume);
        Ok(Response::new(CreateVolumeResponse { volume }))
    }

    async fn get_volume(
        &self,
        request: Request<GetVolumeRequest>,
    ) -> Result<Response<GetVolumeResponse>, Status> {
        let GetVolumeRequest { pool, name } = request.into_inner();
        let opened = open::volume(&pool, &name).await;
        let status = opened.map_err(|failure| failure.about(&pool, &name))?;
        let volume = Some(describe(&status.pool, status.info));
        Ok(Response::new(GetVolumeResponse { volume }))
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        Ok(Response::new(listing::page(&request.into_inner()).await?))
    }

    async fn resize_volume(
        &self,
        request: Request<ResizeVolumeRequest>,
    ) -> Result<Response<ResizeVolumeResponse>, Status> {
        let request = request.into_inner();
        let (pool, name) = (request.pool.clone(), request.name.clone());
        let volume = resize(request)
            .await
            .map_err(|failure| failure.about(&pool, &name))?;
        let volume = Some(volume);
        Ok(Response::new(ResizeVolumeResponse { volume }))
    }

    async fn limit_volume(
        &self,
        request: Request<LimitVolumeRequest>,
    ) -> Result<Response<LimitVolumeResponse>, Status> {
        let request = request.into_inner();
        let (pool, name) = (request.pool.clone(), request.name.clone());
        let volume = limits::change(request)
            .await
            .map_err(|failure| failure.about(&pool, &name))?;
        let volume = Some(volume);
        Ok(Response::new(LimitVolumeResponse { volume }))
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let request = request.into_inner();
        let (pool, name) = (request.pool.clone(), request.name.clone());
        delete(request)
            .await
            .map_err(|failure| failure.about(&pool, &name))?;
        Ok(Response::new(DeleteVolumeResponse {}))
    }

    async fn list_extents(
        &self,
        request: Request<ListExtentsRequest>,
    ) -> Result<Response<ListExtentsResponse>, Status> {
        let request = request.into_inner();
        let page = extents::page(&request).await;
        let page = page.map_err(|failure| failure.about(&request.pool, &request.name))?;
        Ok(Response::new(page))
    }
}

async fn create(request: CreateVolumeRequest) -> Result<Volume, Failure> {
    open::check_name("name", &request.name)?;
    let request_id = request_id(&request.request_id)?;
    let durability = requested_durability(request.durability)?;
    let spec = VolumeSpec {
        name: request.name,
        size_bytes: request.size_bytes,
        block_size: block_size(request.block_size_bytes)?,
        sync: match durability {
            BlockDurability::None => SyncAttribute::None,
            BlockDurability::Data => SyncAttribute::Data,
            BlockDurability::Full => SyncAttribute::Full,
        },
        limits: limits::requested(request.limits),
        created_unix_seconds: WallClock.unix_seconds(),
    };
    let created = open::control(ControlRequest::CreateVolume {
        pool: request.pool,
        spec,
        request: request_id,
    });
    let status = open::as_volume(created.await?)?;
    Ok(describe(&status.pool, status.info))
}

async fn resize(request: ResizeVolumeRequest) -> Result<Volume, Failure> {
    open::check_name("name", &request.name)?;
    let resized = open::control(ControlRequest::ResizeVolume {
        volume: VolumeName {
            pool: request.pool,
            volume: request.name,
        },
        size_bytes: request.size_bytes,
        shrink: if request.allow_shrink {
            Shrink::Allow
        } else {
            Shrink::Refuse
        },
    });
    let status = open::as_volume(resized.await?)?;
    Ok(describe(&status.pool, status.info))
}

async fn delete(request: DeleteVolumeRequest) -> Result<(), Failure> {
    open::check_name("name", &request.name)?;
    let deleted = open::control(ControlRequest::DeleteVolume {
        volume: VolumeName {
            pool: request.pool,
            volume: request.name,
        },
        request: request_id(&request.request_id)?,
    });
    match deleted.await? {
        ControlReply::Done => Ok(()),
        reply => Err(open::unexpected(&reply)),
    }
}

/// A volume as the API shows it.
fn describe(pool: &str, info: VolumeInfo) -> Volume {
    Volume {
        pool: pool.to_owned(),
        name: info.name,
        id: info.id.get(),
        size_bytes: info.size_bytes,
        block_size_bytes: info.block_size.bytes(),
        durability: Durability::from(durability_of(info.sync)).into(),
        allocated_bytes: info.allocated_bytes,
        created_unix_seconds: info.created_unix_seconds,
        limits: Some(limits::shown(info.limits)),
    }
}

/// The level of durability that a volume's attribute stands for.
pub(crate) const fn durability_of(sync: SyncAttribute) -> BlockDurability {
    match sync {
        SyncAttribute::None => BlockDurability::None,
        SyncAttribute::Data => BlockDurability::Data,
        SyncAttribute::Full => BlockDurability::Full,
    }
}

/// The level that a request asks for; the volume's own is added by the shard.
pub(crate) fn requested_durability(number: i32) -> Result<BlockDurability, Failure> {
    match Durability::requested(number, "durability") {
        Ok(level) => Ok(level.unwrap_or_default()),
        Err(detail) => {
            let message = format!("{number} is no level of durability");
            Err(Failure::of_detail(detail, message))
        }
    }
}

fn block_size(bytes: u32) -> Result<BlockSize, Failure> {
    match bytes {
        0 | 4096 => Ok(BlockSize::B4096),
        512 => Ok(BlockSize::B512),
        _ => {
            let message = format!("a volume's block size is 512 or 4096 bytes, not {bytes}");
            let failure = Failure::new(ErrorReason::InvalidBlockSize, message);
            Err(failure.with_field("block_size_bytes"))
        }
    }
}

fn request_id(text: &str) -> Result<Option<RequestId>, Failure> {
    if text.is_empty() {
        return Ok(None);
    }
    Ok(Some(RequestId::new(text)?))
}
