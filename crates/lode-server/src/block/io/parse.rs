//! A message of an Io stream as a command with its payload.

use bytes::Bytes;
use lode_api::v1::io_request::Operation;
use lode_api::v1::{ErrorReason, IoRequest};
use lode_engine::DataOperation;

use crate::block::transfer::Command;
use crate::failure::Failure;
use crate::volume::requested_durability;

/// A command and the bytes that go into its buffer.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) command: Command,
    pub(super) payload: [Bytes; 2],
}

impl From<Command> for Parsed {
    fn from(command: Command) -> Self {
        Self {
            command,
            payload: [Bytes::new(), Bytes::new()],
        }
    }
}

/// Reads a message after the first.
pub(super) fn parse(request: IoRequest) -> Result<Parsed, Failure> {
    match request.operation {
        Some(Operation::Read(read)) => {
            Command::read(read.offset_bytes, u64::from(read.length_bytes)).map(Parsed::from)
        }
        Some(Operation::Write(write)) => {
            let durability = requested_durability(write.durability)?;
            let command = Command::write(write.offset_bytes, &write.data, durability)?;
            let payload = [write.data, Bytes::new()];
            Ok(Parsed { command, payload })
        }
        Some(Operation::Flush(_)) => Ok(Command::flush().into()),
        Some(Operation::Discard(range)) => {
            let durability = requested_durability(range.durability)?;
            let (offset, length) = (range.offset_bytes, range.length_bytes);
            Command::range(DataOperation::Discard, offset, length, durability).map(Parsed::from)
        }
        Some(Operation::WriteZeroes(range)) => {
            let durability = requested_durability(range.durability)?;
            let (offset, length) = (range.offset_bytes, range.length_bytes);
            Command::range(DataOperation::WriteZeroes, offset, length, durability).map(Parsed::from)
        }
        Some(Operation::CompareAndWrite(pair)) => {
            let durability = requested_durability(pair.durability)?;
            let (compare, data) = (pair.compare, pair.data);
            let offset = pair.offset_bytes;
            let command = Command::compare_and_write(offset, &compare, &data, durability)?;
            let payload = [compare, data];
            Ok(Parsed { command, payload })
        }
        Some(Operation::Open(_)) => {
            let message = "the stream has a volume already";
            Err(Failure::new(ErrorReason::StreamNotOpen, message).with_field("open"))
        }
        None => Err(Failure::invalid_field(
            "operation",
            "the message asks for nothing",
        )),
    }
}
