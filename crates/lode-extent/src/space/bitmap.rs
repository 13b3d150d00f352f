//! A bit for each block of a group.

use crate::format::block::{Block, HEADER_BYTES};
use crate::format::geometry::GROUP_BLOCKS;

const WORDS: usize = 504;
const _: () = assert!(WORDS * 64 == 32_256);

/// One bit for each block of a group; bits beyond the group's end are set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bitmap {
    words: Box<[u64; WORDS]>,
}

/// A group in memory.
#[derive(Debug)]
pub(crate) struct Group {
    /// Referred to by metadata.
    pub(crate) owned: Bitmap,
    /// Not to be handed out.
    pub(crate) busy: Bitmap,
    /// No free run of the group is longer; `u32::MAX` when nothing is known.
    pub(crate) longest_free: u32,
    pub(crate) is_dirty: bool,
}

impl Group {
    /// A group of `blocks` blocks that nobody used but the map itself, in the first `fixed`.
    pub(crate) fn unused(blocks: u32, fixed: u32) -> Self {
        let mut owned = Bitmap::clear_of(blocks);
        owned.set(0, fixed);
        Self::with_owned(owned)
    }

    /// A group in which nothing but the owned blocks is busy.
    pub(crate) fn with_owned(owned: Bitmap) -> Self {
        Self {
            busy: owned.clone(),
            owned,
            longest_free: u32::MAX,
            is_dirty: false,
        }
    }
}

impl Bitmap {
    /// The first `blocks` bits clear, the rest set.
    fn clear_of(blocks: u32) -> Self {
        let mut bitmap = Self {
            words: Box::new([0; WORDS]),
        };
        bitmap.set(blocks, GROUP_BLOCKS - blocks);
        bitmap
    }

    /// The bitmap in a block's payload.
    pub(crate) fn read(block: &Block) -> Self {
        let mut words = Box::new([0; WORDS]);
        for (word, bytes) in words.iter_mut().zip(block[HEADER_BYTES..].chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        }
        Self { words }
    }

    /// Puts the bitmap into a block's payload.
    pub(crate) fn write(&self, block: &mut Block) {
        for (word, bytes) in self
            .words
            .iter()
            .zip(block[HEADER_BYTES..].chunks_exact_mut(8))
        {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    pub(crate) fn set(&mut self, start: u32, count: u32) {
        for_words(start, count, |index, mask| self.words[index] |= mask);
    }

    pub(crate) fn clear(&mut self, start: u32, count: u32) {
        for_words(start, count, |index, mask| self.words[index] &= !mask);
    }

    pub(crate) fn is_clear(&self, start: u32, count: u32) -> bool {
        let mut union = 0;
        for_words(start, count, |index, mask| {
            union |= self.words[index] & mask
        });
        union == 0
    }

    pub(crate) fn is_full(&self, start: u32, count: u32) -> bool {
        let mut missing = 0;
        for_words(start, count, |index, mask| {
            missing |= !self.words[index] & mask
        });
        missing == 0
    }

    /// Set bits, those beyond the group's end included.
    pub(crate) fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether every bit of `other` is set here.
    pub(crate) fn contains(&self, other: &Self) -> bool {
        self.words
            .iter()
            .zip(other.words.iter())
            .all(|(here, there)| there & !here == 0)
    }

    /// The first clear bit at or after `from`.
    fn next_clear(&self, from: u32) -> u32 {
        self.next(from, |word| !word)
    }

    /// The first set bit at or after `from`.
    fn next_set(&self, from: u32) -> u32 {
        self.next(from, |word| word)
    }

    /// The clear bits from the first one at or after `from`: where they start and, up to
    /// `limit`, how many there are. `None` when there is none.
    pub(crate) fn clear_run(&self, from: u32, limit: u32) -> Option<(u32, u32)> {
        let start = self.next_clear(from);
        if start >= GROUP_BLOCKS {
            return None;
        }
        Some((start, (self.next_set(start) - start).min(limit)))
    }

    fn next(&self, from: u32, wanted: impl Fn(u64) -> u64) -> u32 {
        if from >= GROUP_BLOCKS {
            return GROUP_BLOCKS;
        }
        let first = word_index(from);
        let mut mask = u64::MAX << (from % 64);
        for (index, &word) in self.words.iter().enumerate().skip(first) {
            let bits = wanted(word) & mask;
            if bits != 0 {
                let base = u32::try_from(index * 64).expect("a bit of a group");
                return base + bits.trailing_zeros();
            }
            mask = u64::MAX;
        }
        GROUP_BLOCKS
    }
}

/// Calls `each` with every word that holds some of the bits, and their mask.
fn for_words(start: u32, count: u32, mut each: impl FnMut(usize, u64)) {
    let (mut bit, end) = (start, start + count);
    while bit < end {
        let within = bit % 64;
        let taken = (64 - within).min(end - bit);
        let mask = (u64::MAX >> (64 - taken)) << within;
        each(word_index(bit), mask);
        bit += taken;
    }
}

fn word_index(bit: u32) -> usize {
    usize::try_from(bit / 64).expect("a word of a group")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_behave_like_single_bits(
            ranges in proptest::collection::vec((0..32_000_u32, 1..256_u32, any::<bool>()), 1..40),
            from in 0..32_256_u32,
        ) {
            let mut bitmap = Bitmap::clear_of(GROUP_BLOCKS);
            let mut bits = vec![false; 32_256];
            for (start, count, is_set) in ranges {
                let range = &mut bits[start as usize..(start + count) as usize];
                prop_assert_eq!(bitmap.is_full(start, count), range.iter().all(|&bit| bit));
                prop_assert_eq!(bitmap.is_clear(start, count), range.iter().all(|&bit| !bit));
                range.fill(is_set);
                if is_set {
                    bitmap.set(start, count);
                } else {
                    bitmap.clear(start, count);
                }
            }
            let set = bits.iter().filter(|&&bit| bit).count();
            prop_assert_eq!(bitmap.count() as usize, set);
            let start = bits.iter().skip(from as usize).position(|&bit| !bit);
            let run = start.map(|start| {
                let start = from as usize + start;
                let length = bits[start..].iter().take_while(|&&bit| !bit).count();
                (u32::try_from(start).unwrap(), u32::try_from(length).unwrap())
            });
            prop_assert_eq!(bitmap.clear_run(from, u32::MAX), run);
        }
    }
}
