//! A pool is let go of while requests are under way.

use lode_block::{Durability, WriteCache};
use lode_engine::{ControlError, ControlRequest, DataOperation, Token};
use lode_units::BlockSize;

use crate::rig::{Rig, pattern, spec};

const UNIT: u64 = 4096;

#[test]
fn a_pool_that_is_exported_under_load_ends_every_request_first() {
    let mut rig = Rig::new(WriteCache::None);
    let volume = rig.create("v", 4 << 20, BlockSize::B4096);
    rig.write(volume, 0, &pattern(1, 1 << 20));
    // Each excludes the next one, so that they take turns.
    let mut tokens: Vec<_> = (0..6)
        .map(|_| {
            let range = (0, 1 << 20);
            rig.submit(volume, DataOperation::Discard, range, Durability::None, &[])
        })
        .collect();
    tokens.push(rig.submit(
        volume,
        DataOperation::Read,
        (0, UNIT),
        Durability::None,
        &[],
    ));
    rig.shard.export(rig.pool);
    let mut devices = None;
    for _ in 0..10_000 {
        devices = rig.shard.detach(rig.pool);
        if devices.is_some() {
            break;
        }
        rig.poll();
        let late = rig.submit(
            volume,
            DataOperation::Read,
            (0, UNIT),
            Durability::None,
            &[],
        );
        tokens.push(late);
        tokens.retain(|token| !has_ended(&mut rig, *token));
    }
    assert!(devices.is_some(), "requests without end keep no pool open");
    rig.poll();
    tokens.retain(|token| !has_ended(&mut rig, *token));
    assert_eq!(tokens, []);
    assert_eq!(rig.shard.requests_in_flight(), 0);
    assert_eq!(rig.lent(), 0);
}

#[test]
fn a_control_request_of_a_pool_that_fails_and_is_let_go_of_is_answered() {
    let mut rig = Rig::new(WriteCache::None);
    let token = rig.token();
    let request = ControlRequest::CreateVolume {
        pool: String::new(),
        spec: spec("v", 1 << 20, BlockSize::B4096),
        request: None,
    };
    rig.shard.control(token, request);
    rig.media.borrow_mut().is_gone = true;
    let mut devices = None;
    for _ in 0..100 {
        devices = rig.shard.detach(rig.pool);
        if devices.is_some() {
            break;
        }
        rig.poll();
    }
    assert!(devices.is_some(), "the pool has failed");
    rig.until(|rig| !rig.done.is_empty());
    let error = rig.control_outcome(token).expect_err("it is not durable");
    assert!(matches!(error, ControlError::Pool(_)), "{error:?}");
}

/// Whether a request has ended; its buffer is given back then.
fn has_ended(rig: &mut Rig, token: Token) -> bool {
    let Some(done) = rig.outcome(token) else {
        return false;
    };
    if let Some(buffer) = done.buffer {
        rig.give_back(buffer);
    }
    true
}
