//! An answer on its way out, and the codec that writes a read's data from the DMA buffer straight
//! into the connection's.

use std::marker::PhantomData;

use bytes::BufMut;
use lode_api::codec::BulkCodec;
use lode_bus::DmaBuffer;
use lode_reactor::gateway::PooledBuffer;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, EncodeBuf, Encoder};

/// A message of type `T` on its way out.
#[derive(Debug)]
pub(super) enum Outgoing<T> {
    /// Any message.
    Plain(T),
    /// One that holds a read's data, still in their buffer.
    Data(Data),
}

/// A message with a field of data, and before it possibly a tag in field 1.
#[derive(Debug)]
pub(super) struct Data {
    /// The tag; 0, which is not written, also where the message has none.
    pub(super) tag: u64,
    /// The number of the data's field.
    pub(super) field: u32,
    /// The data: the first `length` bytes.
    pub(super) buffer: PooledBuffer,
    /// How many bytes.
    pub(super) length: usize,
}

impl<T: Message + Default> Outgoing<T> {
    /// The message itself, for callers that want no encoding. Copies the data.
    pub(super) fn into_message(self) -> Result<T, Status> {
        match self {
            Self::Plain(message) => Ok(message),
            Self::Data(data) => {
                let mut encoded = Vec::with_capacity(data.length + HEAD_BYTES_MAX);
                data.encode(&mut [0; CHUNK_BYTES], &mut encoded);
                T::decode(encoded.as_slice()).map_err(|error| Status::internal(error.to_string()))
            }
        }
    }
}

impl Data {
    fn encode(&self, chunk: &mut [u8], target: &mut impl BufMut) {
        let head = (self.tag, self.field);
        encode_data(head, &self.buffer, self.length, chunk, target);
    }
}

/// Decodes requests of type `U` as every service here does; encodes answers of type `T` without a
/// message in between where they hold data.
#[derive(Debug)]
pub(super) struct OutgoingCodec<T, U> {
    stock: BulkCodec<T, U>,
}

impl<T, U> Default for OutgoingCodec<T, U> {
    fn default() -> Self {
        Self {
            stock: BulkCodec::default(),
        }
    }
}

impl<T, U> Codec for OutgoingCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = Outgoing<T>;
    type Decode = U;
    type Encoder = OutgoingEncoder<T>;
    type Decoder = <BulkCodec<T, U> as Codec>::Decoder;

    fn encoder(&mut self) -> OutgoingEncoder<T> {
        OutgoingEncoder {
            settings: self.stock.encoder().buffer_settings(),
            chunk: Box::new([0; CHUNK_BYTES]),
            _messages: PhantomData,
        }
    }

    fn decoder(&mut self) -> Self::Decoder {
        self.stock.decoder()
    }
}

/// Writes answers.
#[derive(Debug)]
pub(super) struct OutgoingEncoder<T> {
    settings: BufferSettings,
    /// DMA memory is copied out into a slice, never lent: this one stays in the cache.
    chunk: Box<[u8; CHUNK_BYTES]>,
    _messages: PhantomData<fn() -> T>,
}

impl<T: Message> Encoder for OutgoingEncoder<T> {
    type Item = Outgoing<T>;
    type Error = Status;

    fn encode(&mut self, message: Outgoing<T>, target: &mut EncodeBuf<'_>) -> Result<(), Status> {
        match message {
            Outgoing::Plain(message) => message
                .encode(target)
                .map_err(|error| Status::internal(format!("an answer does not fit: {error}"))),
            Outgoing::Data(data) => {
                target.reserve(data.length + HEAD_BYTES_MAX);
                data.encode(&mut self.chunk[..], target);
                Ok(())
            }
        }
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.settings
    }
}

/// Writes the fields of a [`Data`] message.
fn encode_data(
    (tag, field): (u64, u32),
    buffer: &DmaBuffer,
    length: usize,
    chunk: &mut [u8],
    target: &mut impl BufMut,
) {
    if tag != 0 {
        encode_key(TAG_FIELD, WireType::Varint, target);
        encode_varint(tag, target);
    }
    encode_key(field, WireType::LengthDelimited, target);
    encode_varint(length as u64, target);
    let mut done = 0;
    while done < length {
        let part = (length - done).min(chunk.len());
        buffer.copy_to_slice(done, &mut chunk[..part]);
        target.put_slice(&chunk[..part]);
        done += part;
    }
}

const TAG_FIELD: u32 = 1;
const CHUNK_BYTES: usize = 4096;
/// Two keys of one byte each, a tag and a length.
const HEAD_BYTES_MAX: usize = 2 + 10 + 10;

#[cfg(test)]
mod tests {
    use lode_api::v1::io_response::Result as Outcome;
    use lode_api::v1::read_stream_response::Content;
    use lode_api::v1::{IoResponse, ReadStreamResponse};
    use lode_bus::{IovaSpace, PagePreference};

    use super::*;
    use crate::block::{io, read_stream};

    fn written(head: (u64, u32), buffer: &DmaBuffer, length: usize) -> Vec<u8> {
        let mut written = Vec::new();
        let mut chunk = [0; CHUNK_BYTES];
        encode_data(head, buffer, length, &mut chunk, &mut written);
        assert!(written.len() <= length + HEAD_BYTES_MAX);
        written
    }

    #[test]
    fn data_are_encoded_as_the_messages_would_be() {
        let memory = IovaSpace::new().allocate(1 << 20, PagePreference::Ordinary);
        let buffer = DmaBuffer::cut(&memory.expect("memory"), 1 << 20).remove(0);
        let content: Vec<_> = (0..1_u32 << 20)
            .map(|index| u8::try_from(index % 251).expect("below 251"))
            .collect();
        buffer.copy_from_slice(0, &content);
        for length in [512, 4096, 4608, 1 << 20] {
            let data = || content[..length].to_vec().into();
            for tag in [0, 1, 127, 128, u64::MAX] {
                let message = IoResponse {
                    tag,
                    result: Some(Outcome::Data(data())),
                };
                let written = written((tag, io::DATA_FIELD), &buffer, length);
                assert!(
                    written == message.encode_to_vec(),
                    "tag {tag}, {length} bytes"
                );
            }
            let message = ReadStreamResponse {
                content: Some(Content::Data(data())),
            };
            let written = written((0, read_stream::DATA_FIELD), &buffer, length);
            assert!(written == message.encode_to_vec(), "{length} bytes");
        }
    }
}
