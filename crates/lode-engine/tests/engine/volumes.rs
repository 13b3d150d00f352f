//! Volumes as a whole: made, found, resized, deleted, and what handles mean afterwards.

use lode_block::{Durability, WriteCache};
use lode_engine::{ControlError, ControlReply, ControlRequest, DataOperation, IoError, Shrink};
use lode_extent::{ExtentError, LogicalBlock, PieceKind, RequestId};
use lode_units::BlockSize;

use crate::device::geometry;
use crate::rig::{Rig, named, pattern, spec};

fn create(
    rig: &mut Rig,
    name: &str,
    size: u64,
    request: Option<&str>,
) -> Result<ControlReply, ControlError> {
    rig.control(ControlRequest::CreateVolume {
        pool: "tank".to_owned(),
        spec: spec(name, size, BlockSize::B4096),
        request: request.map(|text| RequestId::new(text).expect("a request id")),
    })
}

fn resize(rig: &mut Rig, name: &str, size_bytes: u64, shrink: Shrink) -> Result<u64, ControlError> {
    let request = ControlRequest::ResizeVolume {
        volume: named(name),
        size_bytes,
        shrink,
    };
    match rig.control(request)? {
        ControlReply::Volume(status) => Ok(status.info.size_bytes),
        other => panic!("not a volume: {other:?}"),
    }
}

fn delete(rig: &mut Rig, name: &str, request: Option<&str>) -> Result<(), ControlError> {
    let request = request.map(|text| RequestId::new(text).expect("a request id"));
    let volume = named(name);
    rig.control(ControlRequest::DeleteVolume { volume, request })
        .map(drop)
}

#[test]
fn a_name_is_used_once_and_a_retry_of_its_creation_is_answered_alike() {
    let mut rig = Rig::new(WriteCache::None);
    assert!(create(&mut rig, "v", 1 << 20, Some("one")).is_ok());
    assert!(create(&mut rig, "v", 1 << 20, Some("one")).is_ok());
    for request in [None, Some("two")] {
        let outcome = create(&mut rig, "v", 1 << 20, request);
        let expected = ExtentError::AlreadyExists {
            name: "v".to_owned(),
        };
        assert_eq!(outcome.err(), Some(ControlError::Pool(expected)));
    }
    assert!(create(&mut rig, "", 1 << 20, None).is_err());
    assert!(create(&mut rig, &"x".repeat(256), 1 << 20, None).is_err());
    assert!(create(&mut rig, "odd", 1000, None).is_err());
}

#[test]
fn volumes_outlive_the_daemon() {
    let mut rig = Rig::new(WriteCache::Volatile);
    for name in ["b", "a", "c"] {
        assert!(create(&mut rig, name, 1 << 20, None).is_ok());
    }
    assert_eq!(delete(&mut rig, "b", None), Ok(()));
    let mut rig = rig.crash(geometry(BlockSize::B512, WriteCache::Volatile));
    let list = ControlRequest::ListVolumes {
        pool: String::new(),
        after: None,
        limit: 10,
    };
    let names: Vec<_> = match rig.control(list) {
        Ok(ControlReply::Volumes(volumes)) => volumes.into_iter().map(|info| info.name).collect(),
        other => panic!("not volumes: {other:?}"),
    };
    assert_eq!(names, ["a", "c"]);
}

#[test]
fn a_handle_of_a_deleted_volume_names_nothing_even_when_its_name_comes_back() {
    let mut rig = Rig::new(WriteCache::None);
    let old = rig.create("v", 1 << 20, BlockSize::B4096);
    rig.write(old, 0, &pattern(1, 4096));
    assert_eq!(delete(&mut rig, "v", None), Ok(()));
    assert_eq!(rig.try_read(old, 0, 4096), Err(IoError::UnknownVolume));
    let new = rig.create("v", 1 << 20, BlockSize::B4096);
    assert_eq!(rig.try_read(old, 0, 4096), Err(IoError::UnknownVolume));
    assert_eq!(rig.read(new, 0, 4096), vec![0; 4096]);
}

