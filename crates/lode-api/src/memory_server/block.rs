//! Reads and writes of the memory server.

use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use super::volume::MemoryVolume;
use super::{Ignored, Service};
use crate::limits::IO_LENGTH_MAX_BYTES;
use crate::v1::block_service_server::BlockService;
use crate::v1::io_request::Operation;
use crate::v1::io_response::Result as Answer;
use crate::v1::{
    CompareAndWriteRequest, CompareAndWriteResponse, DiscardRequest, DiscardResponse, Durability,
    ErrorDetail, ErrorReason, ExtentKind, FlushRequest, FlushResponse, IoCompareAndWrite,
    IoDiscard, IoFlush, IoOpen, IoOpened, IoRequest, IoResponse, IoWrite, IoWriteZeroes,
    ReadRequest, ReadResponse, ReadStreamRequest, ReadStreamResponse, WriteRequest, WriteResponse,
    WriteStreamRequest, WriteStreamResponse, WriteZeroesRequest, WriteZeroesResponse,
    read_stream_response, write_stream_request,
};

type AnswerStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Service {
    /// Runs one operation on the volume.
    fn run(&self, pool: &str, name: &str, operation: Operation) -> Result<Answer, Status> {
        let mut store = self.0.store();
        let volume = store.volume(pool, name)?;
        let outcome = apply(volume, operation);
        outcome.map_err(|detail| {
            let message = format!("{} refused", detail.reason().as_str_name());
            detail.into_status(message)
        })
    }

    fn change(&self, pool: &str, name: &str, operation: Operation) -> Result<i32, Status> {
        match self.run(pool, name, operation)? {
            Answer::Durability(level) => Ok(level),
            _ => Err(Status::internal("a change answers with a level")),
        }
    }

    /// Serves the requests of one Io stream until the client ends it.
    async fn serve_io(
        self,
        open: IoOpen,
        mut requests: Streaming<IoRequest>,
        answers: mpsc::Sender<Result<IoResponse, Status>>,
    ) -> Option<()> {
        let mut batch = Vec::new();
        while let Ok(Some(request)) = requests.message().await {
            batch.push(request);
            let count = u32::try_from(batch.len()).unwrap_or(u32::MAX);
            self.0.outstanding_max.fetch_max(count, Ordering::Relaxed);
            if count < self.0.behaviour.io_batch {
                continue;
            }
            while let Some(request) = batch.pop() {
                let flush = Operation::Flush(IoFlush {});
                let operation = request.operation.unwrap_or(flush);
                let outcome = self.run(&open.pool, &open.volume, operation);
                answers
                    .send(Ok(response(request.tag, outcome)))
                    .await
                    .ok()?;
            }
        }
        Some(())
    }

    fn opened(&self, open: &IoOpen) -> Result<Answer, Status> {
        let most = self.0.behaviour.credits;
        let mut store = self.0.store();
        let volume = store.volume(&open.pool, &open.volume)?;
        Ok(Answer::Opened(IoOpened {
            credits: match open.credits {
                0 => most,
                wanted => wanted.min(most),
            },
            size_bytes: volume.size_bytes,
            block_size_bytes: volume.block_size_bytes,
            durability: volume.durability.into(),
        }))
    }

    /// Takes the chunks of a streamed write in until the client ends it.
    async fn take_chunks(
        &self,
        mut requests: Streaming<WriteStreamRequest>,
    ) -> Result<WriteStreamResponse, Status> {
        use write_stream_request::Content;
        let first = requests
            .message()
            .await?
            .and_then(|message| message.content);
        let Some(Content::Open(open)) = first else {
            return Err(ErrorDetail::new(ErrorReason::StreamNotOpen).into_status("open first"));
        };
        let mut position = open.offset_bytes;
        let mut summary = WriteStreamResponse::default();
        while let Some(message) = requests.message().await? {
            let mut store = self.0.store();
            let volume = store.volume(&open.pool, &open.volume)?;
            let (length, count, outcome) = match message.content {
                Some(Content::Data(data)) => {
                    let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
                    (
                        length,
                        &mut summary.data_bytes,
                        volume.write(position, &data),
                    )
                }
                Some(Content::ZeroesBytes(length)) => (
                    length,
                    &mut summary.zeroes_bytes,
                    volume.zero(position, length),
                ),
                Some(Content::DiscardBytes(length)) => (
                    length,
                    &mut summary.discarded_bytes,
                    volume.zero(position, length),
                ),
                Some(Content::Open(_)) | None => {
                    let detail = ErrorDetail::new(ErrorReason::StreamNotOpen);
                    return Err(detail.into_status("one open, then chunks"));
                }
            };
            outcome.map_err(|detail| detail.into_status("the chunk was refused"))?;
            *count += length;
            position += length;
            if summary.data_bytes > self.0.behaviour.capacity_bytes {
                return Err(ErrorDetail::new(ErrorReason::NoSpace).into_status("the pool is full"));
            }
        }
        summary.set_durability(open.durability().max(Durability::None));
        Ok(summary)
    }
}

