//! Control requests as calls: ask the shard through the gateway and expect the fitting reply.

use lode_engine::{ControlReply, ControlRequest, PoolIndex, PoolStatus, VolumeName, VolumeStatus};
use lode_extent::VolumeInfo;
use lode_reactor::gateway;
use lode_units::limits::NAME_LENGTH_MAX_BYTES;

use crate::failure::Failure;

/// Asks the shard of this core.
pub(crate) async fn control(request: ControlRequest) -> Result<ControlReply, Failure> {
    Ok(gateway::control(request)?.await?)
}

/// Every pool, in the order of their names.
pub(crate) async fn pools() -> Result<Vec<PoolStatus>, Failure> {
    match control(ControlRequest::ListPools).await? {
        ControlReply::Pools(mut pools) => {
            pools.sort_by(|left, right| left.name.cmp(&right.name));
            Ok(pools)
        }
        reply => Err(unexpected(&reply)),
    }
}

/// The names of a pool's devices in their order; empty when the pool is gone.
pub(crate) async fn device_names(pool: PoolIndex) -> Vec<String> {
    let pools = pools().await.unwrap_or_default();
    let pool = pools.into_iter().find(|status| status.index == pool);
    let devices = pool.map(|status| status.devices).unwrap_or_default();
    devices.into_iter().map(|device| device.name).collect()
}

/// Opens the volume of that name.
pub(crate) async fn volume(pool: &str, volume: &str) -> Result<VolumeStatus, Failure> {
    check_name("volume", volume)?;
    let volume = VolumeName {
        pool: pool.to_owned(),
        volume: volume.to_owned(),
    };
    as_volume(control(ControlRequest::OpenVolume { volume }).await?)
}

/// Refuses a name that no volume can have, so that it is not reported as missing.
pub(crate) fn check_name(field: &str, name: &str) -> Result<(), Failure> {
    let message = match name.len() {
        0 => format!("{field} is empty"),
        length if length > NAME_LENGTH_MAX_BYTES => {
            format!("{field} has {length} bytes; names have at most {NAME_LENGTH_MAX_BYTES}")
        }
        _ if name.chars().any(char::is_control) => {
            format!("{field} holds a control character")
        }
        _ => return Ok(()),
    };
    Err(Failure::invalid_name(field, message))
}

/// The reply of a request that is answered by a volume.
pub(crate) fn as_volume(reply: ControlReply) -> Result<VolumeStatus, Failure> {
    match reply {
        ControlReply::Volume(status) => Ok(status),
        reply => Err(unexpected(&reply)),
    }
}

/// The reply of a request that is answered by a list of volumes.
pub(crate) fn as_volumes(reply: ControlReply) -> Result<Vec<VolumeInfo>, Failure> {
    match reply {
        ControlReply::Volumes(volumes) => Ok(volumes),
        reply => Err(unexpected(&reply)),
    }
}

/// A reply that does not belong to its request.
pub(crate) fn unexpected(reply: &ControlReply) -> Failure {
    tracing::error!(?reply, "a control request had a reply of another kind");
    Failure::new(
        lode_api::v1::ErrorReason::Internal,
        "the shard gave a reply of another kind",
    )
}
