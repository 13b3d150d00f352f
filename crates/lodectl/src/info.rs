//! `lodectl info`.

use std::time::Duration;

use anyhow::Result;
use lode_api::Client;
use lode_api::v1::GetInfoResponse;
use serde::Serialize;

use crate::output::{Output, lines};
use crate::size::Human;

pub(crate) async fn show(client: &Client, output: &Output) -> Result<()> {
    let info = client.info().await?;
    output.show(&InfoView::from(info), InfoView::lines)
}

#[derive(Serialize)]
struct InfoView {
    version: String,
    build: String,
    uptime_ms: u64,
    core_count: u32,
    emulated_device_count: u32,
    real_device_count: u32,
    limits: LimitsView,
}

#[derive(Serialize)]
struct LimitsView {
    io_length_max_bytes: u64,
    range_length_max_bytes: u64,
    message_length_max_bytes: u64,
    stream_credits_max: u32,
    name_length_max_bytes: u32,
    request_id_length_max_bytes: u32,
    volume_size_max_bytes: u64,
    block_sizes_bytes: Vec<u32>,
    pool_devices_max: u32,
    page_size_max: u32,
}

impl From<GetInfoResponse> for InfoView {
    fn from(info: GetInfoResponse) -> Self {
        let limits = info.limits.unwrap_or_default();
        Self {
            version: info.version,
            build: info.build,
            uptime_ms: info.uptime_ms,
            core_count: info.core_count,
            emulated_device_count: info.emulated_device_count,
            real_device_count: info.real_device_count,
            limits: LimitsView {
                io_length_max_bytes: limits.io_length_max_bytes,
                range_length_max_bytes: limits.range_length_max_bytes,
                message_length_max_bytes: limits.message_length_max_bytes,
                stream_credits_max: limits.stream_credits_max,
                name_length_max_bytes: limits.name_length_max_bytes,
                request_id_length_max_bytes: limits.request_id_length_max_bytes,
                volume_size_max_bytes: limits.volume_size_max_bytes,
                block_sizes_bytes: limits.block_sizes_bytes,
                pool_devices_max: limits.pool_devices_max,
                page_size_max: limits.page_size_max,
            },
        }
    }
}

impl InfoView {
    fn lines(&self) -> String {
        let uptime = Duration::from_secs(self.uptime_ms / 1000);
        let limits = &self.limits;
        let sizes = limits.block_sizes_bytes.iter().map(u32::to_string);
        let names = limits.name_length_max_bytes;
        lines(&[
            ("version", format!("{} ({})", self.version, self.build)),
            ("uptime", humantime::format_duration(uptime).to_string()),
            ("cores", self.core_count.to_string()),
            (
                "devices",
                format!(
                    "{} real, {} emulated",
                    self.real_device_count, self.emulated_device_count
                ),
            ),
            ("longest I/O", Human(limits.io_length_max_bytes).to_string()),
            (
                "longest discard",
                Human(limits.range_length_max_bytes).to_string(),
            ),
            (
                "largest volume",
                Human(limits.volume_size_max_bytes).to_string(),
            ),
            ("block sizes", sizes.collect::<Vec<_>>().join(", ")),
            ("stream credits", limits.stream_credits_max.to_string()),
            ("longest name", format!("{names} bytes")),
        ])
    }
}
