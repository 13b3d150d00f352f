//! The cores of a machine: shards over one pool, stepped in any order, and the ways between them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use lode_bus::{IovaSpace, PagePreference};
use lode_engine::{Letter, PoolIndex, Port, Shard, ShardLimits};
use lode_units::{CoreId, Random, SeededRandom};

use crate::machine::{Device, pick};
use crate::tamper::Defect;

/// One direction of a way between two cores.
type Way = Arc<Mutex<VecDeque<Letter>>>;

/// One end of a way between two cores, for `room` letters.
#[derive(Debug)]
struct End {
    to_peer: Way,
    from_peer: Way,
    room: usize,
    /// Of two letters that have come, the later one is taken first.
    is_disordered: bool,
}

impl Port for End {
    fn send(&mut self, letter: Letter) -> Result<(), Letter> {
        let mut way = self.to_peer.lock().unwrap_or_else(PoisonError::into_inner);
        if way.len() >= self.room {
            return Err(letter);
        }
        way.push_back(letter);
        Ok(())
    }

    fn receive(&mut self) -> Option<Letter> {
        let way = self.from_peer.lock();
        let mut way = way.unwrap_or_else(PoisonError::into_inner);
        if self.is_disordered && way.len() >= 2 {
            way.swap(0, 1);
        }
        way.pop_front()
    }

    fn flush(&mut self) {}
}

/// Shards that are connected to each other; the first will be the pool's home.
pub(crate) fn shards(
    space: &IovaSpace,
    defect: Defect,
    random: &mut SeededRandom,
) -> Vec<Shard<Device>> {
    let is_disordered = defect == Defect::LettersDisordered;
    let count = 1 + pick(random, CORES_MAX);
    let limits = limits(random);
    let mut shards: Vec<_> = (0..count)
        .map(|_| Shard::with_limits(space, PagePreference::Ordinary, limits).expect("memory"))
        .collect();
    let room = [1, 4, 64][pick(random, 3)];
    for near in 0..count {
        for far in near + 1..count {
            let (there, back) = (Way::default(), Way::default());
            let near_end = End {
                to_peer: Arc::clone(&there),
                from_peer: Arc::clone(&back),
                room,
                is_disordered,
            };
            let far_end = End {
                to_peer: back,
                from_peer: there,
                room,
                is_disordered,
            };
            shards[near].connect(core(far), Box::new(near_end));
            shards[far].connect(core(near), Box::new(far_end));
        }
    }
    shards
}

/// Plenty of everything, or so little that requests wait for each in turn.
fn limits(random: &mut SeededRandom) -> ShardLimits {
    let plenty = ShardLimits::default();
    if random.below(2) == 0 {
        return plenty;
    }
    ShardLimits {
        requests_max: [2, 3, 8, plenty.requests_max][pick(random, 4)],
        deferrable_max: [1, 2, 8, plenty.deferrable_max][pick(random, 4)],
        metadata_max: [1, 2, 4][pick(random, 3)],
        comparisons_max: 1,
        ends_max: 1 + pick(random, 3),
        ..plenty
    }
}

/// Makes the pool a guest of every shard but the first, once it serves; `open` gives a core's own
/// ways to the devices, or none for now.
pub(crate) fn attach_guests(
    shards: &mut [Shard<Device>],
    pool: PoolIndex,
    open: &mut dyn FnMut() -> Option<Vec<(String, Device)>>,
) -> bool {
    let Some(spec) = shards[0].guest_spec(pool) else {
        return false;
    };
    let mut opened = Vec::new();
    for _ in 1..shards.len() {
        match open() {
            Some(devices) => opened.push(devices),
            None => return false,
        }
    }
    for (shard, devices) in shards[1..].iter_mut().zip(opened) {
        shard.attach_guest(core(0), spec.clone(), devices);
    }
    true
}

/// The order in which the cores come round, some of them not at all, the home more often than not.
pub(crate) fn turns(
    count: usize,
    random: &mut SeededRandom,
) -> impl Iterator<Item = usize> + use<> {
    let first = pick(random, count);
    let sleeping = random.below(4);
    (0..count)
        .map(move |step| (first + step) % count)
        .filter(move |core| count == 1 || u64::try_from(*core).ok() != Some(sleeping))
}

fn core(index: usize) -> CoreId {
    CoreId::new(u16::try_from(index).expect("few cores"))
}

const CORES_MAX: usize = 3;
