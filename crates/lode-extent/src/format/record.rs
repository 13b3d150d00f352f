//! The logical records of the journal: one change of the pool each.

use lode_units::BlockSize;

use crate::format::block::BlockFault;
use crate::format::object::{sync_from, sync_raw};
use crate::format::request::{REQUEST_BYTES, RequestRecord};
use crate::types::{LogicalBlock, PoolBlock, VolumeId};
use crate::volume::{VolumeLimits, VolumeSpec};

/// The longest record in bytes: a creation with the longest name.
pub(crate) const RECORD_BYTES_MAX: usize = 8 + 32 + LIMITS_BYTES + 256;
/// Bytes of a [`Record::Map`].
pub(crate) const MAP_RECORD_BYTES: usize = 40;
/// Bytes of every other record but a creation, at most.
pub(crate) const SMALL_RECORD_BYTES: usize = 8 + REQUEST_BYTES;

const HEAD_BYTES: usize = 8;
/// Bytes of the limits in a record: three words.
const LIMITS_BYTES: usize = 24;

/// A change of the pool. Replaying the records after a checkpoint in their order yields the same
/// state that recording them did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Create {
        volume: VolumeId,
        spec: VolumeSpec,
    },
    Request(RequestRecord),
    Resize {
        volume: VolumeId,
        size_bytes: u64,
    },
    /// The name is free; the space follows in the background.
    Delete {
        volume: VolumeId,
    },
    Map {
        volume: VolumeId,
        logical: LogicalBlock,
        physical: PoolBlock,
        count: u32,
    },
    Unmap {
        volume: VolumeId,
        logical: LogicalBlock,
        count: u64,
    },
    /// A deleted volume holds nothing any more.
    Remove {
        volume: VolumeId,
    },
    /// A shrunk volume holds nothing beyond its size any more.
    TrimEnd {
        volume: VolumeId,
    },
    Limit {
        volume: VolumeId,
        limits: VolumeLimits,
    },
}

impl Record {
    fn kind(&self) -> u8 {
        match self {
            Self::Create { .. } => 1,
            Self::Request(_) => 2,
            Self::Resize { .. } => 3,
            Self::Delete { .. } => 4,
            Self::Map { .. } => 5,
            Self::Unmap { .. } => 6,
            Self::Remove { .. } => 7,
            Self::TrimEnd { .. } => 8,
            Self::Limit { .. } => 9,
        }
    }

    /// The volume that it changes, or makes.
    pub(crate) fn volume(&self) -> VolumeId {
        match self {
            Self::Request(request) => request.volume,
            Self::Create { volume, .. }
            | Self::Resize { volume, .. }
            | Self::Delete { volume }
            | Self::Map { volume, .. }
            | Self::Unmap { volume, .. }
            | Self::Remove { volume }
            | Self::TrimEnd { volume }
            | Self::Limit { volume, .. } => *volume,
        }
    }

    /// Appends the record's bytes.
    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        let start = into.len();
        into.extend_from_slice(&[self.kind(), 0, 0, 0, 0, 0, 0, 0]);
        match self {
            Self::Create { volume, spec } => encode_create(*volume, spec, into),
            Self::Request(request) => into.extend_from_slice(&request.encode()),
            Self::Resize { volume, size_bytes } => put(into, &[volume.get(), *size_bytes]),
            Self::Delete { volume } | Self::Remove { volume } | Self::TrimEnd { volume } => {
                put(into, &[volume.get()]);
            }
            Self::Map {
                volume,
                logical,
                physical,
                count,
            } => put(
                into,
                &[volume.get(), logical.get(), physical.get(), (*count).into()],
            ),
            Self::Unmap {
                volume,
                logical,
                count,
            } => put(into, &[volume.get(), logical.get(), *count]),
            Self::Limit { volume, limits } => {
                put(into, &[volume.get()]);
                put(into, &limit_words(limits));
            }
        }
        into.resize(into.len().next_multiple_of(8), 0);
        let length = u16::try_from(into.len() - start).expect("a record is short");
        into[start + 2..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// The record at the start of `bytes`, and its length.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, usize), BlockFault> {
        let head = bytes.get(..HEAD_BYTES).ok_or(BlockFault::Contents)?;
        let length = usize::from(u16::from_le_bytes([head[2], head[3]]));
        if length < HEAD_BYTES || head[1] != 0 || head[4..] != [0; 4] {
            return Err(BlockFault::Contents);
        }
        let body = bytes.get(HEAD_BYTES..length).ok_or(BlockFault::Contents)?;
        let record = decode_body(head[0], body)?;
        Ok((record, length))
    }
}