fn response(tag: u64, outcome: Result<Answer, Status>) -> IoResponse {
    let result = outcome.unwrap_or_else(|status| {
        let detail = ErrorDetail::from_status(&status).unwrap_or_default();
        Answer::Error(detail.into_io_error(status.message()))
    });
    IoResponse {
        tag,
        result: Some(result),
    }
}

fn apply(volume: &mut MemoryVolume, operation: Operation) -> Result<Answer, Box<ErrorDetail>> {
    let asked = match operation {
        Operation::Read(read) => {
            let data = volume.read(read.offset_bytes, u64::from(read.length_bytes))?;
            return Ok(Answer::Data(data.into()));
        }
        Operation::Write(write) => {
            volume.write(write.offset_bytes, &write.data)?;
            write.durability()
        }
        Operation::Flush(_) => Durability::Full,
        Operation::Discard(discard) => {
            volume.zero(discard.offset_bytes, discard.length_bytes)?;
            discard.durability()
        }
        Operation::WriteZeroes(zeroes) => {
            volume.zero(zeroes.offset_bytes, zeroes.length_bytes)?;
            zeroes.durability()
        }
        Operation::CompareAndWrite(both) => {
            compare(volume, both.offset_bytes, &both.compare, &both.data)?;
            volume.write(both.offset_bytes, &both.data)?;
            both.durability()
        }
        Operation::Open(_) => return Err(Box::new(ErrorDetail::new(ErrorReason::StreamNotOpen))),
    };
    let level = asked.max(volume.durability).max(Durability::None);
    Ok(Answer::Durability(level.into()))
}

fn compare(
    volume: &MemoryVolume,
    offset: u64,
    expected: &[u8],
    data: &[u8],
) -> Result<(), Box<ErrorDetail>> {
    if expected.len() != data.len() {
        return Err(Box::new(ErrorDetail::new(ErrorReason::LengthMismatch)));
    }
    let length = u64::try_from(expected.len()).unwrap_or(u64::MAX);
    let held = volume.read(offset, length)?;
    match held
        .iter()
        .zip(expected)
        .position(|(held, wanted)| held != wanted)
    {
        None => Ok(()),
        Some(at) => {
            let at = u64::try_from(at).unwrap_or(u64::MAX);
            let detail = ErrorDetail::new(ErrorReason::CompareMismatch);
            Err(Box::new(detail.with_range(offset + at, length - at)))
        }
    }
}

/// The chunks of a range, extent by extent.
fn chunks(volume: &MemoryVolume, start: u64, end: u64) -> Vec<ReadStreamResponse> {
    use read_stream_response::Content;
    let step = u64::try_from(IO_LENGTH_MAX_BYTES).unwrap_or(u64::MAX);
    let mut chunks = Vec::new();
    for extent in volume.extents() {
        let mut position = extent.offset_bytes.max(start);
        let stop = end.min(extent.offset_bytes + extent.length_bytes);
        while position < stop {
            let is_hole = extent.kind() == ExtentKind::Hole;
            let length = if is_hole {
                stop - position
            } else {
                step.min(stop - position)
            };
            let content = match volume.read(position, length) {
                Ok(data) if !is_hole => Content::Data(data.into()),
                _ => Content::ZeroesBytes(length),
            };
            chunks.push(ReadStreamResponse {
                content: Some(content),
            });
            position += length;
        }
    }
    chunks
}

#[tonic::async_trait]
impl BlockService for Service {
    type IoStream = AnswerStream<IoResponse>;
    type ReadStreamStream = AnswerStream<ReadStreamResponse>;

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<ReadResponse>, Status> {
        let request = request.into_inner();
        let mut store = self.0.store();
        let volume = store.volume(&request.pool, &request.volume)?;
        let data = volume
            .read(request.offset_bytes, u64::from(request.length_bytes))
            .map_err(|detail| detail.into_status("the read was refused"))?;
        Ok(Response::new(ReadResponse { data: data.into() }))
    }

