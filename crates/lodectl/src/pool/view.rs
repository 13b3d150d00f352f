//! Pools as they are shown.

use lode_api::v1::{Device, DeviceState, Pool, PoolState, WriteCache};
use serde::Serialize;

use crate::output::{lines, table};
use crate::size::Human;

#[derive(Serialize)]
pub(super) struct PoolView {
    name: String,
    uuid: String,
    state: &'static str,
    failure: String,
    capacity_bytes: u64,
    allocated_bytes: u64,
    metadata_bytes: u64,
    reserved_bytes: u64,
    free_bytes: u64,
    virtual_bytes: u64,
    volume_count: u64,
    superblock_copies_failed: u64,
    devices: Vec<DeviceView>,
}

#[derive(Serialize)]
struct DeviceView {
    name: String,
    uuid: String,
    state: &'static str,
    is_emulated: bool,
    size_bytes: u64,
    block_size_bytes: u32,
    write_cache: &'static str,
    supports_fua: bool,
    model: String,
    serial: String,
    firmware: String,
    health: Option<HealthView>,
}

#[derive(Serialize)]
struct HealthView {
    critical_warning: u32,
    temperature_celsius: Option<i32>,
    available_spare_percent: u32,
    percentage_used: u32,
    media_error_count: u64,
    unsafe_shutdown_count: u64,
    power_on_hours: u64,
}

#[derive(Serialize)]
pub(super) struct ExportedView {
    pub(super) exported: String,
}

impl ExportedView {
    pub(super) fn line(&self) -> String {
        format!("pool {:?} is exported", self.exported)
    }
}

impl From<Pool> for PoolView {
    fn from(pool: Pool) -> Self {
        Self {
            state: match pool.state() {
                PoolState::Unspecified => "unknown",
                PoolState::Starting => "starting",
                PoolState::Ready => "ready",
                PoolState::Exporting => "exporting",
                PoolState::Failed => "failed",
            },
            name: pool.name,
            uuid: pool.uuid,
            failure: pool.failure,
            capacity_bytes: pool.capacity_bytes,
            allocated_bytes: pool.allocated_bytes,
            metadata_bytes: pool.metadata_bytes,
            reserved_bytes: pool.reserved_bytes,
            free_bytes: pool.free_bytes,
            virtual_bytes: pool.virtual_bytes,
            volume_count: pool.volume_count,
            superblock_copies_failed: pool.superblock_copies_failed,
            devices: pool.devices.into_iter().map(DeviceView::from).collect(),
        }
    }
}

impl From<Device> for DeviceView {
    fn from(device: Device) -> Self {
        Self {
            state: match device.state() {
                DeviceState::Unspecified => "unknown",
                DeviceState::Online => "online",
                DeviceState::Resetting => "resetting",
                DeviceState::Gone => "gone",
            },
            write_cache: match device.write_cache() {
                WriteCache::Unspecified => "unknown",
                WriteCache::None => "none",
                WriteCache::Disabled => "disabled",
                WriteCache::Volatile => "volatile",
            },
            name: device.name,
            uuid: device.uuid,
            is_emulated: device.is_emulated,
            size_bytes: device.size_bytes,
            block_size_bytes: device.block_size_bytes,
            supports_fua: device.supports_fua,
            model: device.model,
            serial: device.serial,
            firmware: device.firmware,
            health: device.health.map(|health| HealthView {
                critical_warning: health.critical_warning,
                temperature_celsius: health.temperature_celsius,
                available_spare_percent: health.available_spare_percent,
                percentage_used: health.percentage_used,
                media_error_count: health.media_error_count,
                unsafe_shutdown_count: health.unsafe_shutdown_count,
                power_on_hours: health.power_on_hours,
            }),
        }
    }
}

impl PoolView {
    pub(super) fn lines(&self) -> String {
        let state = match self.failure.as_str() {
            "" => self.state.to_owned(),
            failure => format!("{}: {failure}", self.state),
        };
        let copies = match self.superblock_copies_failed {
            0 => "good".to_owned(),
            count => format!("{count} accesses failed, other copies served"),
        };
        let mut text = lines(&[
            ("name", self.name.clone()),
            ("uuid", self.uuid.clone()),
            ("state", state),
            ("capacity", Human(self.capacity_bytes).to_string()),
            ("allocated", Human(self.allocated_bytes).to_string()),
            ("metadata", Human(self.metadata_bytes).to_string()),
            ("reserved", Human(self.reserved_bytes).to_string()),
            ("free", Human(self.free_bytes).to_string()),
            ("virtual", Human(self.virtual_bytes).to_string()),
            ("volumes", self.volume_count.to_string()),
            ("superblocks", copies),
        ]);
        text.push('\n');
        text.push_str(&table(
            &[
                "device", "state", "kind", "size", "block", "cache", "fua", "health",
            ],
            self.devices.iter().map(DeviceView::row).collect(),
        ));
        text
    }
}

impl DeviceView {
    fn row(&self) -> Vec<String> {
        let kind = if self.is_emulated { "emulated" } else { "real" };
        let fua = if self.supports_fua { "yes" } else { "no" };
        let health = self
            .health
            .as_ref()
            .map_or("-".to_owned(), HealthView::word);
        vec![
            self.name.clone(),
            self.state.to_owned(),
            kind.to_owned(),
            Human(self.size_bytes).to_string(),
            self.block_size_bytes.to_string(),
            self.write_cache.to_owned(),
            fua.to_owned(),
            health,
        ]
    }
}

impl HealthView {
    fn word(&self) -> String {
        let temperature = self
            .temperature_celsius
            .map_or(String::new(), |degrees| format!(", {degrees} °C"));
        let state = match self.critical_warning {
            0 => "good".to_owned(),
            warning => format!("warning {warning:#04x}"),
        };
        let used = self.percentage_used;
        let errors = self.media_error_count;
        format!("{state}, {used} % used, {errors} media errors{temperature}")
    }
}

pub(super) fn list(pools: &[PoolView]) -> String {
    let row = |pool: &PoolView| {
        vec![
            pool.name.clone(),
            pool.state.to_owned(),
            Human(pool.capacity_bytes).to_string(),
            Human(pool.allocated_bytes).to_string(),
            Human(pool.free_bytes).to_string(),
            Human(pool.virtual_bytes).to_string(),
            pool.volume_count.to_string(),
            pool.devices.len().to_string(),
        ]
    };
    table(
        &[
            "name",
            "state",
            "capacity",
            "allocated",
            "free",
            "virtual",
            "volumes",
            "devices",
        ],
        pools.iter().map(row).collect(),
    )
}
