//! Every combination of facts against a reference that is written as the table is.

use super::*;

const BOOLS: [bool; 2] = [false, true];
const LEVELS: [Durability; 3] = [Durability::None, Durability::Data, Durability::Full];

fn all_facts() -> Vec<WriteFacts> {
    let mut all = Vec::new();
    for bits in 0..1_u32 << 9 {
        for durability in LEVELS {
            let bit = |index: u32| BOOLS[usize::from(bits & (1 << index) != 0)];
            all.push(WriteFacts {
                pieces: PieceFacts {
                    has_unallocated: bit(0),
                    has_unwritten: bit(1),
                    has_written: bit(2),
                    has_shared: bit(3),
                    has_dirty_metadata: bit(4),
                },
                cache: CacheFacts {
                    is_volatile: bit(5),
                    supports_write_through: bit(6),
                },
                durability,
                extends: bit(7),
                has_cached_pages: bit(8),
            });
        }
    }
    all
}

/// The table of the I/O rules, row by row.
fn reference(facts: &WriteFacts) -> (bool, bool, DataCommand) {
    let pieces = facts.pieces;
    let pure = pieces.has_written || !(pieces.has_unallocated || pieces.has_unwritten);
    let overwrites = pure
        && !pieces.has_unallocated
        && !pieces.has_unwritten
        && !pieces.has_shared
        && !facts.extends
        && !facts.has_cached_pages;
    match (
        facts.durability,
        facts.cache.is_volatile,
        facts.cache.supports_write_through,
    ) {
        (Durability::None, _, _) => (overwrites, false, DataCommand::Plain),
        (Durability::Data, false, _) => (
            overwrites && !pieces.has_dirty_metadata,
            false,
            DataCommand::Plain,
        ),
        (Durability::Data, true, true) if overwrites && !pieces.has_dirty_metadata => {
            (true, false, DataCommand::WriteThrough)
        }
        (Durability::Data, true, _) => (false, true, DataCommand::Plain),
        (Durability::Full, is_volatile, _) => (false, is_volatile, DataCommand::Plain),
    }
}

#[test]
fn every_combination_of_facts_follows_the_table() {
    for facts in all_facts() {
        let outcome = classify_write(&facts);
        let seen = (outcome.is_inline(), outcome.needs_flush, outcome.command);
        assert_eq!(seen, reference(&facts), "{facts:?}");
    }
}

#[test]
fn raising_the_durability_never_makes_a_completion_inline() {
    for facts in all_facts() {
        let lower = classify_write(&facts);
        for durability in LEVELS.into_iter().filter(|level| *level > facts.durability) {
            let higher = classify_write(&WriteFacts {
                durability,
                ..facts
            });
            assert!(
                lower.is_inline() || !higher.is_inline(),
                "{facts:?} → {durability:?}"
            );
        }
    }
}

#[test]
fn adding_a_piece_never_makes_a_completion_inline() {
    for facts in all_facts() {
        let before = classify_write(&facts);
        for (kind, flags) in every_piece() {
            let piece = Piece {
                kind,
                flags,
                logical: lode_extent::LogicalBlock::new(0),
                physical: lode_extent::PoolBlock::new(1),
                count: 1,
            };
            let pieces = facts.pieces.and(&piece);
            let after = classify_write(&WriteFacts { pieces, ..facts });
            assert!(
                before.is_inline() || !after.is_inline(),
                "{facts:?} and {piece:?}"
            );
        }
    }
}

fn every_piece() -> Vec<(PieceKind, PieceFlags)> {
    let kinds = [PieceKind::Hole, PieceKind::Unwritten, PieceKind::Written];
    kinds
        .into_iter()
        .flat_map(|kind| (0..8).map(move |bits| (kind, PieceFlags::from_bits_truncate(bits))))
        .collect()
}

#[test]
fn plain_writes_are_never_forced_to_the_media() {
    for facts in all_facts()
        .into_iter()
        .filter(|facts| facts.durability == Durability::None)
    {
        let outcome = classify_write(&facts);
        assert_eq!(outcome.command, DataCommand::Plain);
        assert!(!outcome.needs_flush);
    }
}

#[test]
fn every_reason_has_a_name() {
    let named = REASON_NAMES
        .iter()
        .fold(Reasons::empty(), |all, (reason, _)| all | *reason);
    assert_eq!(named, Reasons::all());
}

#[test]
fn two_devices_are_as_weak_as_the_weaker() {
    let none = CacheFacts {
        is_volatile: false,
        supports_write_through: false,
    };
    let forced = CacheFacts {
        is_volatile: true,
        supports_write_through: true,
    };
    let unforced = CacheFacts {
        is_volatile: true,
        supports_write_through: false,
    };
    assert_eq!(none.and(forced), forced);
    assert_eq!(forced.and(unforced), unforced);
    assert!(!none.and(none).is_volatile);
}
