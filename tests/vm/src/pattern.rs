//! Bytes that tell where they belong and when they were written.

/// `length_bytes` of content for block `lba` in round `round`: every 8 bytes differ from those
/// of any other block or round.
pub(crate) fn block(lba: u64, round: u64, length_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length_bytes);
    let mut word = lba
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .wrapping_add(round.wrapping_mul(0xD1B5_4A32_D192_ED03));
    while bytes.len() < length_bytes {
        word = word.rotate_left(17).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ SALT;
        bytes.extend(word.to_le_bytes());
    }
    bytes.truncate(length_bytes);
    bytes
}

/// Keeps block 0 of round 0 from being zeros, which an unwritten block holds too.
const SALT: u64 = 0xA076_1D64_78BD_642F;

/// The content of `count` blocks from `lba` on.
pub(crate) fn blocks(lba: u64, count: u32, round: u64, block_bytes: u32) -> Vec<u8> {
    let block_bytes = usize::try_from(block_bytes).expect("a block fits in memory");
    (0..u64::from(count))
        .flat_map(|index| block(lba + index, round, block_bytes))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_depends_on_block_and_round() {
        assert_eq!(block(7, 1, 512), block(7, 1, 512));
        assert_ne!(block(7, 1, 512), block(8, 1, 512));
        assert_ne!(block(7, 1, 512), block(7, 2, 512));
        assert_ne!(block(0, 0, 512)[..8], block(0, 0, 512)[8..16]);
        assert_ne!(block(0, 0, 512)[..8], [0; 8]);
        assert_eq!(blocks(7, 2, 1, 512)[512..], block(8, 1, 512));
    }
}