    async fn write(
        &self,
        request: Request<WriteRequest>,
    ) -> Result<Response<WriteResponse>, Status> {
        let request = request.into_inner();
        let operation = Operation::Write(IoWrite {
            offset_bytes: request.offset_bytes,
            data: request.data,
            durability: request.durability,
        });
        let durability = self.change(&request.pool, &request.volume, operation)?;
        Ok(Response::new(WriteResponse { durability }))
    }

    async fn flush(
        &self,
        request: Request<FlushRequest>,
    ) -> Result<Response<FlushResponse>, Status> {
        let request = request.into_inner();
        let operation = Operation::Flush(IoFlush {});
        let durability = self.change(&request.pool, &request.volume, operation)?;
        Ok(Response::new(FlushResponse { durability }))
    }

    async fn discard(
        &self,
        request: Request<DiscardRequest>,
    ) -> Result<Response<DiscardResponse>, Status> {
        let request = request.into_inner();
        let operation = Operation::Discard(IoDiscard {
            offset_bytes: request.offset_bytes,
            length_bytes: request.length_bytes,
            durability: request.durability,
        });
        let durability = self.change(&request.pool, &request.volume, operation)?;
        Ok(Response::new(DiscardResponse { durability }))
    }

    async fn write_zeroes(
        &self,
        request: Request<WriteZeroesRequest>,
    ) -> Result<Response<WriteZeroesResponse>, Status> {
        let request = request.into_inner();
        let operation = Operation::WriteZeroes(IoWriteZeroes {
            offset_bytes: request.offset_bytes,
            length_bytes: request.length_bytes,
            durability: request.durability,
        });
        let durability = self.change(&request.pool, &request.volume, operation)?;
        Ok(Response::new(WriteZeroesResponse { durability }))
    }

    async fn compare_and_write(
        &self,
        request: Request<CompareAndWriteRequest>,
    ) -> Result<Response<CompareAndWriteResponse>, Status> {
        let request = request.into_inner();
        let operation = Operation::CompareAndWrite(IoCompareAndWrite {
            offset_bytes: request.offset_bytes,
            compare: request.compare,
            data: request.data,
            durability: request.durability,
        });
        let durability = self.change(&request.pool, &request.volume, operation)?;
        Ok(Response::new(CompareAndWriteResponse { durability }))
    }

    async fn io(
        &self,
        request: Request<Streaming<IoRequest>>,
    ) -> Result<Response<Self::IoStream>, Status> {
        self.0.ignore(Ignored::Volumes).await;
        let mut requests = request.into_inner();
        let first = requests.message().await?.unwrap_or_default();
        let Some(Operation::Open(open)) = first.operation else {
            return Err(ErrorDetail::new(ErrorReason::StreamNotOpen).into_status("open first"));
        };
        let opened = response(first.tag, Ok(self.opened(&open)?));
        let (sender, answers) = mpsc::channel(1024);
        let service = self.clone();
        tokio::spawn(service.serve_io(open, requests, sender));
        let answers = tokio_stream::once(Ok(opened)).chain(ReceiverStream::new(answers));
        Ok(Response::new(Box::pin(answers)))
    }

    async fn read_stream(
        &self,
        request: Request<ReadStreamRequest>,
    ) -> Result<Response<Self::ReadStreamStream>, Status> {
        self.0.ignore(Ignored::Transfers).await;
        let request = request.into_inner();
        let mut store = self.0.store();
        let volume = store.volume(&request.pool, &request.volume)?;
        let start = request.offset_bytes;
        let length = request
            .length_bytes
            .unwrap_or(volume.size_bytes.saturating_sub(start));
        volume
            .check(start, length, u64::MAX)
            .map_err(|detail| detail.into_status("the range was refused"))?;
        let chunks = chunks(volume, start, start + length);
        let stream = tokio_stream::iter(chunks).map(Ok);
        Ok(Response::new(Box::pin(stream)))
    }

    async fn write_stream(
        &self,
        request: Request<Streaming<WriteStreamRequest>>,
    ) -> Result<Response<WriteStreamResponse>, Status> {
        self.0.ignore(Ignored::Transfers).await;
        let _ending = Ending(&self.0.ended_writes);
        let summary = self.take_chunks(request.into_inner()).await?;
        Ok(Response::new(summary))
    }
}

/// Counts the end of a call, also when its future is dropped because the client went away.
struct Ending<'a>(&'a AtomicU32);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
