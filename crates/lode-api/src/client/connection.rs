//! How a client reaches a server: addresses and tuned HTTP/2 connections.

use std::time::Duration;

use tonic::transport::{Channel, Endpoint};

use super::failure::ClientError;

/// What one stream may receive before it is read, in bytes. HTTP/2's own 64 KiB halve the rate
/// of bulk reads.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;

/// What all streams of a connection may receive before they are read, in bytes.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// The longest HTTP/2 frame that this side takes, in bytes: the server writes one frame with one
/// system call.
const FRAME_MAX_BYTES: u32 = 1 << 20;

/// How long a connection with a call on it may be silent before the server is asked for a sign
/// of life: streams have no deadline of their own.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// How long that sign may take before the connection counts as broken.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Where a server listens, ready to be connected to any number of times.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    text: String,
    endpoint: Endpoint,
}

impl Address {
    /// Understands `http://HOST:PORT` and `unix:PATH`.
    pub(crate) fn parse(text: &str, connect_timeout: Duration) -> Result<Self, ClientError> {
        let invalid = || ClientError::InvalidAddress {
            address: text.to_owned(),
        };
        let is_known = match text.split_once(':') {
            Some(("unix", path)) => !path.is_empty(),
            Some(("http", rest)) => rest.len() > 2 && rest.starts_with("//"),
            _ => false,
        };
        if !is_known {
            return Err(invalid());
        }
        let endpoint = Endpoint::from_shared(text.to_owned()).map_err(|_| invalid())?;
        Ok(Self {
            text: text.to_owned(),
            endpoint: endpoint
                .connect_timeout(connect_timeout)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_TIMEOUT)
                .initial_stream_window_size(STREAM_WINDOW_BYTES)
                .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
                .max_frame_size(FRAME_MAX_BYTES),
        })
    }

    /// A new connection.
    pub(crate) async fn connect(&self) -> Result<Channel, ClientError> {
        self.endpoint
            .connect()
            .await
            .map_err(|source| ClientError::Connect {
                address: self.text.clone(),
                source,
            })
    }

    /// A connection that is made when it is first used.
    pub(crate) fn connect_lazily(&self) -> Channel {
        self.endpoint.connect_lazy()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_and_unix_addresses_are_understood() {
        for good in [
            "http://127.0.0.1:7070",
            "http://[::1]:1",
            "unix:/run/lode.sock",
        ] {
            assert!(
                Address::parse(good, Duration::from_secs(1)).is_ok(),
                "{good}"
            );
        }
        for bad in [
            "",
            "127.0.0.1:7070",
            "https://h:1",
            "unix:",
            "http:/",
            "http://",
            "tcp://h:1",
        ] {
            assert!(
                Address::parse(bad, Duration::from_secs(1)).is_err(),
                "{bad}"
            );
        }
    }
}
