//! An answer on its way out, and the codec that writes a read's data from the DMA buffer straight
//! into the connection's.

use bytes::BufMut;
use lode_api::codec::BulkCodec;
use lode_api::v1::io_response::Result as Outcome;
use lode_api::v1::{IoRequest, IoResponse};
use lode_bus::DmaBuffer;
use lode_reactor::gateway::PooledBuffer;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, EncodeBuf, Encoder};

/// An answer of an Io stream.
#[derive(Debug)]
pub(in crate::block) enum IoMessage {
    /// Any answer.
    Plain(IoResponse),
    /// A read's data, still in its buffer.
    Data {
        tag: u64,
        buffer: PooledBuffer,
        length: usize,
    },
}

impl IoMessage {
    /// The answer to a read of `length` bytes, which lie in `buffer` or were copied out of it.
    pub(super) fn of_read(
        tag: u64,
        buffer: Option<PooledBuffer>,
        copied: Option<Vec<u8>>,
        length: usize,
    ) -> Self {
        match buffer {
            Some(buffer) => Self::Data {
                tag,
                buffer,
                length,
            },
            None => Self::Plain(IoResponse {
                tag,
                result: Some(Outcome::Data(copied.unwrap_or_default().into())),
            }),
        }
    }
}

impl From<IoMessage> for IoResponse {
    fn from(message: IoMessage) -> Self {
        match message {
            IoMessage::Plain(response) => response,
            IoMessage::Data {
                tag,
                buffer,
                length,
            } => {
                let mut data = Vec::with_capacity(length);
                buffer.append_to(0, length, &mut data);
                Self {
                    tag,
                    result: Some(Outcome::Data(data.into())),
                }
            }
        }
    }
}

/// Decodes as every service here does; encodes answers without a message in between.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::block) struct IoCodec;

type Stock = BulkCodec<IoResponse, IoRequest>;

impl Codec for IoCodec {
    type Encode = IoMessage;
    type Decode = IoRequest;
    type Encoder = IoEncoder;
    type Decoder = <Stock as Codec>::Decoder;

    fn encoder(&mut self) -> IoEncoder {
        IoEncoder {
            settings: Stock::default().encoder().buffer_settings(),
            chunk: Box::new([0; CHUNK_BYTES]),
        }
    }

    fn decoder(&mut self) -> Self::Decoder {
        Stock::default().decoder()
    }
}

/// Writes answers.
#[derive(Debug)]
pub(in crate::block) struct IoEncoder {
    settings: BufferSettings,
    /// DMA memory is copied out into a slice, never lent: this one stays in the cache.
    chunk: Box<[u8; CHUNK_BYTES]>,
}

impl Encoder for IoEncoder {
    type Item = IoMessage;
    type Error = Status;

    fn encode(&mut self, message: IoMessage, target: &mut EncodeBuf<'_>) -> Result<(), Status> {
        match message {
            IoMessage::Plain(response) => response
                .encode(target)
                .map_err(|error| Status::internal(format!("an answer does not fit: {error}"))),
            IoMessage::Data {
                tag,
                buffer,
                length,
            } => {
                target.reserve(length + HEAD_BYTES_MAX);
                encode_data(tag, &buffer, length, &mut self.chunk[..], target);
                Ok(())
            }
        }
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.settings
    }
}

/// Writes an [`IoResponse`] whose result is `data`, field by field.
fn encode_data(
    tag: u64,
    buffer: &DmaBuffer,
    length: usize,
    chunk: &mut [u8],
    target: &mut impl BufMut,
) {
    if tag != 0 {
        encode_key(TAG_FIELD, WireType::Varint, target);
        encode_varint(tag, target);
    }
    encode_key(DATA_FIELD, WireType::LengthDelimited, target);
    encode_varint(length as u64, target);
    let mut done = 0;
    while done < length {
        let part = (length - done).min(chunk.len());
        buffer.copy_to_slice(done, &mut chunk[..part]);
        target.put_slice(&chunk[..part]);
        done += part;
    }
}

/// The numbers of the fields in `IoResponse`.
const TAG_FIELD: u32 = 1;
const DATA_FIELD: u32 = 2;
const CHUNK_BYTES: usize = 4096;
/// Two keys of one byte each, a tag and a length.
const HEAD_BYTES_MAX: usize = 2 + 10 + 10;

#[cfg(test)]
mod tests {
    use lode_bus::{IovaSpace, PagePreference};

    use super::*;

    #[test]
    fn data_are_encoded_as_the_message_would_be() {
        let memory = IovaSpace::new().allocate(1 << 20, PagePreference::Ordinary);
        let buffer = DmaBuffer::cut(&memory.expect("memory"), 1 << 20).remove(0);
        let content: Vec<_> = (0..1_u32 << 20)
            .map(|index| u8::try_from(index % 251).expect("below 251"))
            .collect();
        buffer.copy_from_slice(0, &content);
        for tag in [0, 1, 127, 128, u64::MAX] {
            for length in [512, 4096, 4608, 1 << 20] {
                let message = IoResponse {
                    tag,
                    result: Some(Outcome::Data(content[..length].to_vec().into())),
                };
                let mut written = Vec::new();
                let mut chunk = [0; CHUNK_BYTES];
                encode_data(tag, &buffer, length, &mut chunk, &mut written);
                assert!(
                    written == message.encode_to_vec(),
                    "tag {tag}, {length} bytes"
                );
                assert!(written.len() <= length + HEAD_BYTES_MAX);
            }
        }
    }
}
