//! What the server is doing, as it happens.

use std::time::Duration;

use tonic::Streaming;

use super::Client;
use super::failure::ClientError;
use crate::v1::stats_service_client::StatsServiceClient;
use crate::v1::{WatchStatsRequest, WatchStatsResponse};

/// The figures of one interval after the other.
#[derive(Debug)]
pub struct StatsWatch {
    stream: Streaming<WatchStatsResponse>,
}

impl Client {
    /// Watches what the server does in each `interval`: 100 ms to a minute, and moved to the
    /// nearest of these otherwise.
    ///
    /// # Errors
    /// When the server cannot be reached, or is too old to tell.
    pub async fn watch_stats(&self, interval: Duration) -> Result<StatsWatch, ClientError> {
        let interval_ms = u32::try_from(interval.as_millis()).unwrap_or(u32::MAX);
        // 0 would leave the choice to the server.
        let request = WatchStatsRequest {
            interval_ms: interval_ms.max(1),
        };
        let mut client = StatsServiceClient::new(self.control.clone())
            .max_decoding_message_size(self.message_max());
        let stream = client.watch_stats(request).await?.into_inner();
        Ok(StatsWatch { stream })
    }
}

impl StatsWatch {
    /// The figures of the next interval, once it is over; `None` when the server stops.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn next(&mut self) -> Result<Option<WatchStatsResponse>, ClientError> {
        Ok(self.stream.message().await?)
    }
}