#[test]
fn a_delete_waits_for_what_is_in_flight_and_refuses_what_comes_later() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 1 << 20, BlockSize::B4096);
    rig.write(volume, 0, &pattern(1, 4096));
    rig.media.borrow_mut().is_held = true;
    let read = rig.submit(
        volume,
        DataOperation::Read,
        (0, 4096),
        Durability::None,
        &[],
    );
    let token = rig.token();
    let request = ControlRequest::DeleteVolume {
        volume: named("v"),
        request: None,
    };
    rig.shard.control(token, request);
    let late = rig.submit(
        volume,
        DataOperation::Read,
        (0, 4096),
        Durability::None,
        &[],
    );
    assert_eq!(rig.wait(late).result, Err(IoError::UnknownVolume));
    let again = ControlRequest::DeleteVolume {
        volume: named("v"),
        request: None,
    };
    assert!(rig.control(again).is_err());
    rig.media.borrow_mut().is_held = false;
    let done = rig.wait(read);
    assert!(done.result.is_ok());
    assert!(done.buffer.expect("a buffer").equals(0, &pattern(1, 4096)));
    rig.until(|rig| !rig.done.is_empty());
    assert!(rig.control_outcome(token).is_ok());
}

#[test]
fn a_volume_that_shrinks_and_grows_shows_zeros_where_data_were() {
    let mut rig = Rig::new(WriteCache::Volatile);
    let volume = rig.create("v", 1 << 20, BlockSize::B512);
    rig.write(volume, 0, &pattern(1, 65536));
    assert_eq!(
        resize(&mut rig, "v", 4096 + 512, Shrink::Refuse),
        Err(ControlError::WouldShrink {
            size_bytes: 4608,
            current_bytes: 1 << 20
        })
    );
    assert_eq!(resize(&mut rig, "v", 4096 + 512, Shrink::Allow), Ok(4608));
    let outcome = rig.try_read(volume, 4608, 512);
    assert!(
        matches!(
            outcome,
            Err(IoError::OutOfRange {
                size_bytes: 4608,
                ..
            })
        ),
        "{outcome:?}"
    );
    assert_eq!(resize(&mut rig, "v", 2 << 20, Shrink::Refuse), Ok(2 << 20));
    let mut expected = pattern(1, 65536);
    expected[4608..].fill(0);
    assert_eq!(rig.read(volume, 0, 65536), expected);
    rig.write(volume, (2 << 20) - 512, &pattern(2, 512));
    assert_eq!(
        resize(&mut rig, "v", 100, Shrink::Allow).ok(),
        None,
        "no whole block"
    );
}

#[test]
fn extents_tell_holes_from_data() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 1 << 20, BlockSize::B4096);
    rig.write(volume, 8 * 4096, &pattern(1, 4 * 4096));
    let request = ControlRequest::ListExtents {
        volume,
        first: LogicalBlock::new(4),
        count: u32::MAX,
    };
    let extents = match rig.control(request) {
        Ok(ControlReply::Extents(extents)) => extents,
        other => panic!("not extents: {other:?}"),
    };
    let seen: Vec<_> = extents
        .iter()
        .map(|extent| (extent.kind, extent.first.get(), extent.count))
        .collect();
    assert_eq!(
        seen,
        [
            (PieceKind::Hole, 4, 4),
            (PieceKind::Written, 8, 4),
            (PieceKind::Hole, 12, 244)
        ]
    );
}

#[test]
fn a_retried_delete_is_answered_alike_and_leaves_a_namesake_alone() {
    let mut rig = Rig::new(WriteCache::Volatile);
    assert!(create(&mut rig, "v", 1 << 20, None).is_ok());
    assert_eq!(delete(&mut rig, "v", Some("d1")), Ok(()));
    assert_eq!(delete(&mut rig, "v", Some("d1")), Ok(()), "the retry");
    assert_eq!(
        delete(&mut rig, "v", Some("d2")),
        Err(ControlError::UnknownVolume {
            name: "v".to_owned()
        })
    );
    assert!(create(&mut rig, "v", 1 << 20, None).is_ok());
    assert_eq!(
        delete(&mut rig, "v", Some("d1")),
        Ok(()),
        "still the old delete"
    );
    assert!(rig.open("v").is_ok(), "the namesake lives");
}

