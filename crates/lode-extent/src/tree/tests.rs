//! Trees against an ordered map.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::format::block::{Block, BlockFault, BlockKind};
use crate::format::object::Root;
use crate::tree::check::Walk;
use crate::tree::flush::Flush;
use crate::tree::store::Store;
use crate::tree::{Shape, Tree, TreeFault};
use crate::types::PoolBlock;

const POOL: u64 = 99;

/// Long values make low nodes, so that few keys make a high tree.
const SHAPE: Shape = Shape {
    kind: BlockKind::ObjectTable,
    owner: 1,
    value_bytes: 994,
};

/// A tree and the device that it is written to.
struct Forest {
    tree: Tree,
    store: Store,
    device: BTreeMap<PoolBlock, Box<Block>>,
    generation: u64,
    next_place: u64,
}

impl Forest {
    fn new() -> Self {
        Self {
            tree: Tree::new(SHAPE, Root::default()),
            store: Store::default(),
            device: BTreeMap::new(),
            generation: 0,
            next_place: 1,
        }
    }

    /// Writes the changed nodes, and forgets all nodes when `is_cold`.
    fn flush(&mut self, is_cold: bool) {
        self.generation += 1;
        let dirty = u64::try_from(self.store.dirty()).unwrap();
        let places = self.next_place..self.next_place + dirty;
        self.next_place += dirty;
        let mut places: Vec<_> = places.map(PoolBlock::new).collect();
        let mut written = Vec::new();
        let mut flush = Flush {
            generation: self.generation,
            pool: POOL,
            places: &mut places,
            written: &mut written,
        };
        self.tree.flush(&mut self.store, &mut flush);
        assert!(places.is_empty(), "each changed node is written once");
        for block in self.store.take_retired(|_| true) {
            assert!(self.device.remove(&block).is_some(), "retired once");
        }
        self.device.extend(written);
        if is_cold {
            self.tree = Tree::new(SHAPE, self.tree.placed_root());
            self.store = Store::default();
        }
    }

    /// Does something, reading every node that it needs.
    fn warm<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Tree, &mut Store) -> Result<T, TreeFault>,
    ) -> T {
        for _ in 0..100 {
            match attempt(&mut self.tree, &mut self.store) {
                Ok(done) => return done,
                Err(TreeFault::Absent { key }) => {
                    let wanted = self.tree.wanted(&self.store, key).unwrap();
                    let block = self.device.get(&wanted.block);
                    let bytes = block.map(|block| &**block).ok_or(BlockFault::Contents);
                    let all = |_: &_, _, _| true;
                    assert!(self.tree.attach(&mut self.store, &wanted, bytes, POOL, all));
                }
                Err(fault) => panic!("{fault:?}"),
            }
        }
        panic!("it never ends");
    }

    fn check(&self) -> Walk {
        let mut walk = Walk::default();
        self.tree
            .check(&self.store, &mut walk, &mut |_, _, _| Ok(()))
            .expect("a sound tree");
        assert_eq!(walk.dirty, self.store.dirty());
        walk
    }
}

fn value(number: u16) -> Vec<u8> {
    let mut value = vec![0; SHAPE.value_bytes];
    value[..2].copy_from_slice(&number.to_le_bytes());
    value
}

#[derive(Clone, Debug)]
enum Step {
    Upsert(u64, u16),
    Remove(u64),
    Get(u64),
    Flush(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || 0..300_u64;
    let step = prop_oneof![
        8 => (key(), any::<u16>()).prop_map(|(key, number)| Step::Upsert(key, number)),
        6 => key().prop_map(Step::Remove),
        2 => key().prop_map(Step::Get),
        1 => any::<bool>().prop_map(Step::Flush),
    ];
    proptest::collection::vec(step, 1..250)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_tree_behaves_like_an_ordered_map(steps in steps()) {
        let mut forest = Forest::new();
        let mut model = BTreeMap::new();
        for step in steps {
            match step {
                Step::Upsert(key, number) => {
                    forest.warm(|tree, store| tree.upsert(store, key, &value(number)));
                    model.insert(key, number);
                }
                Step::Remove(key) => {
                    let was_there = forest.warm(|tree, store| tree.remove(store, key));
                    prop_assert_eq!(was_there, model.remove(&key).is_some());
                }
                Step::Get(key) => {
                    let found = forest.warm(|tree, store| {
                        Ok(tree.get(store, key)?.map(<[u8]>::to_vec))
                    });
                    prop_assert_eq!(found, model.get(&key).map(|&number| value(number)));
                }
                Step::Flush(is_cold) => forest.flush(is_cold),
            }
            forest.check();
        }
        forest.flush(true);
        let mut seen = BTreeMap::new();
        let mut key = 0;
        while let Some(leaf) = forest.warm(|tree, store| tree.leaf(store, key)) {
            let node = forest.store.node(leaf.node);
            for position in 0..node.count() {
                let number = u16::from_le_bytes(node.value(position)[..2].try_into().unwrap());
                seen.insert(node.key(position), number);
            }
            key = leaf.high;
            if key == crate::tree::KEY_END {
                break;
            }
        }
        prop_assert_eq!(seen, model);
        let walk = forest.check();
        prop_assert_eq!(walk.unseen, 0);
        prop_assert_eq!(walk.blocks.len(), forest.device.len(), "no node is lost");
    }
}

#[test]
fn rising_keys_leave_full_leaves_behind() {
    let mut forest = Forest::new();
    for key in 0..400 {
        forest.warm(|tree, store| tree.upsert(store, key, &value(1)));
    }
    let leaves = 400_usize.div_ceil(4);
    let nodes = forest.check().dirty;
    assert!(
        nodes <= leaves * 3 / 2,
        "{nodes} nodes for {leaves} full leaves"
    );
}

#[test]
fn an_empty_tree_has_no_node() {
    let mut forest = Forest::new();
    for key in 0..100 {
        forest.warm(|tree, store| tree.upsert(store, key, &value(1)));
    }
    for key in 0..100 {
        assert!(forest.warm(|tree, store| tree.remove(store, key)));
    }
    assert!(forest.tree.is_empty());
    assert_eq!(forest.store.dirty(), 0);
}
