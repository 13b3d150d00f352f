//! InfoService: what the server is and accepts.

use std::sync::Arc;

use lode_api::v1::info_service_server::InfoService;
use lode_api::v1::{GetInfoRequest, GetInfoResponse, Limits};
use lode_units::Clock;
use tonic::{Request, Response, Status};

use crate::open;
use crate::server::Shared;

/// Answers from the server's constants and the pools in use.
#[derive(Clone, Debug)]
pub(crate) struct Info {
    shared: Arc<Shared>,
}

impl Info {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

#[tonic::async_trait]
impl InfoService for Info {
    async fn get_info(
        &self,
        _request: Request<GetInfoRequest>,
    ) -> Result<Response<GetInfoResponse>, Status> {
        let shared = &self.shared;
        let uptime = shared
            .clock
            .now()
            .saturating_duration_since(shared.started_at);
        // A server that is up answers this, whatever its pools are doing.
        let pools = open::pools().await.unwrap_or_default();
        let devices = pools.iter().flat_map(|pool| &pool.devices);
        let (mut emulated, mut real) = (0, 0);
        for device in devices {
            if shared.pools.device(&device.name).is_emulated {
                emulated += 1;
            } else {
                real += 1;
            }
        }
        Ok(Response::new(GetInfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            build: BUILD.to_owned(),
            uptime_ms: u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX),
            limits: Some(Limits::of_this_build()),
            core_count: shared.core_count,
            emulated_device_count: emulated,
            real_device_count: real,
        }))
    }
}

const BUILD: &str = if cfg!(debug_assertions) {
    concat!("debug ", env!("CARGO_PKG_NAME"))
} else {
    concat!("release ", env!("CARGO_PKG_NAME"))
};
