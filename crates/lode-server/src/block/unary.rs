//! The unary calls: open the volume by its name, run one request, answer.

use bytes::Bytes;
use lode_api::v1::{
    CompareAndWriteRequest, CompareAndWriteResponse, DiscardRequest, DiscardResponse, Durability,
    FlushRequest, FlushResponse, ReadRequest, ReadResponse, WriteRequest, WriteResponse,
    WriteZeroesRequest, WriteZeroesResponse,
};
use lode_engine::DataOperation;

use crate::block::transfer::{Answer, Command, Target};
use crate::failure::Failure;
use crate::volume::requested_durability;

pub(super) async fn read(request: ReadRequest) -> Result<ReadResponse, Failure> {
    let length_bytes = u64::from(request.length_bytes);
    let command = Command::read(request.offset_bytes, length_bytes);
    let answer = run(&request.pool, &request.volume, command, no_payload()).await?;
    Ok(ReadResponse {
        data: answer.into_data(length_bytes),
    })
}

pub(super) async fn write(request: WriteRequest) -> Result<WriteResponse, Failure> {
    let command = requested_durability(request.durability)
        .and_then(|durability| Command::write(request.offset_bytes, &request.data, durability));
    let payload = [request.data, Bytes::new()];
    let answer = run(&request.pool, &request.volume, command, payload).await?;
    Ok(WriteResponse {
        durability: reached(&answer),
    })
}

pub(super) async fn flush(request: FlushRequest) -> Result<FlushResponse, Failure> {
    let command = Ok(Command::flush());
    let answer = run(&request.pool, &request.volume, command, no_payload()).await?;
    Ok(FlushResponse {
        durability: reached(&answer),
    })
}

pub(super) async fn discard(request: DiscardRequest) -> Result<DiscardResponse, Failure> {
    let command = requested_durability(request.durability).and_then(|durability| {
        let (offset, length) = (request.offset_bytes, request.length_bytes);
        Command::range(DataOperation::Discard, offset, length, durability)
    });
    let answer = run(&request.pool, &request.volume, command, no_payload()).await?;
    Ok(DiscardResponse {
        durability: reached(&answer),
    })
}

pub(super) async fn write_zeroes(
    request: WriteZeroesRequest,
) -> Result<WriteZeroesResponse, Failure> {
    let command = requested_durability(request.durability).and_then(|durability| {
        let (offset, length) = (request.offset_bytes, request.length_bytes);
        Command::range(DataOperation::WriteZeroes, offset, length, durability)
    });
    let answer = run(&request.pool, &request.volume, command, no_payload()).await?;
    Ok(WriteZeroesResponse {
        durability: reached(&answer),
    })
}

pub(super) async fn compare_and_write(
    request: CompareAndWriteRequest,
) -> Result<CompareAndWriteResponse, Failure> {
    let command = requested_durability(request.durability).and_then(|durability| {
        let (compare, data) = (&request.compare, &request.data);
        Command::compare_and_write(request.offset_bytes, compare, data, durability)
    });
    let payload = [request.compare, request.data];
    let answer = run(&request.pool, &request.volume, command, payload).await?;
    Ok(CompareAndWriteResponse {
        durability: reached(&answer),
    })
}

/// Runs `command` on the volume of that name; a command that is wrong by itself fails without it.
async fn run(
    pool: &str,
    volume: &str,
    command: Result<Command, Failure>,
    payload: [Bytes; 2],
) -> Result<Answer, Failure> {
    let command = command.map_err(|failure| failure.about(pool, volume))?;
    let (target, _status) = Target::open(pool, volume).await?;
    target.run(command, payload).await
}

const fn no_payload() -> [Bytes; 2] {
    [Bytes::new(), Bytes::new()]
}

fn reached(answer: &Answer) -> i32 {
    Durability::from(answer.durability).into()
}
