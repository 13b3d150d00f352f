//! Metadata that is wrong although its checksums hold: errors, never a panic.

use lode_units::{Random, SeededRandom};

use crate::format::block::{HEADER_BYTES, as_block, open, seal};
use crate::pool::Pool;
use crate::sim::world::{World, device, volume_spec};
use crate::types::{LogicalBlock, VolumeId};
use crate::volume::PoolState;

fn pool_with_a_journal_tail() -> (World, VolumeId) {
    let mut world = World::ready(&[device(16, false, false)]);
    let spec = volume_spec("a", 2000 * 4096);
    let (volume, _) = world.pool.create_volume(&spec, None).expect("new");
    for index in 0..450 {
        world.write(volume, index * 2, 1, 1).expect("space");
    }
    world.checkpoint();
    let mut spec = volume_spec("b", 2000 * 4096);
    spec.limits.iops_max = 5;
    let (other, _) = world.pool.create_volume(&spec, None).expect("new");
    world.write(other, 0, 9, 2).expect("space");
    let limits = spec.limits;
    world.pool.limit_volume(volume, limits).expect("it exists");
    world.write(volume, 5, 4, 3).expect("space");
    world.pool.delete_volume(other, None).expect("it exists");
    world.commit();
    (world, volume)
}

/// Uses a pool in every way; errors are fine.
fn use_up(world: &mut World, volume: VolumeId) {
    world.import();
    world.settle();
    if *world.pool.state() != PoolState::Ready {
        return;
    }
    let spec = volume_spec("c", 400 * 4096);
    let made = world.pool.create_volume(&spec, None).map(|(id, _)| id);
    for id in [Ok(volume), made].into_iter().flatten() {
        for unit in [0, 7, 300, 899] {
            let _pieces = world.pieces(id, unit, 8);
            let _written = world.write(id, unit, 3, 9);
            let _unmapped = world.resident(|pool| pool.unmap(id, LogicalBlock::new(unit + 1), 40));
        }
        let _resized = world.pool.resize_volume(id, 100 * 4096);
        world.pool.commit();
        world.settle();
    }
    world.pool.checkpoint();
    world.settle();
    let _deleted = world.pool.delete_volume(volume, None);
    world.pool.commit();
    world.settle();
    let _checked = world.pool.check();
    world.pool.export();
    world.settle();
}

#[test]
fn forged_metadata_never_panics() {
    let (world, volume) = pool_with_a_journal_tail();
    let mut random = SeededRandom::new(5);
    let metadata = world.disks[0].metadata();
    assert!(
        metadata.len() > 8,
        "superblocks, journal, nodes and bitmaps"
    );
    for round in 0..400 {
        let mut forged = World {
            disks: world.disks.clone(),
            pool: Pool::import(&[]),
            pending: Vec::new(),
            random: SeededRandom::new(round),
        };
        let index = usize::try_from(random.below(metadata.len() as u64)).expect("an index");
        let block = metadata[index];
        let mut data = forged.disks[0].read(block);
        let header = open(as_block(&data).expect("a block")).expect("it opened before");
        for _ in 0..1 + random.below(3) {
            // Where entries are, more often than at the end.
            let span = [64, 512, 4032][usize::try_from(random.below(3)).expect("an index")];
            let byte = HEADER_BYTES + usize::try_from(random.below(span)).expect("an index");
            data[byte] ^= 1 << random.below(8);
        }
        seal(&mut data, &header);
        forged.disks[0]
            .write(block, &data, true)
            .expect("a sound disk");
        use_up(&mut forged, volume);
    }
}
