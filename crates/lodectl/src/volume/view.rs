//! Volumes and extents as they are shown.

use std::time::{Duration, UNIX_EPOCH};

use lode_api::v1::{Durability, Extent, ExtentKind, Volume, VolumeLimits};
use serde::Serialize;

use crate::output::{lines, table};
use crate::size::Human;
use crate::volume::limits::shown;

#[derive(Serialize)]
pub(super) struct VolumeView {
    pool: String,
    name: String,
    id: u64,
    size_bytes: u64,
    block_size_bytes: u32,
    durability: &'static str,
    allocated_bytes: u64,
    created_unix_seconds: u64,
    /// 0: no limit.
    iops_max: u64,
    bandwidth_max_bytes: u64,
    burst_ms: u32,
}

#[derive(Serialize)]
pub(super) struct DeletedView {
    pub(super) deleted: String,
}

impl DeletedView {
    pub(super) fn line(&self) -> String {
        format!("volume {:?} is deleted", self.deleted)
    }
}

impl From<Volume> for VolumeView {
    fn from(volume: Volume) -> Self {
        let limits = volume.limits.unwrap_or_default();
        Self {
            iops_max: limits.iops_max,
            bandwidth_max_bytes: limits.bandwidth_max_bytes,
            burst_ms: limits.burst_ms,
            durability: durability_name(volume.durability()),
            pool: volume.pool,
            name: volume.name,
            id: volume.id,
            size_bytes: volume.size_bytes,
            block_size_bytes: volume.block_size_bytes,
            allocated_bytes: volume.allocated_bytes,
            created_unix_seconds: volume.created_unix_seconds,
        }
    }
}

impl VolumeView {
    fn limits(&self) -> String {
        shown(&VolumeLimits {
            iops_max: self.iops_max,
            bandwidth_max_bytes: self.bandwidth_max_bytes,
            burst_ms: self.burst_ms,
        })
    }

    pub(super) fn lines(&self) -> String {
        let size = Human(self.size_bytes);
        let created = UNIX_EPOCH.checked_add(Duration::from_secs(self.created_unix_seconds));
        let created = created.map_or("-".to_owned(), |moment| {
            humantime::format_rfc3339_seconds(moment).to_string()
        });
        lines(&[
            ("name", self.name.clone()),
            ("pool", self.pool.clone()),
            ("id", self.id.to_string()),
            ("size", format!("{size} ({} bytes)", self.size_bytes)),
            ("allocated", Human(self.allocated_bytes).to_string()),
            ("block size", self.block_size_bytes.to_string()),
            ("durability", self.durability.to_owned()),
            ("limits", self.limits()),
            ("created", created),
        ])
    }
}

pub(super) fn list(volumes: &[VolumeView]) -> String {
    let row = |volume: &VolumeView| {
        vec![
            volume.pool.clone(),
            volume.name.clone(),
            Human(volume.size_bytes).to_string(),
            Human(volume.allocated_bytes).to_string(),
            volume.block_size_bytes.to_string(),
            volume.durability.to_owned(),
            volume.limits(),
        ]
    };
    table(
        &[
            "pool",
            "name",
            "size",
            "allocated",
            "block",
            "durability",
            "limits",
        ],
        volumes.iter().map(row).collect(),
    )
}

#[derive(Serialize)]
pub(super) struct ExtentView {
    offset_bytes: u64,
    length_bytes: u64,
    kind: &'static str,
}

impl From<Extent> for ExtentView {
    fn from(extent: Extent) -> Self {
        Self {
            kind: match extent.kind() {
                ExtentKind::Unspecified => "unknown",
                ExtentKind::Hole => "hole",
                ExtentKind::Unwritten => "unwritten",
                ExtentKind::Written => "written",
            },
            offset_bytes: extent.offset_bytes,
            length_bytes: extent.length_bytes,
        }
    }
}

pub(super) fn extents(extents: &[ExtentView]) -> String {
    let row = |extent: &ExtentView| {
        vec![
            extent.offset_bytes.to_string(),
            extent.length_bytes.to_string(),
            extent.kind.to_owned(),
        ]
    };
    table(
        &["offset", "length", "kind"],
        extents.iter().map(row).collect(),
    )
}

/// A level as it is shown.
pub(crate) const fn durability_name(level: Durability) -> &'static str {
    match level {
        Durability::Unspecified => "unknown",
        Durability::None => "none",
        Durability::Data => "data",
        Durability::Full => "full",
    }
}
