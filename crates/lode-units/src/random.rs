//! Randomness as it enters the program.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// A source of random numbers.
pub trait Random {
    /// The next 64 random bits. Does not block.
    fn next_u64(&mut self) -> u64;

    /// A number below `bound`, near enough to uniform for fault choice and jitter.
    ///
    /// # Panics
    /// When `bound` is 0.
    fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no number lies below 0");
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("a product of two 64-bit numbers shifted right by 64")
    }
}

/// A repeatable source: the same seed gives the same numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct SeededRandom {
    state: u64,
}

impl SeededRandom {
    /// The sequence of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }
}

impl Random for SeededRandom {
    fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

/// Randomness seeded by the operating system: for identifiers that must be unique across
/// machines, not for secrets.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn next_u64(&mut self) -> u64 {
        // Each `RandomState` takes fresh keys; hashing nothing with them yields 64 random bits.
        RandomState::new().build_hasher().finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_numbers() {
        let mut first = SeededRandom::new(42);
        let mut second = SeededRandom::new(42);
        for _ in 0..100 {
            assert_eq!(first.next_u64(), second.next_u64());
        }
    }

    #[test]
    fn a_bounded_number_stays_below_its_bound() {
        let mut random = SeededRandom::new(1);
        for bound in 1..200 {
            assert!(random.below(bound) < bound);
        }
    }

    #[test]
    fn the_system_source_does_not_repeat() {
        assert_ne!(SystemRandom.next_u64(), SystemRandom.next_u64());
    }
}
