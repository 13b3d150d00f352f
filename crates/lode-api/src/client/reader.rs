//! A range of a volume as a stream of chunks.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio_stream::Stream;
use tonic::Streaming;
use tonic::transport::Channel;

use super::VolumeName;
use super::failure::{ClientError, Failure};
use crate::v1::block_service_client::BlockServiceClient;
use crate::v1::read_stream_response::Content;
use crate::v1::{ReadStreamRequest, ReadStreamResponse};

/// The chunks of a streamed read, in ascending order without a gap.
///
/// When the range's length was given, the stream ends with an error unless exactly that much
/// came. The first error is the last item.
#[derive(Debug)]
pub struct VolumeReader {
    chunks: Streaming<ReadStreamResponse>,
    position_bytes: u64,
    end_bytes: Option<u64>,
    is_done: bool,
}

/// A part of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Where it starts in the volume, in bytes.
    pub offset_bytes: u64,
    /// What it holds.
    pub content: ChunkContent,
}

/// What a part of a volume holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkContent {
    /// These bytes.
    Data(Bytes),
    /// So many zero bytes, which were not sent.
    Zeroes(u64),
}

impl VolumeReader {
    pub(crate) async fn open(
        mut client: BlockServiceClient<Channel>,
        name: &VolumeName,
        offset_bytes: u64,
        length_bytes: Option<u64>,
    ) -> Result<Self, ClientError> {
        let request = ReadStreamRequest {
            pool: name.pool.clone(),
            volume: name.volume.clone(),
            offset_bytes,
            length_bytes,
        };
        Ok(Self {
            chunks: client.read_stream(request).await?.into_inner(),
            position_bytes: offset_bytes,
            end_bytes: length_bytes.and_then(|length| offset_bytes.checked_add(length)),
            is_done: false,
        })
    }

    /// The next chunk; `None` after the last.
    ///
    /// # Errors
    /// When the range cannot be read, the server broke the protocol, or the connection broke.
    pub async fn next_chunk(&mut self) -> Result<Option<Chunk>, ClientError> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context))
            .await
            .transpose()
    }

    fn advance(&mut self, response: ReadStreamResponse) -> Result<Chunk, Failure> {
        let (content, length) = match response.content {
            Some(Content::Data(data)) => {
                let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
                (ChunkContent::Data(data), length)
            }
            Some(Content::ZeroesBytes(length)) => (ChunkContent::Zeroes(length), length),
            None => (ChunkContent::Zeroes(0), 0),
        };
        let offset_bytes = self.position_bytes;
        let end = offset_bytes.checked_add(length).filter(|_| length > 0);
        match end {
            Some(end) if self.end_bytes.is_none_or(|limit| end <= limit) => {
                self.position_bytes = end;
                Ok(Chunk {
                    offset_bytes,
                    content,
                })
            }
            _ => Err(Failure::protocol(
                "the server sent an empty or oversized chunk",
            )),
        }
    }

    fn finish(&self) -> Option<Result<Chunk, ClientError>> {
        let is_short = self.end_bytes.is_some_and(|end| end != self.position_bytes);
        is_short.then(|| Err(Failure::protocol("the server ended the range early").into()))
    }
}

impl Stream for VolumeReader {
    type Item = Result<Chunk, ClientError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.is_done {
            return Poll::Ready(None);
        }
        let item = match ready!(Pin::new(&mut this.chunks).poll_next(context)) {
            Some(Ok(response)) => Some(this.advance(response).map_err(ClientError::from)),
            Some(Err(status)) => Some(Err(status.into())),
            None => {
                this.is_done = true;
                this.finish()
            }
        };
        this.is_done |= matches!(item, Some(Err(_)));
        Poll::Ready(item)
    }
}
