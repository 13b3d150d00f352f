//! Calls about pools and volumes.

use tonic::Response;

use super::failure::{ClientError, Failure};
use super::retry::new_request_id;
use super::{Client, VolumeName};
use crate::v1::{
    CreatePoolRequest, CreateVolumeRequest, DeleteVolumeRequest, Durability, ExportPoolRequest,
    GetPoolRequest, GetVolumeRequest, ImportPoolRequest, LimitVolumeRequest, ListExtentsRequest,
    ListExtentsResponse, ListPoolsRequest, ListVolumesRequest, ListVolumesResponse, Pool,
    ResizeVolumeRequest, Volume, VolumeLimits,
};

/// A volume to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewVolume {
    /// Its pool and name.
    pub name: VolumeName,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// 512 or 4096; 0 means the server's choice.
    pub block_size_bytes: u32,
    /// The least durability of each write to it.
    pub durability: Durability,
    /// How much it may do.
    pub limits: VolumeLimits,
}

impl NewVolume {
    /// A volume with the server's choice of block size and durability, without limits.
    #[must_use]
    pub const fn new(name: VolumeName, size_bytes: u64) -> Self {
        Self {
            name,
            size_bytes,
            block_size_bytes: 0,
            durability: Durability::Unspecified,
            limits: NO_LIMITS,
        }
    }
}

const NO_LIMITS: VolumeLimits = VolumeLimits {
    iops_max: 0,
    bandwidth_max_bytes: 0,
    burst_ms: 0,
};

/// A change of a volume's limits: what is `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitChange {
    /// The most operations in a second, reads and writes together; 0: no limit.
    pub iops_max: Option<u64>,
    /// The most bytes in a second, read and written together; 0: no limit.
    pub bandwidth_max_bytes: Option<u64>,
    /// For how long what is not used is saved up, in milliseconds.
    pub burst_ms: Option<u32>,
}

/// Which extents to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentQuery {
    /// The volume.
    pub name: VolumeName,
    /// Where to start, in bytes.
    pub offset_bytes: u64,
    /// How far to go, in bytes; `None` means to the end.
    pub length_bytes: Option<u64>,
}

