//! A sequence of chunks to a range: several writes in flight, one durability at the end.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use lode_api::v1::write_stream_request::Content;
use lode_api::v1::{
    Durability, ErrorReason, WriteStreamOpen, WriteStreamRequest, WriteStreamResponse,
};
use lode_block::Durability as Level;
use lode_engine::{DataOperation, IoError};
use lode_units::BlockSize;
use lode_units::limits::RANGE_LENGTH_MAX_BYTES;
use tonic::{Status, Streaming};

use crate::block::transfer::{Command, Target};
use crate::failure::Failure;
use crate::volume::requested_durability;

/// Writes all chunks of `inbound` and makes them as durable as the opening asks.
///
/// The first failure ends the call; writes under way then end before it is answered, so that
/// nothing is written after the client knows.
pub(super) async fn run(
    mut inbound: Streaming<WriteStreamRequest>,
) -> Result<WriteStreamResponse, Status> {
    let Some(WriteStreamRequest {
        content: Some(Content::Open(opening)),
    }) = inbound.message().await?
    else {
        return Err(not_open("the first message opens a volume").into());
    };
    let mut writer = Writer::open(opening).await?;
    let fed = writer.feed(&mut inbound).await;
    let settled = writer.settle().await;
    fed?;
    settled?;
    Ok(writer.finish().await?)
}

/// The writes under way of one streamed write.
struct Writer {
    target: Target,
    block_size: BlockSize,
    next_bytes: u64,
    durability: Level,
    /// The weakest level that a chunk has reached; `None` before the first.
    reached: Option<Level>,
    chunks: FuturesUnordered<BoxFuture<'static, Result<Level, Failure>>>,
    summary: WriteStreamResponse,
}

impl Writer {
    async fn open(opening: WriteStreamOpen) -> Result<Self, Failure> {
        let durability = requested_durability(opening.durability)?;
        let (target, status) = Target::open(&opening.pool, &opening.volume).await?;
        Ok(Self {
            target,
            block_size: status.info.block_size,
            next_bytes: opening.offset_bytes,
            durability,
            reached: None,
            chunks: FuturesUnordered::new(),
            summary: WriteStreamResponse::default(),
        })
    }

    /// Begins every chunk that comes.
    async fn feed(&mut self, inbound: &mut Streaming<WriteStreamRequest>) -> Result<(), Status> {
        loop {
            tokio::select! {
                biased;
                Some(ended) = self.chunks.next(), if !self.chunks.is_empty() => {
                    self.note(ended?);
                }
                request = inbound.message() => match request? {
                    Some(request) => self.take(request).await?,
                    None => return Ok(()),
                },
            }
        }
    }

    /// Begins what one message asks for.
    async fn take(&mut self, request: WriteStreamRequest) -> Result<(), Failure> {
        let begun = match request.content {
            Some(Content::Data(data)) => self.write(data).await,
            Some(Content::ZeroesBytes(length)) => {
                let summed = &mut self.summary.zeroes_bytes;
                *summed = summed.saturating_add(length);
                self.cover("zeroes_bytes", DataOperation::WriteZeroes, length)
                    .await
            }
            Some(Content::DiscardBytes(length)) => {
                let summed = &mut self.summary.discarded_bytes;
                *summed = summed.saturating_add(length);
                self.cover("discard_bytes", DataOperation::Discard, length)
                    .await
            }
            Some(Content::Open(_)) => Err(not_open("the stream has a volume already")),
            None => Err(Failure::invalid_field(
                "content",
                "the message holds nothing",
            )),
        };
        begun.map_err(|failure| failure.about(&self.target.pool, &self.target.volume))
    }

    async fn write(&mut self, data: Bytes) -> Result<(), Failure> {
        let command = Command::write(self.next_bytes, &data, Level::None)?;
        self.summary.data_bytes += command.length_bytes;
        self.begin(command, data).await
    }

    /// Begins the requests that cover `length_bytes`, each as long as one may be.
    async fn cover(
        &mut self,
        field: &str,
        operation: DataOperation,
        mut length_bytes: u64,
    ) -> Result<(), Failure> {
        if length_bytes == 0 {
            return Err(Failure::zero_length(field));
        }
        // Checked as a whole: a remainder must not be found out after the rest is gone.
        if !self.block_size.divides(length_bytes) {
            return Err(IoError::Unaligned {
                offset_bytes: self.next_bytes,
                length_bytes,
                block_size_bytes: self.block_size.bytes(),
            }
            .into());
        }
        while length_bytes > 0 {
            let part = length_bytes.min(RANGE_LENGTH_MAX_BYTES);
            let command = Command::range(operation, self.next_bytes, part, Level::None)?;
            self.begin(command, Bytes::new()).await?;
            length_bytes -= part;
        }
        Ok(())
    }

    /// Begins a request, after one under way has ended when there are as many as may be.
    async fn begin(&mut self, command: Command, data: Bytes) -> Result<(), Failure> {
        if self.chunks.len() >= CHUNKS_IN_FLIGHT_MAX
            && let Some(ended) = self.chunks.next().await
        {
            self.note(ended?);
        }
        let end = self.next_bytes.checked_add(command.length_bytes);
        self.next_bytes = end.ok_or(IoError::OutOfRange {
            offset_bytes: command.offset_bytes,
            length_bytes: command.length_bytes,
            size_bytes: u64::MAX,
        })?;
        let target = self.target.clone();
        self.chunks.push(Box::pin(async move {
            let answer = target.run(command, [data, Bytes::new()]).await?;
            Ok(answer.durability)
        }));
        Ok(())
    }

    fn note(&mut self, level: Level) {
        self.reached = Some(self.reached.map_or(level, |reached| reached.min(level)));
    }

    /// Waits for everything under way; the first failure is returned.
    async fn settle(&mut self) -> Result<(), Failure> {
        let mut first = Ok(());
        while let Some(ended) = self.chunks.next().await {
            match ended {
                Ok(level) => self.note(level),
                Err(failure) => first = first.and(Err(failure)),
            }
        }
        first
    }

    /// Makes what was written as durable as was asked.
    async fn finish(mut self) -> Result<WriteStreamResponse, Failure> {
        let mut level = self.reached.unwrap_or_default();
        if level < self.durability {
            let flushed = self
                .target
                .run(Command::flush(), [Bytes::new(), Bytes::new()]);
            level = level.max(flushed.await?.durability);
        }
        self.summary.durability = Durability::from(level).into();
        Ok(self.summary)
    }
}

fn not_open(message: &str) -> Failure {
    Failure::new(ErrorReason::StreamNotOpen, message).with_field("open")
}

/// How many chunks are written at once.
const CHUNKS_IN_FLIGHT_MAX: usize = 8;
