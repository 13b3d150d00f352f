//! A range as a sequence of chunks: several reads in flight, answers in order, holes told.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_core::Stream;
use futures_util::future::{BoxFuture, ready};
use futures_util::stream::{FuturesOrdered, StreamExt, unfold};
use lode_api::v1::read_stream_response::Content;
use lode_api::v1::{ReadStreamRequest, ReadStreamResponse};
use lode_extent::PieceKind;
use lode_units::limits::IO_LENGTH_MAX_BYTES;
use tonic::Status;

use crate::block::transfer::{Command, Target};
use crate::failure::Failure;
use crate::volume::{ExtentWalk, Run, range};

/// Opens the volume and returns the chunks of the range.
pub(super) async fn open(
    request: ReadStreamRequest,
) -> Result<impl Stream<Item = Result<ReadStreamResponse, Status>> + Send + use<>, Failure> {
    let (target, status) = Target::open(&request.pool, &request.volume).await?;
    if request.length_bytes == Some(0) {
        return Err(Failure::zero_length("length_bytes").about(&target.pool, &target.volume));
    }
    let checked = range(&status, request.offset_bytes, request.length_bytes);
    let (start, end) = checked.map_err(|failure| failure.about(&target.pool, &target.volume))?;
    let reader = Reader {
        walk: ExtentWalk::new(target.handle, start, end),
        target,
        runs: VecDeque::new(),
        zeroes_bytes: 0,
        chunks: FuturesOrdered::new(),
        is_walked: false,
    };
    Ok(unfold(Some(reader), |reader| async {
        let mut reader = reader?;
        match reader.next().await {
            Ok(Some(content)) => {
                let content = Some(content);
                Some((Ok(ReadStreamResponse { content }), Some(reader)))
            }
            Ok(None) => None,
            Err(failure) => {
                let failure = failure.about(&reader.target.pool, &reader.target.volume);
                Some((Err(Status::from(failure)), None))
            }
        }
    }))
}

/// The reads under way of one streamed read.
struct Reader {
    target: Target,
    walk: ExtentWalk,
    /// What the walk has found and nobody has begun to read.
    runs: VecDeque<Run>,
    /// Zeros found since the last chunk of data.
    zeroes_bytes: u64,
    chunks: FuturesOrdered<BoxFuture<'static, Result<Content, Failure>>>,
    is_walked: bool,
}

impl Reader {
    /// The next chunk, or `None` at the end.
    async fn next(&mut self) -> Result<Option<Content>, Failure> {
        self.begin_reads().await?;
        self.chunks.next().await.transpose()
    }

    /// Begins reads until as many are under way as may be.
    async fn begin_reads(&mut self) -> Result<(), Failure> {
        while self.chunks.len() < CHUNKS_IN_FLIGHT_MAX && !self.is_walked {
            match self.runs.pop_front() {
                Some(run) if run.kind == PieceKind::Written => {
                    self.flush_zeroes();
                    self.begin_read(run);
                }
                Some(run) => self.zeroes_bytes += run.length_bytes,
                None => {
                    self.runs.extend(self.walk.next_window().await?);
                    self.is_walked = self.runs.is_empty();
                }
            }
        }
        if self.is_walked {
            self.flush_zeroes();
        }
        Ok(())
    }

    /// Begins to read the first chunk of `run` and keeps the rest.
    fn begin_read(&mut self, run: Run) {
        let length_bytes = run.length_bytes.min(CHUNK_BYTES);
        if length_bytes < run.length_bytes {
            self.runs.push_front(Run {
                offset_bytes: run.offset_bytes + length_bytes,
                length_bytes: run.length_bytes - length_bytes,
                kind: run.kind,
            });
        }
        let target = self.target.clone();
        let offset_bytes = run.offset_bytes;
        self.chunks.push_back(Box::pin(async move {
            let command = Command::read(offset_bytes, length_bytes)?;
            let answer = target.run(command, [Bytes::new(), Bytes::new()]).await?;
            Ok(Content::Data(answer.into_data(length_bytes)))
        }));
    }

    fn flush_zeroes(&mut self) {
        let zeroes_bytes = std::mem::take(&mut self.zeroes_bytes);
        if zeroes_bytes > 0 {
            let content = Content::ZeroesBytes(zeroes_bytes);
            self.chunks.push_back(Box::pin(ready(Ok(content))));
        }
    }
}

/// How long a chunk of data is at most.
const CHUNK_BYTES: u64 = 256 << 10;
/// How many chunks are read at once.
const CHUNKS_IN_FLIGHT_MAX: usize = 8;
const _: () = assert!(CHUNK_BYTES <= IO_LENGTH_MAX_BYTES);
