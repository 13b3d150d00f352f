//! Maps against one entry for each block.

use std::collections::BTreeMap;

use proptest::prelude::*;
use smallvec::SmallVec;

use crate::extent::{EXTENT_BYTES, ExtentKind, ExtentSource, Removed, check_leaf, pieces, replace};
use crate::format::block::BlockKind;
use crate::format::geometry::Geometry;
use crate::format::object::Root;
use crate::piece::PieceKind;
use crate::tree::check::Walk;
use crate::tree::store::Store;
use crate::tree::{Shape, Tree};
use crate::types::PoolBlock;

fn map() -> Tree {
    let shape = Shape {
        kind: BlockKind::ExtentMap,
        owner: 20,
        value_bytes: EXTENT_BYTES,
    };
    Tree::new(shape, Root::default())
}

#[derive(Clone, Debug)]
enum Step {
    Map {
        first: u64,
        count: u64,
        physical: u64,
        is_written: bool,
    },
    Unmap {
        first: u64,
        count: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..4000_u64, 1..40_u64, 600..20_000_u64, any::<bool>()).prop_map(
            |(first, count, physical, is_written)| Step::Map { first, count, physical, is_written }
        ),
        2 => (0..4000_u64, 1..400_u64).prop_map(|(first, count)| Step::Unmap { first, count }),
    ];
    proptest::collection::vec(step, 1..600)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_map_behaves_like_one_entry_for_each_block(steps in steps(), probe in 0..4000_u64) {
        let geometry = Geometry::new(&[(uuid::Uuid::nil(), 30_000)]).unwrap();
        let (mut map, mut store) = (map(), Store::default());
        let mut model: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
        for step in steps {
            let mut removed = Removed::new();
            let range = match step {
                Step::Map { first, count, .. } | Step::Unmap { first, count } => {
                    first..first + count
                }
            };
            let before: u64 = u64::try_from(model.range(range.clone()).count()).unwrap();
            let source = match step {
                Step::Unmap { .. } => None,
                Step::Map { physical, is_written, .. } => Some(ExtentSource {
                    physical: PoolBlock::new(physical),
                    kind: if is_written { ExtentKind::Written } else { ExtentKind::Unwritten },
                    birth: 1,
                }),
            };
            replace(&mut map, &mut store, (range.start, range.end), source, &mut removed).unwrap();
            let freed: u64 = removed.iter().map(|extent| u64::from(extent.count)).sum();
            prop_assert_eq!(freed, before);
            for extent in &removed {
                let old = model[&extent.logical];
                prop_assert_eq!(old.0, extent.physical.get());
            }
            model.retain(|block, _| !range.contains(block));
            if let Step::Map { first, count, physical, is_written } = step {
                model.extend((0..count).map(|at| (first + at, (physical + at, is_written))));
            }
            let mut walk = Walk::default();
            let mut check = |leaf: &_, _, high| check_leaf(leaf, high, &geometry);
            map.check(&store, &mut walk, &mut check).expect("a sound map");
        }
        let mut found = SmallVec::new();
        pieces(&map, &store, probe, probe + 1000, &mut found).unwrap();
        let mut next = probe;
        for piece in found {
            prop_assert_eq!(piece.logical.get(), next);
            for offset in 0..u64::from(piece.count) {
                let expected = model.get(&(next + offset));
                let seen = match piece.kind {
                    PieceKind::Hole => None,
                    PieceKind::Written => Some((piece.physical.get() + offset, true)),
                    PieceKind::Unwritten => Some((piece.physical.get() + offset, false)),
                };
                prop_assert_eq!(seen.as_ref(), expected);
            }
            next += u64::from(piece.count);
        }
        prop_assert_eq!(next, probe + 1000);
    }
}

#[test]
fn a_long_extent_takes_few_bytes_and_random_ones_at_most_32_each() {
    // Bytes of the leaves in memory for each extent, 4 KiB a leaf, inner nodes included.
    let (mut map, mut store) = (map(), Store::default());
    let mut removed = Removed::new();
    let extents = 40_000_u64;
    for index in 0..extents {
        // Every other block, in an order without runs.
        let block = index * 7919 % extents * 2;
        let source = ExtentSource {
            physical: PoolBlock::new(300 + block),
            kind: ExtentKind::Written,
            birth: 1,
        };
        replace(
            &mut map,
            &mut store,
            (block, block + 1),
            Some(source),
            &mut removed,
        )
        .unwrap();
    }
    let bytes = u64::try_from(store.dirty()).unwrap() * (4096 + 64);
    let each = bytes / extents;
    assert!(each <= 32, "{each} bytes for each extent");
}
