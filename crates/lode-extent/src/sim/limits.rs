//! What a volume may do at most, kept with it.

use crate::error::ExtentError;
use crate::format::superblock::FEATURE_VOLUME_LIMITS;
use crate::sim::world::{World, device, volume_spec};
use crate::types::{RequestId, VolumeId};
use crate::volume::VolumeLimits;

const LIMITS: VolumeLimits = VolumeLimits {
    iops_max: 500,
    bandwidth_max_bytes: 3 << 20,
    burst_ms: 250,
};

fn world() -> World {
    World::ready(&[device(16, false, false)])
}

fn create(world: &mut World, name: &str, limits: VolumeLimits) -> VolumeId {
    let mut spec = volume_spec(name, 1 << 20);
    spec.limits = limits;
    let (volume, _) = world.pool.create_volume(&spec, None).expect("a new name");
    volume
}

fn limits_of(world: &World, volume: VolumeId) -> VolumeLimits {
    world.pool.volume(volume).expect("it is there").limits
}

fn features(world: &World) -> u64 {
    world.pool.features_incompat()
}

#[test]
fn limits_set_at_creation_or_later_survive_replay_and_checkpoint() {
    let mut world = world();
    let first = create(&mut world, "first", LIMITS);
    let second = create(&mut world, "second", VolumeLimits::default());
    world.commit();
    let lower = VolumeLimits {
        iops_max: 7,
        ..LIMITS
    };
    world.pool.limit_volume(second, lower).expect("it exists");
    world.commit();
    world.crash();
    world.import();
    world.settle();
    assert_eq!(limits_of(&world, first), LIMITS, "from the journal");
    assert_eq!(limits_of(&world, second), lower, "from the journal");
    world.checkpoint();
    world.reimport();
    assert_eq!(limits_of(&world, first), LIMITS, "from the object table");
    assert_eq!(limits_of(&world, second), lower, "from the object table");
    let none = VolumeLimits::default();
    world.pool.limit_volume(second, none).expect("it exists");
    world.commit();
    world.reimport();
    assert_eq!(limits_of(&world, second), none, "taken back");
}

#[test]
fn a_pool_says_that_it_has_limits_from_the_first_one_on_and_not_before() {
    let mut world = world();
    let volume = create(&mut world, "v", VolumeLimits::default());
    world.checkpoint();
    world.reimport();
    assert_eq!(features(&world), 0, "older programs read it");
    world.pool.limit_volume(volume, LIMITS).expect("it exists");
    world.commit();
    world.reimport();
    assert_eq!(features(&world), FEATURE_VOLUME_LIMITS);
    world.checkpoint();
    world.reimport();
    assert_eq!(features(&world), FEATURE_VOLUME_LIMITS);
}

#[test]
fn limits_that_cannot_be_set_are_refused() {
    let mut world = world();
    let volume = create(&mut world, "v", VolumeLimits::default());
    for limits in [
        VolumeLimits {
            iops_max: VolumeLimits::RATE_MAX + 1,
            ..LIMITS
        },
        VolumeLimits {
            bandwidth_max_bytes: u64::MAX,
            ..LIMITS
        },
        VolumeLimits {
            burst_ms: VolumeLimits::BURST_MAX_MS + 1,
            ..LIMITS
        },
    ] {
        let error = ExtentError::InvalidLimits { limits };
        let refused = world.pool.limit_volume(volume, limits);
        assert_eq!(refused, Err(error.clone()));
        let mut spec = volume_spec("other", 1 << 20);
        spec.limits = limits;
        assert_eq!(world.pool.create_volume(&spec, None), Err(error));
    }
    let unknown = VolumeId::new(99);
    let refused = world.pool.limit_volume(unknown, LIMITS);
    assert_eq!(refused, Err(ExtentError::UnknownVolume { volume: unknown }));
}

#[test]
fn the_retry_of_a_creation_must_have_the_same_limits() {
    let mut world = world();
    let request = RequestId::new("once").expect("a valid id");
    let mut spec = volume_spec("v", 1 << 20);
    spec.limits = LIMITS;
    let (volume, _) = world
        .pool
        .create_volume(&spec, Some(&request))
        .expect("a new name");
    let again = world.pool.create_volume(&spec, Some(&request));
    assert_eq!(again.map(|(volume, _)| volume), Ok(volume));
    spec.limits.iops_max += 1;
    let other = world.pool.create_volume(&spec, Some(&request));
    assert_eq!(other, Err(ExtentError::RequestIdReused));
}
