//! The protobuf codec with buffers sized for storage traffic.

use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

use crate::v1::{ErrorDetail, ErrorReason};

/// How much a stream's buffer grows by, in bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// How much encoded output is gathered before it is handed to the connection, in bytes. One
/// system call then carries many small answers; the stock 32 KiB halve the rate of 4 KiB reads
/// at 32 in flight.
const YIELD_BYTES: usize = 128 << 10;

/// Encodes and decodes protobuf as [`ProstCodec`] does, with larger buffers. Both sides of every
/// service of this package use it.
#[derive(Clone, Copy, Debug)]
pub struct BulkCodec<T, U> {
    _messages: PhantomData<(T, U)>,
}

impl<T, U> Default for BulkCodec<T, U> {
    fn default() -> Self {
        Self {
            _messages: PhantomData,
        }
    }
}

impl<T, U> Codec for BulkCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BulkDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(settings())
    }

    fn decoder(&mut self) -> Self::Decoder {
        BulkDecoder(ProstCodec::<T, U>::raw_decoder(settings()))
    }
}

/// Decodes as [`ProstDecoder`] does, and says whose fault it is when that fails: bytes that are
/// no message (a text that is not UTF-8, a truncated field) are the sender's, INVALID_ARGUMENT,
/// not a defect of the receiver.
#[derive(Clone, Debug)]
pub struct BulkDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default> Decoder for BulkDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        self.0.decode(source).map_err(|status| {
            ErrorDetail::new(ErrorReason::InvalidField).into_status(format!(
                "the message cannot be decoded: {}",
                status.message()
            ))
        })
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}

fn settings() -> BufferSettings {
    BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)
}