fn decode_body(kind: u8, body: &[u8]) -> Result<Record, BlockFault> {
    let volume = || word(body, 0).map(VolumeId::new);
    Ok(match kind {
        1 => decode_create(body)?,
        2 => Record::Request(RequestRecord::decode(body)?),
        3 => Record::Resize {
            volume: volume()?,
            size_bytes: word(body, 1)?,
        },
        4 => Record::Delete { volume: volume()? },
        5 => Record::Map {
            volume: volume()?,
            logical: LogicalBlock::new(word(body, 1)?),
            physical: PoolBlock::new(word(body, 2)?),
            count: u32::try_from(word(body, 3)?).map_err(|_large| BlockFault::Contents)?,
        },
        6 => Record::Unmap {
            volume: volume()?,
            logical: LogicalBlock::new(word(body, 1)?),
            count: word(body, 2)?,
        },
        7 => Record::Remove { volume: volume()? },
        8 => Record::TrimEnd { volume: volume()? },
        9 => Record::Limit {
            volume: volume()?,
            limits: decode_limits(body, 1)?,
        },
        _ => return Err(BlockFault::Contents),
    })
}

fn encode_create(volume: VolumeId, spec: &VolumeSpec, into: &mut Vec<u8>) {
    put(
        into,
        &[volume.get(), spec.size_bytes, spec.created_unix_seconds],
    );
    let shift = u8::try_from(spec.block_size.shift()).expect("a shift below 17");
    let name_length = u16::try_from(spec.name.len()).expect("a checked name");
    into.extend_from_slice(&[shift, sync_raw(spec.sync)]);
    into.extend_from_slice(&name_length.to_le_bytes());
    // Written only where there is something to say, so that older programs read the rest.
    let has_limits = !spec.limits.is_unset();
    into.extend_from_slice(&[u8::from(has_limits), 0, 0, 0]);
    if has_limits {
        put(into, &limit_words(&spec.limits));
    }
    into.extend_from_slice(spec.name.as_bytes());
}

fn limit_words(limits: &VolumeLimits) -> [u64; 3] {
    [
        limits.iops_max,
        limits.bandwidth_max_bytes,
        limits.burst_ms.into(),
    ]
}

/// The limits whose first word is the one at `index`.
fn decode_limits(body: &[u8], index: usize) -> Result<VolumeLimits, BlockFault> {
    let limits = VolumeLimits {
        iops_max: word(body, index)?,
        bandwidth_max_bytes: word(body, index + 1)?,
        burst_ms: u32::try_from(word(body, index + 2)?).map_err(|_large| BlockFault::Contents)?,
    };
    if limits.is_valid() {
        Ok(limits)
    } else {
        Err(BlockFault::Contents)
    }
}

fn decode_create(body: &[u8]) -> Result<Record, BlockFault> {
    let attributes = word(body, 3)?.to_le_bytes();
    let name_length = usize::from(u16::from_le_bytes([attributes[2], attributes[3]]));
    let (limits, name_start) = match attributes[4] {
        0 => (VolumeLimits::default(), 32),
        1 => (decode_limits(body, 4)?, 32 + LIMITS_BYTES),
        _ => return Err(BlockFault::Contents),
    };
    let name = body
        .get(name_start..)
        .and_then(|rest| rest.get(..name_length))
        .and_then(|name| std::str::from_utf8(name).ok())
        .ok_or(BlockFault::Contents)?;
    let block_bytes = 1_u64.checked_shl(attributes[0].into()).unwrap_or(0);
    Ok(Record::Create {
        volume: VolumeId::new(word(body, 0)?),
        spec: VolumeSpec {
            name: name.to_owned(),
            size_bytes: word(body, 1)?,
            block_size: BlockSize::new(block_bytes).map_err(|_size| BlockFault::Contents)?,
            sync: sync_from(attributes[1]).ok_or(BlockFault::Contents)?,
            limits,
            created_unix_seconds: word(body, 2)?,
        },
    })
}

