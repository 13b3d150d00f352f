//! Unary reads and writes, and the opening of streams.
//!
//! Only reads are tried again. A write repeated after a lost connection could undo another
//! client's later write, and a flush repeated after the server restarted would claim durability
//! for writes that the restart lost.

use bytes::Bytes;
use tonic::transport::Channel;

use super::failure::{ClientError, Failure};
use super::reader::VolumeReader;
use super::session::{IoOptions, IoSession};
use super::writer::VolumeWriter;
use super::{Client, VolumeName};
use crate::v1::block_service_client::BlockServiceClient;
use crate::v1::{
    CompareAndWriteRequest, DiscardRequest, Durability, FlushRequest, ReadRequest, WriteRequest,
    WriteStreamOpen, WriteZeroesRequest,
};

impl Client {
    /// Reads `length_bytes` at `offset_bytes`.
    ///
    /// # Errors
    /// When the range breaks the rules of the volume or cannot be read.
    pub async fn read(
        &self,
        name: &VolumeName,
        offset_bytes: u64,
        length_bytes: u32,
    ) -> Result<Bytes, ClientError> {
        let call = || async {
            let request = self.request(ReadRequest {
                pool: name.pool.clone(),
                volume: name.volume.clone(),
                offset_bytes,
                length_bytes,
            });
            self.blocks().read(request).await
        };
        let data = self.options.retry.run(call).await?.into_inner().data;
        if u32::try_from(data.len()).ok() == Some(length_bytes) {
            Ok(data)
        } else {
            Err(Failure::protocol("the server's answer has another length than asked for").into())
        }
    }

    /// Writes `data` at `offset_bytes`. Returns how durable it is. Not retried.
    ///
    /// # Errors
    /// When the range breaks the rules of the volume or cannot be written.
    pub async fn write(
        &self,
        name: &VolumeName,
        offset_bytes: u64,
        data: Bytes,
        durability: Durability,
    ) -> Result<Durability, ClientError> {
        let request = self.request(WriteRequest {
            pool: name.pool.clone(),
            volume: name.volume.clone(),
            offset_bytes,
            data,
            durability: durability.into(),
        });
        let answer = self.blocks().write(request).await?.into_inner();
        Ok(answer.durability())
    }

    /// Makes every write that was answered before durable. Not retried.
    ///
    /// # Errors
    /// When the volume is not there or a device fails.
    pub async fn flush(&self, name: &VolumeName) -> Result<Durability, ClientError> {
        let request = self.request(FlushRequest {
            pool: name.pool.clone(),
            volume: name.volume.clone(),
        });
        let answer = self.blocks().flush(request).await?.into_inner();
        Ok(answer.durability())
    }

    /// Gives up the content of a range. Not retried.
    ///
    /// # Errors
    /// When the range breaks the rules of the volume.
    pub async fn discard(
        &self,
        name: &VolumeName,
        offset_bytes: u64,
        length_bytes: u64,
        durability: Durability,
    ) -> Result<Durability, ClientError> {
        let request = self.request(DiscardRequest {
            pool: name.pool.clone(),
            volume: name.volume.clone(),
            offset_bytes,
            length_bytes,
            durability: durability.into(),
        });
        let answer = self.blocks().discard(request).await?.into_inner();
        Ok(answer.durability())
    }

    /// Makes a range read as zeros. Not retried.
    ///
    /// # Errors
    /// When the range breaks the rules of the volume or cannot be written.
    pub async fn write_zeroes(
        &self,
        name: &VolumeName,
        offset_bytes: u64,
        length_bytes: u64,
        durability: Durability,
    ) -> Result<Durability, ClientError> {
        let request = self.request(WriteZeroesRequest {
            pool: name.pool.clone(),
            volume: name.volume.clone(),
            offset_bytes,
            length_bytes,
            durability: durability.into(),
        });
        let answer = self.blocks().write_zeroes(request).await?.into_inner();
        Ok(answer.durability())
    }

    /// Writes `data` if the range holds `compare`. Not retried.
    ///
    /// # Errors
    /// Reason `COMPARE_MISMATCH` when the range holds other data; else as [`Client::write`].
    pub async fn compare_and_write(
        &self,
        name: &VolumeName,
        offset_bytes: u64,
        compare: Bytes,
        data: Bytes,
        durability: Durability,
    ) -> Result<Durability, ClientError> {
        let request = self.request(CompareAndWriteRequest {
            pool: name.pool.clone(),
            volume: name.volume.clone(),
            offset_bytes,
            compare,
            data,
            durability: durability.into(),
        });
        let answer = self.blocks().compare_and_write(request).await?;
        Ok(answer.into_inner().durability())
    }

    /// Opens a volume for many requests in flight, over a connection of its own.
    ///
    /// # Errors
    /// When the volume is not there or the server cannot be reached.
    pub async fn open_io(
        &self,
        name: &VolumeName,
        options: IoOptions,
    ) -> Result<IoSession, ClientError> {
        let channel = self.address.connect().await?;
        let opened = IoSession::open(self.blocks_over(channel), name, options);
        self.in_time(opened).await
    }

    /// Reads a range of any length as chunks, over a connection of its own; `None` means to the
    /// end of the volume.
    ///
    /// # Errors
    /// When the volume is not there or the range lies outside it.
    pub async fn read_stream(
        &self,
        name: &VolumeName,
        offset_bytes: u64,
        length_bytes: Option<u64>,
    ) -> Result<VolumeReader, ClientError> {
        let channel = self.address.connect().await?;
        let opened =
            VolumeReader::open(self.blocks_over(channel), name, offset_bytes, length_bytes);
        self.in_time(opened).await
    }

    /// Writes a range of any length from chunks, over a connection of its own. All of it is as
    /// durable as `durability` when [`VolumeWriter::finish`] returns.
    ///
    /// # Errors
    /// When the server cannot be reached. A volume that is not there is told by the first calls
    /// of the writer.
    pub async fn write_stream(
        &self,
        name: &VolumeName,
        offset_bytes: u64,
        durability: Durability,
    ) -> Result<VolumeWriter, ClientError> {
        let channel = self.address.connect().await?;
        let open = WriteStreamOpen {
            pool: name.pool.clone(),
            volume: name.volume.clone(),
            offset_bytes,
            durability: durability.into(),
        };
        let chunk_max = usize::try_from(self.limits.io_length_max_bytes).unwrap_or(usize::MAX);
        Ok(VolumeWriter::open(
            self.blocks_over(channel),
            open,
            chunk_max,
        ))
    }

    /// The start of a stream within the deadline of a unary call.
    async fn in_time<T>(
        &self,
        start: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        match tokio::time::timeout(self.options.call_timeout, start).await {
            Ok(started) => started,
            Err(_) => Err(Failure::too_late().into()),
        }
    }

    fn blocks(&self) -> BlockServiceClient<Channel> {
        self.blocks_over(self.data.clone())
    }

    fn blocks_over(&self, channel: Channel) -> BlockServiceClient<Channel> {
        BlockServiceClient::new(channel).max_decoding_message_size(self.message_max())
    }
}
