//! The record of a mutation that a client may retry.

use std::mem::size_of;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::block::BlockFault;
use crate::types::{RequestId, VolumeId};
use lode_units::limits::REQUEST_ID_LENGTH_MAX_BYTES;

/// Bytes of a request's record, without its key.
pub(crate) const REQUEST_BYTES: usize = 88;
/// The most requests that are remembered: the oldest is forgotten first.
pub(crate) const REQUESTS_MAX: usize = 1024;

/// What a remembered request did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Create,
    Delete,
}

/// A mutation that was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestRecord {
    pub(crate) id: RequestId,
    pub(crate) kind: RequestKind,
    pub(crate) volume: VolumeId,
    /// Tells the same mutation from another one under the same request id.
    pub(crate) fingerprint: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRequest {
    kind: u8,
    id_length: u8,
    reserved: [u8; 6],
    volume: U64,
    fingerprint: U64,
    id: [u8; REQUEST_ID_LENGTH_MAX_BYTES],
}

const _: () = assert!(size_of::<RawRequest>() == REQUEST_BYTES);

impl RequestRecord {
    /// The record's bytes.
    pub(crate) fn encode(&self) -> [u8; REQUEST_BYTES] {
        let text = self.id.as_str().as_bytes();
        let mut id = [0; REQUEST_ID_LENGTH_MAX_BYTES];
        id[..text.len()].copy_from_slice(text);
        let raw = RawRequest {
            kind: match self.kind {
                RequestKind::Create => 1,
                RequestKind::Delete => 2,
            },
            id_length: u8::try_from(text.len()).expect("a checked request id"),
            reserved: [0; 6],
            volume: U64::new(self.volume.get()),
            fingerprint: U64::new(self.fingerprint),
            id,
        };
        let mut bytes = [0; REQUEST_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// The record in `bytes`.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BlockFault> {
        let raw = RawRequest::ref_from_bytes(bytes).map_err(|_size| BlockFault::Contents)?;
        let id = raw
            .id
            .get(..usize::from(raw.id_length))
            .and_then(|id| std::str::from_utf8(id).ok())
            .and_then(|id| RequestId::new(id).ok())
            .ok_or(BlockFault::Contents)?;
        if raw.reserved != [0; 6] {
            return Err(BlockFault::Contents);
        }
        let kind = match raw.kind {
            1 => RequestKind::Create,
            2 => RequestKind::Delete,
            _ => return Err(BlockFault::Contents),
        };
        Ok(Self {
            id,
            kind,
            volume: VolumeId::new(raw.volume.get()),
            fingerprint: raw.fingerprint.get(),
        })
    }
}
