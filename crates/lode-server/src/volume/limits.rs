//! How much a volume may do, in the words of the API.

use lode_api::v1::{LimitVolumeRequest, Volume, VolumeLimits as WireLimits};
use lode_engine::{ControlRequest, LimitChange, VolumeName};
use lode_extent::VolumeLimits;

use super::describe;
use crate::failure::Failure;
use crate::open;

/// Sets the limits that `request` names.
pub(super) async fn change(request: LimitVolumeRequest) -> Result<Volume, Failure> {
    open::check_name("name", &request.name)?;
    let limited = open::control(ControlRequest::LimitVolume {
        volume: VolumeName {
            pool: request.pool,
            volume: request.name,
        },
        change: LimitChange {
            iops_max: request.iops_max,
            bandwidth_max_bytes: request.bandwidth_max_bytes,
            burst_ms: request.burst_ms,
        },
    });
    let status = open::as_volume(limited.await?)?;
    Ok(describe(&status.pool, status.info))
}

/// The limits that a new volume is to have.
pub(super) fn requested(limits: Option<WireLimits>) -> VolumeLimits {
    limits.map_or_else(VolumeLimits::default, |limits| VolumeLimits {
        iops_max: limits.iops_max,
        bandwidth_max_bytes: limits.bandwidth_max_bytes,
        burst_ms: limits.burst_ms,
    })
}

/// Limits as the API shows them.
pub(crate) const fn shown(limits: VolumeLimits) -> WireLimits {
    WireLimits {
        iops_max: limits.iops_max,
        bandwidth_max_bytes: limits.bandwidth_max_bytes,
        burst_ms: limits.burst_ms,
    }
}
