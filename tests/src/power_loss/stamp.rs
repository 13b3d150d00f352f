//! Content that tells which write it came from.

/// The smallest part of a block that a device writes as a whole.
pub(super) const SECTOR_BYTES: usize = 512;
pub(super) const BLOCK_BYTES: usize = 4096;

/// The length of the numbers at a sector's start.
const HEAD_BYTES: usize = 24;

/// What a sector holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sector {
    Zeros,
    /// Written by the write with this sequence number.
    Written(u64),
    /// Neither: foreign, misplaced or torn inside.
    Garbage,
}

/// A block's content for the write `sequence`.
pub(super) fn block(block: u64, sequence: u64) -> Vec<u8> {
    let sectors = u64::try_from(BLOCK_BYTES / SECTOR_BYTES).expect("8 fits");
    (0..sectors)
        .flat_map(|sector| sector_of(block, sector, sequence))
        .collect()
}

fn sector_of(block: u64, sector: u64, sequence: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SECTOR_BYTES);
    for number in [sequence, block, sector] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    // The tail depends on the write as well, so that a sector of two halves is recognised.
    let fill = sequence.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    bytes.extend(fill.iter().cycle().take(SECTOR_BYTES - HEAD_BYTES));
    bytes
}

/// Judges the sector at index `sector` of block `block`.
pub(super) fn read(block: u64, sector: u64, bytes: &[u8]) -> Sector {
    if bytes.iter().all(|byte| *byte == 0) {
        return Sector::Zeros;
    }
    let sequence = bytes
        .first_chunk::<8>()
        .map(|head| u64::from_le_bytes(*head))
        .unwrap_or_default();
    if sector_of(block, sector, sequence) == bytes {
        Sector::Written(sequence)
    } else {
        Sector::Garbage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_tells_its_write_and_a_mixed_or_misplaced_one_does_not() {
        let content = block(7, 42);
        assert_eq!(content.len(), BLOCK_BYTES);
        let second = &content[SECTOR_BYTES..2 * SECTOR_BYTES];
        assert_eq!(read(7, 1, second), Sector::Written(42));
        assert_eq!(read(7, 0, second), Sector::Garbage);
        assert_eq!(read(8, 1, second), Sector::Garbage);
        let mut mixed = second.to_vec();
        mixed[300..].copy_from_slice(&block(7, 43)[SECTOR_BYTES + 300..2 * SECTOR_BYTES]);
        assert_eq!(read(7, 1, &mixed), Sector::Garbage);
        assert_eq!(read(7, 1, &[0; SECTOR_BYTES]), Sector::Zeros);
    }
}
