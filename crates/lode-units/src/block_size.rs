//! The size of a logical block: a power of two.

use std::fmt;

/// The size of a logical block in bytes: a power of two from 512 to 65536.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSize {
    shift: u8,
}

/// A number of bytes that is no block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizeError {
    /// What was offered, in bytes.
    pub bytes: u64,
}

impl BlockSize {
    /// 512 bytes.
    pub const B512: Self = Self { shift: 9 };
    /// 4096 bytes.
    pub const B4096: Self = Self { shift: 12 };

    /// The block size of `bytes` bytes.
    ///
    /// # Errors
    /// When `bytes` is no power of two from 512 to 65536.
    pub const fn new(bytes: u64) -> Result<Self, BlockSizeError> {
        let mut shift = 9;
        while shift <= 16 {
            if bytes == 1 << shift {
                return Ok(Self { shift });
            }
            shift += 1;
        }
        Err(BlockSizeError { bytes })
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        1 << self.shift
    }

    /// The base-two logarithm of the size in bytes: 9 to 16.
    #[must_use]
    pub const fn shift(self) -> u32 {
        self.shift as u32
    }

    /// Whether `bytes` is a whole number of blocks.
    #[must_use]
    pub const fn divides(self, bytes: u64) -> bool {
        bytes & (self.bytes() as u64 - 1) == 0
    }

    /// The number of whole blocks in `bytes`; a remainder is dropped.
    #[must_use]
    pub const fn blocks_in(self, bytes: u64) -> u64 {
        bytes >> self.shift
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.bytes())
    }
}

impl fmt::Display for BlockSizeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} is no power of two from 512 to 65536",
            self.bytes
        )
    }
}

impl std::error::Error for BlockSizeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_powers_of_two_in_range_are_block_sizes() {
        for bytes in 0..=70_000_u64 {
            let expected = (512..=65_536).contains(&bytes) && bytes.is_power_of_two();
            assert_eq!(BlockSize::new(bytes).is_ok(), expected, "{bytes}");
        }
        assert_eq!(BlockSize::new(512), Ok(BlockSize::B512));
        assert_eq!(BlockSize::new(4096), Ok(BlockSize::B4096));
    }

    #[test]
    fn blocks_are_counted_and_remainders_seen() {
        assert_eq!(BlockSize::B512.blocks_in(1025), 2);
        assert!(BlockSize::B4096.divides(8192));
        assert!(!BlockSize::B4096.divides(512));
    }
}