#[test]
fn a_shrink_of_a_busy_volume_is_not_put_off_for_ever() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 1 << 20, BlockSize::B4096);
    rig.write(volume, 0, &pattern(1, 65536));
    let token = rig.token();
    let request = ControlRequest::ResizeVolume {
        volume: named("v"),
        size_bytes: 65536,
        shrink: Shrink::Allow,
    };
    rig.shard.control(token, request);
    // Never a moment without a read in flight in the part that stays.
    let mut reading = rig.submit(
        volume,
        DataOperation::Read,
        (0, 4096),
        Durability::None,
        &[],
    );
    let mut rounds = 0;
    let has_ended = |rig: &Rig| {
        rig.done.iter().any(|done| {
            matches!(done, lode_engine::Completion::Control { token: ended, .. } if *ended == token)
        })
    };
    while !has_ended(&rig) {
        let next = rig.submit(
            volume,
            DataOperation::Read,
            (0, 4096),
            Durability::None,
            &[],
        );
        let done = rig.wait(reading);
        rig.give_back(done.buffer.expect("a buffer"));
        reading = next;
        rounds += 1;
        assert!(rounds < 10_000, "the shrink does not come to its end");
    }
    assert!(rig.control_outcome(token).is_ok());
}

#[test]
fn write_zeroes_up_to_the_end_of_a_volume_holds_although_the_volume_grows_meanwhile() {
    let mut rig = Rig::new(WriteCache::None);
    let old_bytes = 2 * 4096 + 512;
    let volume = rig.create("v", old_bytes, BlockSize::B512);
    rig.write(volume, 0, &pattern(1, 2 * 4096 + 512));
    rig.media.borrow_mut().is_held = true;
    let range = (512, old_bytes - 512);
    let zeroes = DataOperation::WriteZeroes;
    let zeroes = rig.submit(volume, zeroes, range, Durability::None, &[]);
    let growth = rig.token();
    let request = ControlRequest::ResizeVolume {
        volume: named("v"),
        size_bytes: 4 * 4096,
        shrink: Shrink::Refuse,
    };
    rig.shard.control(growth, request);
    rig.media.borrow_mut().is_held = false;
    assert_eq!(rig.wait(zeroes).result, Ok(Durability::None));
    let found = rig.read(volume, 512, old_bytes - 512);
    assert!(
        found.iter().all(|byte| *byte == 0),
        "zeros up to the old end"
    );
}

#[test]
fn a_shard_is_busy_until_its_last_control_request_has_ended() {
    let mut rig = Rig::new(WriteCache::Volatile);
    rig.create("v", 1 << 20, BlockSize::B4096);
    rig.until(|rig| !rig.shard.is_busy());
    let token = rig.token();
    let request = ControlRequest::DeleteVolume {
        volume: named("v"),
        request: None,
    };
    rig.shard.control(token, request);
    let is_done = |rig: &Rig| !rig.done.is_empty();
    while !is_done(&rig) {
        assert!(rig.shard.is_busy(), "a poller would sleep");
        rig.poll();
    }
    assert!(rig.control_outcome(token).is_ok());
}

#[test]
fn a_write_that_comes_while_a_shrink_zeroes_its_tail_is_not_let_in_behind_it() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 65536, BlockSize::B512);
    rig.write(volume, 0, &pattern(1, 65536));
    let shrink = rig.token();
    let request = ControlRequest::ResizeVolume {
        volume: named("v"),
        size_bytes: 4096 + 1536,
        shrink: Shrink::Allow,
    };
    rig.media.borrow_mut().is_held = true;
    rig.shard.control(shrink, request);
    for _ in 0..4 {
        rig.poll();
    }
    let late = rig.submit(
        volume,
        DataOperation::Write,
        (4096, 4096),
        Durability::None,
        &pattern(2, 4096),
    );
    rig.poll();
    rig.media.borrow_mut().is_held = false;
    let outcome = rig.wait(late).result;
    assert!(
        matches!(outcome, Err(IoError::OutOfRange { .. })),
        "{outcome:?}"
    );
    rig.until(|rig| !rig.shard.is_busy());
    rig.control_outcome(shrink).expect("a shrink succeeds");
    resize(&mut rig, "v", 65536, Shrink::Refuse).expect("a growth succeeds");
    assert_eq!(rig.read(volume, 5632, 2560), vec![0; 2560]);
}
