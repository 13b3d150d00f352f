//! A stream of chunks into a range of a volume.

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use super::failure::{ClientError, Failure};
use crate::v1::block_service_client::BlockServiceClient;
use crate::v1::write_stream_request::Content;
use crate::v1::{WriteStreamOpen, WriteStreamRequest, WriteStreamResponse};

/// How many chunks wait to be sent.
const QUEUE_LENGTH: usize = 4;

/// Writes a range from chunks, each starting where the one before ended.
///
/// Waits when the server is slower than the caller. Dropped before [`VolumeWriter::finish`], it
/// cancels the call: the server has then written some of the chunks, and nobody was promised
/// anything.
#[derive(Debug)]
pub struct VolumeWriter {
    sender: mpsc::Sender<Content>,
    /// Until its outcome was taken.
    call: Option<JoinHandle<Result<WriteStreamResponse, ClientError>>>,
    chunk_max_bytes: usize,
}

impl VolumeWriter {
    pub(crate) fn open(
        mut client: BlockServiceClient<Channel>,
        open: WriteStreamOpen,
        chunk_max_bytes: usize,
    ) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE_LENGTH);
        let contents = tokio_stream::once(Content::Open(open)).chain(ReceiverStream::new(receiver));
        let messages = contents.map(|content| WriteStreamRequest {
            content: Some(content),
        });
        let call = tokio::spawn(async move {
            let answer = client.write_stream(messages).await?;
            Ok(answer.into_inner())
        });
        Self {
            sender,
            call: Some(call),
            chunk_max_bytes,
        }
    }

    /// Writes `data`, in several messages when it is longer than the server's limit.
    ///
    /// # Errors
    /// When the server has ended the call: its reason.
    pub async fn data(&mut self, mut data: Bytes) -> Result<(), ClientError> {
        while data.len() > self.chunk_max_bytes {
            let part = data.split_to(self.chunk_max_bytes);
            self.send(Content::Data(part)).await?;
        }
        self.send(Content::Data(data)).await
    }

    /// Makes the next `length_bytes` read as zeros.
    ///
    /// # Errors
    /// As [`VolumeWriter::data`].
    pub async fn zeroes(&mut self, length_bytes: u64) -> Result<(), ClientError> {
        self.send(Content::ZeroesBytes(length_bytes)).await
    }

    /// Gives up the content of the next `length_bytes`.
    ///
    /// # Errors
    /// As [`VolumeWriter::data`].
    pub async fn discard(&mut self, length_bytes: u64) -> Result<(), ClientError> {
        self.send(Content::DiscardBytes(length_bytes)).await
    }

    /// Ends the range and waits until all of it is as durable as was asked for.
    ///
    /// # Errors
    /// When any of it could not be written or made durable.
    pub async fn finish(mut self) -> Result<WriteStreamResponse, ClientError> {
        let call = self.call.take().ok_or_else(ended_before)?;
        // With its only sender gone, the stream of messages ends.
        drop(self);
        flatten(call.await)
    }

    /// Queues a message, unless the call ends first: then the server has failed it, or broken
    /// the protocol.
    async fn send(&mut self, content: Content) -> Result<(), ClientError> {
        let call = self.call.as_mut().ok_or_else(ended_before)?;
        let outcome = tokio::select! {
            biased;
            outcome = call => outcome,
            Ok(()) = self.sender.send(content) => return Ok(()),
        };
        self.call = None;
        match flatten(outcome) {
            Ok(_) => Err(Failure::protocol("the server answered before the last chunk").into()),
            Err(error) => Err(error),
        }
    }
}

fn ended_before() -> Failure {
    Failure::connection_lost("the call has failed before")
}

fn flatten(
    outcome: Result<Result<WriteStreamResponse, ClientError>, JoinError>,
) -> Result<WriteStreamResponse, ClientError> {
    outcome.unwrap_or_else(|_| Err(Failure::connection_lost("the call was cancelled").into()))
}

impl Drop for VolumeWriter {
    fn drop(&mut self) {
        if let Some(call) = &self.call {
            call.abort();
        }
    }
}