impl Client {
    /// All pools, sorted by name.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn list_pools(&self) -> Result<Vec<Pool>, ClientError> {
        let call = || async {
            let request = self.request(ListPoolsRequest {});
            self.pools().list_pools(request).await
        };
        Ok(self.options.retry.run(call).await?.into_inner().pools)
    }

    /// One pool; an empty name means the only one.
    ///
    /// # Errors
    /// When there is no such pool.
    pub async fn pool(&self, name: &str) -> Result<Pool, ClientError> {
        let call = || async {
            let name = name.to_owned();
            let request = self.request(GetPoolRequest { name });
            self.pools().get_pool(request).await
        };
        let answer = self.options.retry.run(call).await?.into_inner();
        present(answer.pool, "pool")
    }

    /// Makes a pool on `devices`. Safe to retry, and retried: it carries a request id.
    ///
    /// # Errors
    /// When a device cannot be used, or holds a pool and `overwrite` does not say otherwise.
    pub async fn create_pool(
        &self,
        name: &str,
        devices: &[String],
        overwrite: Overwrite,
    ) -> Result<Pool, ClientError> {
        let message = CreatePoolRequest {
            name: name.to_owned(),
            devices: devices.to_vec(),
            request_id: new_request_id(),
            allow_overwrite: overwrite == Overwrite::Allowed,
        };
        let call = || async {
            let request = self.request(message.clone());
            self.pools().create_pool(request).await
        };
        let answer = self.options.retry.run(call).await?.into_inner();
        present(answer.pool, "pool")
    }

    /// Takes the pool that `devices` hold into use. Not retried.
    ///
    /// # Errors
    /// When the devices hold no pool, not all of one, or a damaged one.
    pub async fn import_pool(&self, devices: &[String]) -> Result<Pool, ClientError> {
        let devices = devices.to_vec();
        let request = self.request(ImportPoolRequest { devices });
        let answer = self.pools().import_pool(request).await?.into_inner();
        present(answer.pool, "pool")
    }

    /// Lets go of a pool. Not retried.
    ///
    /// # Errors
    /// When there is no such pool, or it cannot be written back.
    pub async fn export_pool(&self, name: &str) -> Result<(), ClientError> {
        let name = name.to_owned();
        let request = self.request(ExportPoolRequest { name });
        self.pools().export_pool(request).await?;
        Ok(())
    }

    /// Makes a volume. Safe to retry, and retried: it carries a request id.
    ///
    /// # Errors
    /// When the name is taken or a field has no valid value.
    pub async fn create_volume(&self, volume: &NewVolume) -> Result<Volume, ClientError> {
        self.create_volume_as(volume, &new_request_id()).await
    }

    /// As [`Client::create_volume`], with the caller's own request id: the same id with the same
    /// contents gives the same answer, from whatever process it comes.
    ///
    /// # Errors
    /// As [`Client::create_volume`]; also when the id was used for something else.
    pub async fn create_volume_as(
        &self,
        volume: &NewVolume,
        request_id: &str,
    ) -> Result<Volume, ClientError> {
        let message = CreateVolumeRequest {
            pool: volume.name.pool.clone(),
            name: volume.name.volume.clone(),
            size_bytes: volume.size_bytes,
            block_size_bytes: volume.block_size_bytes,
            durability: volume.durability.into(),
            request_id: request_id.to_owned(),
            limits: Some(volume.limits),
        };
        let call = || async {
            let request = self.request(message.clone());
            self.volumes().create_volume(request).await
        };
        let answer = self.options.retry.run(call).await?.into_inner();
        present(answer.volume, "volume")
    }

    /// One volume.
    ///
    /// # Errors
    /// When there is no such volume.
    pub async fn volume(&self, name: &VolumeName) -> Result<Volume, ClientError> {
        let message = GetVolumeRequest {
            pool: name.pool.clone(),
            name: name.volume.clone(),
        };
        let call = || async {
            let request = self.request(message.clone());
            self.volumes().get_volume(request).await
        };
        let answer = self.options.retry.run(call).await?.into_inner();
        present(answer.volume, "volume")
    }

    /// One page of volumes; an empty pool means all pools, `page_size` 0 the server's choice.
    ///
    /// # Errors
    /// When there is no such pool, or the token is not one of this listing's.
    pub async fn list_volumes_page(
        &self,
        pool: &str,
        page_size: u32,
        page_token: &str,
    ) -> Result<ListVolumesResponse, ClientError> {
        let call = || async {
            let request = self.request(ListVolumesRequest {
                pool: pool.to_owned(),
                page_size,
                page_token: page_token.to_owned(),
            });
            self.volumes().list_volumes(request).await
        };
        self.options.retry.run(call).await.map(Response::into_inner)
    }

    /// All volumes of a pool, or of all pools when `pool` is empty, sorted by pool and name.
    ///
    /// # Errors
    /// When there is no such pool.
    pub async fn list_volumes(&self, pool: &str) -> Result<Vec<Volume>, ClientError> {
        let mut volumes = Vec::new();
        let mut token = String::new();
        loop {
            let page = self.list_volumes_page(pool, 0, &token).await?;
            let is_stuck = page.volumes.is_empty() && page.next_page_token == token;
            volumes.extend(page.volumes);
            token = page.next_page_token;
            if token.is_empty() {
                return Ok(volumes);
            }
            if is_stuck {
                return Err(Failure::protocol("the listing of volumes does not advance").into());
            }
        }
    }

    /// Sets a volume's size. Safe to retry, and retried: it sets a value.
    ///
    /// # Errors
    /// When there is no such volume, the size is not valid, or it is smaller and `shrink` does
    /// not allow that.
    pub async fn resize_volume(
        &self,
        name: &VolumeName,
        size_bytes: u64,
        shrink: Shrink,
    ) -> Result<Volume, ClientError> {
        let message = ResizeVolumeRequest {
            pool: name.pool.clone(),
            name: name.volume.clone(),
            size_bytes,
            allow_shrink: shrink == Shrink::Allowed,
        };
        let call = || async {
            let request = self.request(message.clone());
            self.volumes().resize_volume(request).await
        };
        let answer = self.options.retry.run(call).await?.into_inner();
        present(answer.volume, "volume")
    }

    /// Changes how much a volume may do; what is `None` in `change` stays as it is. Safe to retry,
    /// and retried: it sets values.
    ///
    /// # Errors
    /// When there is no such volume or a value is too high.
    pub async fn limit_volume(
        &self,
        name: &VolumeName,
        change: LimitChange,
    ) -> Result<Volume, ClientError> {
        let message = LimitVolumeRequest {
            pool: name.pool.clone(),
            name: name.volume.clone(),
            iops_max: change.iops_max,
            bandwidth_max_bytes: change.bandwidth_max_bytes,
            burst_ms: change.burst_ms,
        };
        let call = || async {
            let request = self.request(message.clone());
            self.volumes().limit_volume(request).await
        };
        let answer = self.options.retry.run(call).await?.into_inner();
        present(answer.volume, "volume")
    }

    /// Deletes a volume. Safe to retry, and retried: it carries a request id.
    ///
    /// # Errors
    /// When there is no such volume.
    pub async fn delete_volume(&self, name: &VolumeName) -> Result<(), ClientError> {
        self.delete_volume_as(name, &new_request_id()).await
    }

    /// As [`Client::delete_volume`], with the caller's own request id.
    ///
    /// # Errors
    /// As [`Client::delete_volume`]; also when the id was used for something else.
    pub async fn delete_volume_as(
        &self,
        name: &VolumeName,
        request_id: &str,
    ) -> Result<(), ClientError> {
        let message = DeleteVolumeRequest {
            pool: name.pool.clone(),
            name: name.volume.clone(),
            request_id: request_id.to_owned(),
        };
        let call = || async {
            let request = self.request(message.clone());
            self.volumes().delete_volume(request).await
        };
        self.options.retry.run(call).await?;
        Ok(())
    }

    /// One page of a volume's extents; `page_size` 0 means the server's choice.
    ///
    /// # Errors
    /// When there is no such volume, the range lies outside it, or the token is not one of this
    /// listing's.
    pub async fn list_extents_page(
        &self,
        query: &ExtentQuery,
        page_size: u32,
        page_token: &str,
    ) -> Result<ListExtentsResponse, ClientError> {
        let call = || async {
            let request = self.request(ListExtentsRequest {
                pool: query.name.pool.clone(),
                name: query.name.volume.clone(),
                offset_bytes: query.offset_bytes,
                length_bytes: query.length_bytes,
                page_size,
                page_token: page_token.to_owned(),
            });
            self.volumes().list_extents(request).await
        };
        self.options.retry.run(call).await.map(Response::into_inner)
    }
}

/// Whether making a pool may destroy one that is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overwrite {
    /// A pool that is there stays.
    #[default]
    Refused,
    /// A pool that is there is destroyed.
    Allowed,
}

/// Whether a resize may cut data off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shrink {
    /// A smaller size is an error.
    #[default]
    Refused,
    /// A smaller size destroys the data beyond it.
    Allowed,
}

/// The object that every answer of its kind holds.
fn present<T>(object: Option<T>, what: &str) -> Result<T, ClientError> {
    object.ok_or_else(|| Failure::protocol(format!("the server's answer lacks the {what}")).into())
}
