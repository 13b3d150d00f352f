//! The client library.
//!
//! Owns: [`Client`], a connection to one server with typed calls; [`IoSession`], many requests in
//! flight on one volume; [`VolumeReader`] and [`VolumeWriter`], which move whole images.
//!
//! Everything runs on the caller's tokio runtime, of either flavour; nothing blocks a thread.
//! Control calls go over one connection and unary block calls over another, and each session,
//! reader and writer has a connection of its own: a server spreads its clients over its cores by
//! connection, and large frames do not delay small calls.
//!
//! Invariants:
//! 1. An Io session never has more requests outstanding than the server granted credits.
//! 2. Every future that a session hands out completes: with its answer, or with the failure that
//!    ended the stream.
//! 3. A call is repeated only when that is safe: it changes nothing, sets a value, or carries a
//!    request id; and at most [`RetryPolicy::attempts_max`] times.

mod block;
mod connection;
mod control;
mod failure;
mod reader;
mod retry;
mod session;
mod stats;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use tonic::transport::Channel;

pub use control::{ExtentQuery, LimitChange, NewVolume, Overwrite, Shrink};
pub use failure::{ClientError, Failure};
pub use reader::{Chunk, ChunkContent, VolumeReader};
pub use retry::RetryPolicy;
pub use session::{IoOptions, IoSession, Wait};
pub use stats::StatsWatch;
pub use writer::VolumeWriter;

use crate::limits::MESSAGE_LENGTH_MAX_BYTES;
use crate::v1::info_service_client::InfoServiceClient;
use crate::v1::pool_service_client::PoolServiceClient;
use crate::v1::volume_service_client::VolumeServiceClient;
use crate::v1::{GetInfoRequest, GetInfoResponse, Limits};
use connection::Address;

/// A client of one server. Clones are cheap and share their connections.
///
/// ```no_run
/// use bytes::Bytes;
/// use lode_api::client::{Client, IoOptions, NewVolume, VolumeName};
/// use lode_api::v1::Durability;
///
/// # async fn example() -> Result<(), lode_api::client::ClientError> {
/// let client = Client::connect("http://127.0.0.1:7070").await?;
/// let scratch = VolumeName::new("", "scratch");
/// client.create_volume(&NewVolume::new(scratch.clone(), 1 << 30)).await?;
///
/// let session = client.open_io(&scratch, IoOptions::default()).await?;
/// let data = Bytes::from(vec![7; 4096]);
/// session.write(0, data.clone(), Durability::Data).await?;
/// assert_eq!(session.read(0, 4096).await?, data);
/// session.close().await;
///
/// client.delete_volume(&scratch).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    address: Address,
    control: Channel,
    data: Channel,
    options: ClientOptions,
    info: Arc<GetInfoResponse>,
    limits: Arc<Limits>,
}

/// How a client behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// How long a unary call or the start of a stream may take, each try by itself. What follows
    /// on a stream has no deadline, but a server that gives no sign of life for half a minute
    /// breaks the connection.
    pub call_timeout: Duration,
    /// How repeatable calls are tried again.
    pub retry: RetryPolicy,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            call_timeout: Duration::from_secs(60),
            retry: RetryPolicy::default(),
        }
    }
}

/// The name of a volume: its pool and its own name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VolumeName {
    /// The pool; empty means the only one.
    pub pool: String,
    /// The volume's name in it.
    pub volume: String,
}

impl VolumeName {
    /// The volume `volume` of `pool`; an empty pool means the only one.
    pub fn new(pool: impl Into<String>, volume: impl Into<String>) -> Self {
        Self {
            pool: pool.into(),
            volume: volume.into(),
        }
    }
}

impl Client {
    /// Connects to `http://HOST:PORT` or `unix:PATH` and learns the server's limits.
    ///
    /// # Errors
    /// When the address is no address, nobody listens there, or the server does not answer as a
    /// Lodestore server.
    pub async fn connect(address: &str) -> Result<Self, ClientError> {
        Self::connect_with(address, ClientOptions::default()).await
    }

    /// As [`Client::connect`], with options.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect_with(address: &str, options: ClientOptions) -> Result<Self, ClientError> {
        let address = Address::parse(address, options.connect_timeout)?;
        let control = address.connect().await?;
        let info = fetch_info(&control, &options).await?;
        let limits = info
            .limits
            .clone()
            .ok_or_else(|| Failure::protocol("the server tells no limits"))?;
        Ok(Self {
            data: address.connect_lazily(),
            address,
            control,
            options,
            info: Arc::new(info),
            limits: Arc::new(limits),
        })
    }

    /// The server's limits, as it told them when this client connected.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The server's description, as it told it when this client connected.
    #[must_use]
    pub fn info_at_connect(&self) -> &GetInfoResponse {
        &self.info
    }

    /// The server's description now.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn info(&self) -> Result<GetInfoResponse, ClientError> {
        fetch_info(&self.control, &self.options).await
    }

    fn pools(&self) -> PoolServiceClient<Channel> {
        PoolServiceClient::new(self.control.clone()).max_decoding_message_size(self.message_max())
    }

    fn volumes(&self) -> VolumeServiceClient<Channel> {
        VolumeServiceClient::new(self.control.clone()).max_decoding_message_size(self.message_max())
    }

    /// The largest message that is taken: the server's bound, and at least this build's own.
    fn message_max(&self) -> usize {
        usize::try_from(self.limits.message_length_max_bytes)
            .unwrap_or(usize::MAX)
            .max(MESSAGE_LENGTH_MAX_BYTES)
    }

    /// A request with this client's deadline.
    fn request<T>(&self, message: T) -> tonic::Request<T> {
        with_deadline(message, &self.options)
    }
}

async fn fetch_info(
    control: &Channel,
    options: &ClientOptions,
) -> Result<GetInfoResponse, ClientError> {
    let fetch = || async {
        InfoServiceClient::new(control.clone())
            .get_info(with_deadline(GetInfoRequest {}, options))
            .await
            .map(tonic::Response::into_inner)
    };
    options.retry.run(fetch).await
}

fn with_deadline<T>(message: T, options: &ClientOptions) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(options.call_timeout);
    request
}
