//! Metadata that somebody else changed, over fixed seeds.

use lode_tests::foreign_pool::{Outcome, import_changed};
use lode_units::{Random, SeededRandom};

/// Changes of one run. One lets most pools live, many reach combinations.
const EDITS: [u64; 3] = [1, 4, 32];

fn changes(random: &mut SeededRandom, count: u64, is_sealed: bool) -> Vec<u8> {
    let mut input = Vec::new();
    for _ in 0..count {
        let [block_low, block_high, offset_low, offset_high, value, ..] =
            random.next_u64().to_le_bytes();
        // Most of what a block says stands in its first bytes.
        let offset_high = if value & 1 == 0 {
            0
        } else {
            offset_high & 0x0f
        };
        let seal = if is_sealed { 0x80 } else { 0 };
        input.extend([block_low, block_high, offset_low, offset_high | seal, value]);
    }
    input
}

#[test]
fn an_unchanged_pool_is_served() {
    assert_eq!(import_changed(&[]), Outcome::Served);
}

#[test]
fn changed_metadata_is_refused_or_served_and_never_panics() {
    let mut random = SeededRandom::new(0xF0_0D);
    let mut refused = 0;
    let mut served = 0;
    for _ in 0..300 {
        for count in EDITS {
            for is_sealed in [false, true] {
                match import_changed(&changes(&mut random, count, is_sealed)) {
                    Outcome::Refused => refused += 1,
                    Outcome::Served => served += 1,
                }
            }
        }
    }
    assert!(
        refused > 50,
        "{refused} refused: the changes do reach something"
    );
    assert!(
        served > 50,
        "{served} served: one bad block does not stop the rest"
    );
}
