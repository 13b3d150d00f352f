//! The allocator: nothing is handed out twice, nothing is lost.

use std::collections::BTreeSet;

use proptest::prelude::*;
use uuid::Uuid;

use crate::format::geometry::{Geometry, SPACE_ROOTS};
use crate::format::superblock::SpaceEntry;
use crate::space::{ReserveFault, Run, Space};
use crate::types::PoolBlock;

fn space(sizes: &[u64]) -> (Geometry, Space) {
    let sizes: Vec<_> = sizes.iter().map(|&blocks| (Uuid::nil(), blocks)).collect();
    let geometry = Geometry::new(&sizes).unwrap();
    let free = Space::initially_free(&geometry);
    let space = Space::new([SpaceEntry::default(); SPACE_ROOTS], free);
    (geometry, space)
}

fn blocks(run: Run) -> impl Iterator<Item = u64> {
    (0..u64::from(run.count)).map(move |offset| run.start.get() + offset)
}

#[derive(Clone, Debug)]
enum Step {
    Reserve { hint: u64, count: u32 },
    Cancel(usize),
    Keep(usize),
    Free(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..9000_u64, 1..600_u32).prop_map(|(hint, count)| Step::Reserve { hint, count }),
        1 => any::<usize>().prop_map(Step::Cancel),
        3 => any::<usize>().prop_map(Step::Keep),
        2 => any::<usize>().prop_map(Step::Free),
    ];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_block_is_free_or_taken_once(steps in steps()) {
        let (geometry, mut space) = space(&[4096, 4600]);
        let total = space.free();
        let mut taken = BTreeSet::new();
        let (mut reserved, mut kept): (Vec<Run>, Vec<Run>) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Reserve { hint, count } => {
                    let free = space.free();
                    match space.reserve(&geometry, PoolBlock::new(hint), count) {
                        Ok(runs) => {
                            let sum: u32 = runs.iter().map(|run| run.count).sum();
                            prop_assert_eq!(sum, count);
                            for run in runs {
                                let group = geometry.group_of(run.start).map(|(group, _)| group);
                                for block in blocks(run) {
                                    prop_assert!(taken.insert(block), "block {} twice", block);
                                    let at = geometry.group_of(PoolBlock::new(block));
                                    prop_assert_eq!(at.map(|(group, _)| group), group);
                                }
                                reserved.push(run);
                            }
                        }
                        Err(fault) => {
                            prop_assert_eq!(fault, ReserveFault::NoSpace);
                            prop_assert!(free < u64::from(count));
                        }
                    }
                }
                Step::Cancel(index) if !reserved.is_empty() => {
                    let run = reserved.swap_remove(index % reserved.len());
                    space.put_back(&geometry, &[run]);
                    for block in blocks(run) {
                        taken.remove(&block);
                    }
                }
                Step::Keep(index) if !reserved.is_empty() => {
                    let run = reserved.swap_remove(index % reserved.len());
                    prop_assert_eq!(space.own(&geometry, run), Ok(()));
                    prop_assert!(space.own(&geometry, run).is_err(), "owned twice");
                    kept.push(run);
                }
                Step::Free(index) if !kept.is_empty() => {
                    let run = kept.swap_remove(index % kept.len());
                    prop_assert!(space.release(&geometry, run).is_err(), "still owned");
                    prop_assert_eq!(space.disown(&geometry, run), Ok(()));
                    prop_assert_eq!(space.release(&geometry, run), Ok(()));
                    prop_assert!(space.release(&geometry, run).is_err(), "freed twice");
                    for block in blocks(run) {
                        taken.remove(&block);
                    }
                }
                Step::Cancel(_) | Step::Keep(_) | Step::Free(_) => {}
            }
            let used = u64::try_from(taken.len()).unwrap();
            prop_assert_eq!(space.free(), total - used);
            prop_assert_eq!(space.check(&geometry), Ok(()));
        }
    }
}

#[test]
fn a_mebibyte_gets_one_run_where_there_is_one() {
    let (geometry, mut space) = space(&[100_000]);
    let mut hint = geometry.group_start(0);
    for _ in 0..300 {
        let runs = space.reserve(&geometry, hint, 256).expect("space");
        assert_eq!(runs.len(), 1);
        hint = runs[0].start.plus(256);
    }
}

#[test]
fn the_last_block_can_be_taken_but_not_one_more() {
    let (geometry, mut space) = space(&[4096]);
    let free = u32::try_from(space.free()).unwrap();
    let hint = geometry.group_start(0);
    assert!(space.reserve(&geometry, hint, free + 1).is_err());
    assert!(space.reserve(&geometry, hint, free).is_ok());
    assert_eq!(space.free(), 0);
    assert_eq!(
        space.reserve(&geometry, hint, 1),
        Err(ReserveFault::NoSpace)
    );
}
