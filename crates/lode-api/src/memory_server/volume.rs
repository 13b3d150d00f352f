//! One volume in memory.

use std::collections::BTreeMap;

use crate::limits::IO_LENGTH_MAX_BYTES;
use crate::v1::{Durability, ErrorDetail, ErrorReason, Extent, ExtentKind, Volume, VolumeLimits};

/// The unit of space, in bytes.
const UNIT_BYTES: u64 = 4096;

/// A thin volume: units that were never written take no space.
#[derive(Clone, Debug)]
pub(super) struct MemoryVolume {
    pub(super) pool: String,
    pub(super) name: String,
    pub(super) id: u64,
    pub(super) size_bytes: u64,
    pub(super) block_size_bytes: u32,
    pub(super) durability: Durability,
    pub(super) limits: VolumeLimits,
    units: BTreeMap<u64, Vec<u8>>,
}

impl MemoryVolume {
    pub(super) fn new(pool: String, name: String, size_bytes: u64, block_size_bytes: u32) -> Self {
        Self {
            pool,
            name,
            id: 0,
            size_bytes,
            block_size_bytes,
            durability: Durability::None,
            limits: VolumeLimits::default(),
            units: BTreeMap::new(),
        }
    }

    pub(super) fn describe(&self) -> Volume {
        Volume {
            pool: self.pool.clone(),
            name: self.name.clone(),
            id: self.id,
            size_bytes: self.size_bytes,
            block_size_bytes: self.block_size_bytes,
            durability: self.durability.into(),
            allocated_bytes: byte_count(self.units.len()) * UNIT_BYTES,
            created_unix_seconds: 0,
            limits: Some(self.limits),
        }
    }

    /// Checks a range against the rules of the schema.
    pub(super) fn check(
        &self,
        offset: u64,
        length: u64,
        limit: u64,
    ) -> Result<(), Box<ErrorDetail>> {
        let block = u64::from(self.block_size_bytes);
        let refuse = |reason, bound| {
            let detail = ErrorDetail::new(reason)
                .with_pool(&self.pool)
                .with_volume(&self.name)
                .with_range(offset, length)
                .with_limit(bound);
            Err(Box::new(detail))
        };
        if length == 0 {
            refuse(ErrorReason::ZeroLength, 0)
        } else if length > limit {
            refuse(ErrorReason::LengthTooLong, limit)
        } else if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
            refuse(ErrorReason::Unaligned, block)
        } else if offset
            .checked_add(length)
            .is_none_or(|end| end > self.size_bytes)
        {
            refuse(ErrorReason::BeyondEnd, self.size_bytes)
        } else {
            Ok(())
        }
    }

    pub(super) fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>, Box<ErrorDetail>> {
        self.check(offset, length, byte_count(IO_LENGTH_MAX_BYTES))?;
        let mut data = Vec::new();
        for (unit, start, end) in parts(offset, length) {
            match self.units.get(&unit) {
                Some(bytes) => data.extend_from_slice(&bytes[start..end]),
                None => data.resize(data.len() + end - start, 0),
            }
        }
        Ok(data)
    }

    pub(super) fn write(&mut self, offset: u64, mut data: &[u8]) -> Result<(), Box<ErrorDetail>> {
        let length = byte_count(data.len());
        self.check(offset, length, byte_count(IO_LENGTH_MAX_BYTES))?;
        for (unit, start, end) in parts(offset, length) {
            let (part, rest) = data.split_at(end - start);
            let bytes = self.units.entry(unit).or_insert_with(|| vec![0; 4096]);
            bytes[start..end].copy_from_slice(part);
            data = rest;
        }
        Ok(())
    }

    /// Zeroes a range; units that it covers as a whole become holes.
    pub(super) fn zero(&mut self, offset: u64, length: u64) -> Result<(), Box<ErrorDetail>> {
        self.check(offset, length, lode_units::limits::RANGE_LENGTH_MAX_BYTES)?;
        let end = offset + length;
        let held: Vec<u64> = self
            .units
            .range(offset / UNIT_BYTES..end.div_ceil(UNIT_BYTES))
            .map(|(unit, _)| *unit)
            .collect();
        for unit in held {
            let first = offset.max(unit * UNIT_BYTES);
            let last = end.min((unit + 1) * UNIT_BYTES);
            if last - first == UNIT_BYTES {
                self.units.remove(&unit);
            } else if let Some(bytes) = self.units.get_mut(&unit) {
                bytes[within(first, unit)..within(last, unit)].fill(0);
            }
        }
        Ok(())
    }

    pub(super) fn resize(&mut self, size_bytes: u64) {
        if size_bytes < self.size_bytes {
            let cut = self.zero(size_bytes, self.size_bytes - size_bytes);
            cut.expect("whole blocks inside the volume");
        }
        self.size_bytes = size_bytes;
    }

    /// The extents of the whole volume.
    pub(super) fn extents(&self) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut position = 0;
        for unit in self.units.keys() {
            let start = unit * UNIT_BYTES;
            let end = self.size_bytes.min(start + UNIT_BYTES);
            push(&mut extents, position, start, ExtentKind::Hole);
            push(&mut extents, start, end, ExtentKind::Written);
            position = end;
        }
        push(&mut extents, position, self.size_bytes, ExtentKind::Hole);
        extents
    }
}

fn push(extents: &mut Vec<Extent>, start: u64, end: u64, kind: ExtentKind) {
    if start == end {
        return;
    }
    match extents.last_mut() {
        Some(last) if last.kind() == kind => last.length_bytes += end - start,
        _ => extents.push(Extent {
            offset_bytes: start,
            length_bytes: end - start,
            kind: kind.into(),
        }),
    }
}

/// The parts of a range unit by unit: the unit, and the part's start and end in it.
fn parts(offset: u64, length: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + length;
    (offset / UNIT_BYTES..end.div_ceil(UNIT_BYTES)).map(move |unit| {
        let first = offset.max(unit * UNIT_BYTES);
        let last = end.min((unit + 1) * UNIT_BYTES);
        (unit, within(first, unit), within(last, unit))
    })
}

fn within(offset: u64, unit: u64) -> usize {
    usize::try_from(offset - unit * UNIT_BYTES).expect("at most one unit")
}

fn byte_count(length: usize) -> u64 {
    u64::try_from(length).expect("memory is shorter than 2^64 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> MemoryVolume {
        MemoryVolume::new("p".into(), "v".into(), 65536, 512)
    }

    #[test]
    fn what_was_written_is_read_and_the_rest_is_zero() {
        let mut volume = volume();
        volume.write(3584, &[7; 1024]).expect("in range");
        let data = volume.read(3072, 2048).expect("in range");
        assert_eq!(data[..512], [0; 512]);
        assert_eq!(data[512..1536], [7; 1024]);
        assert_eq!(data[1536..], [0; 512]);
    }

    #[test]
    fn a_zeroed_unit_is_a_hole_and_a_zeroed_part_is_not() {
        let mut volume = volume();
        volume.write(0, &[7; 12288]).expect("in range");
        volume.zero(512, 8192).expect("in range");
        let kinds: Vec<_> = volume
            .extents()
            .iter()
            .map(|extent| (extent.length_bytes, extent.kind()))
            .collect();
        assert_eq!(
            kinds,
            [
                (4096, ExtentKind::Written),
                (4096, ExtentKind::Hole),
                (4096, ExtentKind::Written),
                (53248, ExtentKind::Hole)
            ]
        );
        assert_eq!(volume.read(512, 512).expect("in range"), [0; 512]);
        assert_eq!(volume.read(8704, 512).expect("in range"), [7; 512]);
    }
}
