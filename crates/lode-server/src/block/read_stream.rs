//! A range as a sequence of chunks: several reads in flight, answers in order, holes told.

use std::collections::VecDeque;

use futures_core::Stream;
use futures_util::future::poll_immediate;
use futures_util::stream::unfold;
use lode_api::v1::read_stream_response::Content;
use lode_api::v1::{ReadStreamRequest, ReadStreamResponse};
use lode_extent::PieceKind;
use lode_reactor::gateway::{self, IoFuture, take_buffer};
use lode_units::limits::IO_LENGTH_MAX_BYTES;
use tonic::Status;

use crate::block::outgoing::{Data, Outgoing};
use crate::block::transfer::{Command, Target};
use crate::failure::Failure;
use crate::volume::{ExtentWalk, Run, range};

/// A chunk on its way out.
pub(super) type ChunkMessage = Outgoing<ReadStreamResponse>;

/// Opens the volume and returns the chunks of the range.
pub(super) async fn open(
    request: ReadStreamRequest,
) -> Result<impl Stream<Item = Result<ChunkMessage, Status>> + Send + use<>, Failure> {
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
        chunks: VecDeque::with_capacity(CHUNKS_IN_FLIGHT_MAX + 1),
        is_walked: false,
    };
    Ok(unfold(Some(reader), |reader| async {
        let mut reader = reader?;
        match reader.next().await {
            Ok(Some(message)) => Some((Ok(message), Some(reader))),
            Ok(None) => None,
            Err(failure) => {
                let failure = failure.about(&reader.target.pool, &reader.target.volume);
                Some((Err(Status::from(failure)), None))
            }
        }
    }))
}

/// The reads under way of one streamed read.
///
/// An answer is fetched only when it is sent next, so that the buffers of a client that does not
/// read on can be taken for others meanwhile.
struct Reader {
    target: Target,
    walk: ExtentWalk,
    /// What the walk has found and nobody has begun to read.
    runs: VecDeque<Run>,
    /// Zeros found since the last chunk of data.
    zeroes_bytes: u64,
    chunks: VecDeque<Chunk>,
    is_walked: bool,
}

/// A chunk that is known or being read.
enum Chunk {
    Zeroes(u64),
    Read { command: Command, answer: IoFuture },
}

impl Reader {
    /// The next chunk, or `None` at the end.
    async fn next(&mut self) -> Result<Option<ChunkMessage>, Failure> {
        self.begin_reads().await?;
        match self.chunks.pop_front() {
            None => Ok(None),
            Some(Chunk::Zeroes(count)) => Ok(Some(plain(Content::ZeroesBytes(count)))),
            Some(Chunk::Read { command, answer }) => {
                let answer = answer.await;
                if let Err(error) = answer.result {
                    return Err(self.target.explain(error.into(), command).await);
                }
                let length = command.buffer_length();
                Ok(Some(match answer.buffer {
                    Some(buffer) => Outgoing::Data(Data {
                        tag: 0,
                        field: DATA_FIELD,
                        buffer,
                        length,
                    }),
                    None => plain(Content::Data(answer.copied.unwrap_or_default().into())),
                }))
            }
        }
    }

    /// Begins reads until as many are under way as may be.
    async fn begin_reads(&mut self) -> Result<(), Failure> {
        while self.chunks.len() < CHUNKS_IN_FLIGHT_MAX && !self.is_walked {
            match self.runs.pop_front() {
                Some(run) if run.kind == PieceKind::Written => {
                    self.flush_zeroes();
                    if !self.begin_read(run).await? {
                        return Ok(());
                    }
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

    /// Begins to read the first chunk of `run` and keeps the rest. Returns whether there was a
    /// buffer; only who has nothing to send waits for one.
    async fn begin_read(&mut self, run: Run) -> Result<bool, Failure> {
        let length_bytes = run.length_bytes.min(CHUNK_BYTES);
        let command = Command::read(run.offset_bytes, length_bytes)?;
        let taking = take_buffer(command.buffer_length());
        let buffer = if self.chunks.is_empty() {
            taking.await?
        } else if let Some(taken) = poll_immediate(taking).await {
            taken?
        } else {
            self.runs.push_front(run);
            return Ok(false);
        };
        if length_bytes < run.length_bytes {
            self.runs.push_front(Run {
                offset_bytes: run.offset_bytes + length_bytes,
                length_bytes: run.length_bytes - length_bytes,
                kind: run.kind,
            });
        }
        let request = command.with_buffer(self.target.handle, Some(buffer));
        let answer = gateway::submit(request).map_err(|refused| refused.reason)?;
        self.chunks.push_back(Chunk::Read { command, answer });
        Ok(true)
    }

    fn flush_zeroes(&mut self) {
        let zeroes_bytes = std::mem::take(&mut self.zeroes_bytes);
        if zeroes_bytes > 0 {
            self.chunks.push_back(Chunk::Zeroes(zeroes_bytes));
        }
    }
}

const fn plain(content: Content) -> ChunkMessage {
    Outgoing::Plain(ReadStreamResponse {
        content: Some(content),
    })
}

/// The number of the field `data` in `ReadStreamResponse`.
pub(super) const DATA_FIELD: u32 = 1;
/// How long a chunk of data is at most.
const CHUNK_BYTES: u64 = 256 << 10;
/// How many chunks are read at once.
const CHUNKS_IN_FLIGHT_MAX: usize = 8;
const _: () = assert!(CHUNK_BYTES <= IO_LENGTH_MAX_BYTES);
