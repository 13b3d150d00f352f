//! One request to the shard, and its failure with all that is known about it.

use bytes::Bytes;
use lode_block::Durability;
use lode_engine::{DataOperation, VolumeHandle, VolumeStatus};
use lode_reactor::gateway::{self, IoAnswer, IoRequest, PooledBuffer};
use lode_units::limits::{COMPARE_LENGTH_MAX_BYTES, IO_LENGTH_MAX_BYTES, RANGE_LENGTH_MAX_BYTES};

use crate::failure::Failure;
use crate::open;

/// An open volume and the names for its failures.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) handle: VolumeHandle,
    pub(crate) pool: String,
    pub(crate) volume: String,
}

/// What a request does, without its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) operation: DataOperation,
    pub(crate) durability: Durability,
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u64,
}

impl Command {
    /// A read; its length is checked.
    pub(crate) fn read(offset_bytes: u64, length_bytes: u64) -> Result<Self, Failure> {
        check_length("length_bytes", length_bytes, IO_LENGTH_MAX_BYTES)?;
        Ok(Self {
            operation: DataOperation::Read,
            durability: Durability::None,
            offset_bytes,
            length_bytes,
        })
    }

    /// A write of `data`; its length is checked.
    pub(crate) fn write(
        offset_bytes: u64,
        data: &Bytes,
        durability: Durability,
    ) -> Result<Self, Failure> {
        let length_bytes = data.len() as u64;
        check_length("data", length_bytes, IO_LENGTH_MAX_BYTES)?;
        Ok(Self {
            operation: DataOperation::Write,
            durability,
            offset_bytes,
            length_bytes,
        })
    }

    /// A compare-and-write; the lengths are checked.
    pub(crate) fn compare_and_write(
        offset_bytes: u64,
        compare: &Bytes,
        data: &Bytes,
        durability: Durability,
    ) -> Result<Self, Failure> {
        if compare.len() != data.len() {
            let message = format!(
                "{} bytes to compare with and {} bytes to write",
                compare.len(),
                data.len()
            );
            let reason = lode_api::v1::ErrorReason::LengthMismatch;
            return Err(Failure::new(reason, message).with_field("compare"));
        }
        let length_bytes = data.len() as u64;
        check_length("data", length_bytes, COMPARE_LENGTH_MAX_BYTES)?;
        Ok(Self {
            operation: DataOperation::CompareAndWrite,
            durability,
            offset_bytes,
            length_bytes,
        })
    }

    /// A discard or write-zeroes; its length is checked.
    pub(crate) fn range(
        operation: DataOperation,
        offset_bytes: u64,
        length_bytes: u64,
        durability: Durability,
    ) -> Result<Self, Failure> {
        check_length("length_bytes", length_bytes, RANGE_LENGTH_MAX_BYTES)?;
        Ok(Self {
            operation,
            durability,
            offset_bytes,
            length_bytes,
        })
    }

    /// A flush.
    pub(crate) const fn flush() -> Self {
        Self {
            operation: DataOperation::Flush,
            durability: Durability::None,
            offset_bytes: 0,
            length_bytes: 0,
        }
    }

    /// How long a buffer it needs; 0 for none.
    pub(crate) fn buffer_length(&self) -> usize {
        let bytes = match self.operation {
            DataOperation::Read | DataOperation::Write => self.length_bytes,
            DataOperation::CompareAndWrite => 2 * self.length_bytes,
            DataOperation::WriteZeroes | DataOperation::Discard | DataOperation::Flush => 0,
        };
        usize::try_from(bytes).expect("the length was checked")
    }

    /// The request for the gateway.
    pub(crate) const fn with_buffer(
        self,
        volume: VolumeHandle,
        buffer: Option<PooledBuffer>,
    ) -> IoRequest {
        IoRequest {
            volume,
            operation: self.operation,
            durability: self.durability,
            offset_bytes: self.offset_bytes,
            length_bytes: self.length_bytes,
            buffer,
        }
    }
}

fn check_length(field: &str, length_bytes: u64, limit: u64) -> Result<(), Failure> {
    match length_bytes {
        0 => Err(Failure::zero_length(field)),
        length if length > limit => Err(Failure::too_long(field, length, limit)),
        _ => Ok(()),
    }
}

impl Target {
    /// Opens the volume of that name.
    pub(crate) async fn open(pool: &str, volume: &str) -> Result<(Self, VolumeStatus), Failure> {
        let status = open::volume(pool, volume)
            .await
            .map_err(|failure| failure.about(pool, volume))?;
        let target = Self {
            handle: status.handle,
            pool: status.pool.clone(),
            volume: status.info.name.clone(),
        };
        Ok((target, status))
    }

    /// Runs `command` with a buffer that holds `payload`, one part after the other.
    pub(crate) async fn run(
        &self,
        command: Command,
        payload: [Bytes; 2],
    ) -> Result<Answer, Failure> {
        let done = self.try_run(command, payload).await;
        match done {
            Ok(answer) => Ok(answer),
            Err(failure) => Err(self.explain(failure, command).await),
        }
    }

    async fn try_run(&self, command: Command, payload: [Bytes; 2]) -> Result<Answer, Failure> {
        let buffer = match command.buffer_length() {
            0 => None,
            length => {
                let buffer = gateway::take_buffer(length).await?;
                fill(&buffer, &payload);
                Some(buffer)
            }
        };
        drop(payload);
        let request = command.with_buffer(self.handle, buffer);
        let answer = gateway::submit(request).map_err(|refused| refused.reason)?;
        let mut answer = answer.await;
        let durability = std::mem::replace(&mut answer.result, Ok(Durability::None))?;
        Ok(Answer { durability, answer })
    }

    /// Adds what is known about the volume, the range and the device at fault.
    pub(crate) async fn explain(&self, failure: Failure, command: Command) -> Failure {
        let failure = self.blame(failure, command);
        if failure.names_device() {
            let names = open::device_names(self.handle.pool()).await;
            return failure.with_device_name(&names);
        }
        failure
    }

    /// Adds what is known about the volume and the range.
    pub(crate) fn blame(&self, failure: Failure, command: Command) -> Failure {
        let failure = failure.about(&self.pool, &self.volume);
        match command.operation {
            DataOperation::Flush => failure,
            DataOperation::Read
            | DataOperation::Write
            | DataOperation::CompareAndWrite
            | DataOperation::WriteZeroes
            | DataOperation::Discard => failure.at(command.offset_bytes, command.length_bytes),
        }
    }
}

/// Copies the payload's parts into `buffer`, one after the other.
pub(crate) fn fill(buffer: &PooledBuffer, payload: &[Bytes; 2]) {
    let [first, second] = payload;
    buffer.copy_from_slice(0, first);
    buffer.copy_from_slice(first.len(), second);
}

/// A request that succeeded.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) durability: Durability,
    answer: IoAnswer,
}

impl Answer {
    /// The data of a read of `length_bytes`; gives the buffer back.
    pub(crate) fn into_data(self, length_bytes: u64) -> Bytes {
        let length = usize::try_from(length_bytes).expect("the length was checked");
        data_of(self.answer, length)
    }
}

/// The data of a read of `length` bytes; gives the buffer back.
pub(crate) fn data_of(answer: IoAnswer, length: usize) -> Bytes {
    if let Some(copied) = answer.copied {
        return copied.into();
    }
    let mut data = Vec::with_capacity(length);
    if let Some(buffer) = answer.buffer {
        buffer.append_to(0, length, &mut data);
    }
    data.into()
}