fn put(into: &mut Vec<u8>, words: &[u64]) {
    for word in words {
        into.extend_from_slice(&word.to_le_bytes());
    }
}

fn word(bytes: &[u8], index: usize) -> Result<u64, BlockFault> {
    bytes
        .get(index * 8..index * 8 + 8)
        .and_then(|word| word.try_into().ok())
        .map(u64::from_le_bytes)
        .ok_or(BlockFault::Contents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::request::RequestKind;
    use crate::types::RequestId;
    use crate::volume::SyncAttribute;
    use proptest::prelude::*;

    fn limits() -> impl Strategy<Value = VolumeLimits> {
        let set = (
            0..=VolumeLimits::RATE_MAX,
            0..=VolumeLimits::RATE_MAX,
            0..=VolumeLimits::BURST_MAX_MS,
        );
        let set = set.prop_map(|(iops_max, bandwidth_max_bytes, burst_ms)| VolumeLimits {
            iops_max,
            bandwidth_max_bytes,
            burst_ms,
        });
        prop_oneof![Just(VolumeLimits::default()), set]
    }

    fn records() -> impl Strategy<Value = Record> {
        let volume = (16..1_u64 << 48).prop_map(VolumeId::new);
        let word = any::<u64>();
        prop_oneof![
            (volume.clone(), ".{1,60}", word, word, limits()).prop_map(
                |(volume, name, size, created, limits)| Record::Create {
                    volume,
                    spec: VolumeSpec {
                        name,
                        size_bytes: size,
                        block_size: BlockSize::B512,
                        sync: SyncAttribute::Full,
                        limits,
                        created_unix_seconds: created,
                    },
                }
            ),
            (volume.clone(), limits())
                .prop_map(|(volume, limits)| Record::Limit { volume, limits }),
            (volume.clone(), "[a-z]{1,64}", word).prop_map(|(volume, id, fingerprint)| {
                Record::Request(RequestRecord {
                    id: RequestId::new(&id).expect("1 to 64 bytes"),
                    kind: RequestKind::Delete,
                    volume,
                    fingerprint,
                })
            }),
            (volume.clone(), word)
                .prop_map(|(volume, size_bytes)| Record::Resize { volume, size_bytes }),
            (volume.clone(), word, word, any::<u32>()).prop_map(
                |(volume, logical, physical, count)| Record::Map {
                    volume,
                    logical: LogicalBlock::new(logical),
                    physical: PoolBlock::new(physical),
                    count,
                }
            ),
            (volume.clone(), word, word).prop_map(|(volume, logical, count)| Record::Unmap {
                volume,
                logical: LogicalBlock::new(logical),
                count,
            }),
            volume.clone().prop_map(|volume| Record::Delete { volume }),
            volume.clone().prop_map(|volume| Record::Remove { volume }),
            volume.prop_map(|volume| Record::TrimEnd { volume }),
        ]
    }

    proptest! {
        #[test]
        fn records_read_back_as_written(written in proptest::collection::vec(records(), 1..20)) {
            let mut bytes = Vec::new();
            for record in &written {
                record.encode(&mut bytes);
            }
            let mut rest = bytes.as_slice();
            for record in &written {
                let (read, length) = Record::decode(rest).expect("a written record");
                prop_assert_eq!(&read, record);
                prop_assert!(length <= RECORD_BYTES_MAX);
                rest = &rest[length..];
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn foreign_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Ok((_, length)) = Record::decode(&bytes) {
                prop_assert!((HEAD_BYTES..=bytes.len()).contains(&length));
            }
        }
    }
}
