//! Two cores and a change of the mapping, in every order in which their polls and their devices
//! can follow each other up to a depth.
//!
//! A guest overwrites a unit under lease while the home takes that unit away; the pool is so full
//! that whatever is written next gets the very block that became free. If a command could use a
//! block after it has changed hands, the witness that lies there then would show it.

use lode_block::{Durability, WriteCache};
use lode_engine::{DataOperation, IoError, Token, VolumeHandle};

use crate::fleet::{Fleet, Makeup, Order};
use crate::rig::pattern;

const UNIT: u64 = 4096;
const NONE: (Durability, &[u8]) = (Durability::None, &[]);
/// The pool's home, and the core that has it as a guest.
const HOME: usize = 0;
const GUEST: usize = 1;

/// A full pool with room for one more block.
struct Stage {
    fleet: Fleet,
    volume: VolumeHandle,
    witness: VolumeHandle,
}

/// What is written where.
struct Contents {
    old: Vec<u8>,
    /// By the guest, over the old.
    new: Vec<u8>,
    /// To the witness.
    fresh: Vec<u8>,
}

/// How the requests of a play ended.
struct Ended {
    change: Result<Durability, IoError>,
    write: Result<Durability, IoError>,
    read: (Result<Durability, IoError>, Vec<u8>),
    witness: Result<Durability, IoError>,
}

/// Whether the guest has the unit under lease when the change comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lease {
    Held,
    /// The letter that grants it has not been read.
    OnItsWay,
}

/// What may happen next: one core polls, and its device works or does not.
const STEPS: [(usize, bool); 4] = [(HOME, true), (GUEST, true), (HOME, false), (GUEST, false)];

impl Stage {
    fn new(order: Order) -> Self {
        let mut fleet = Fleet::new(&Makeup {
            order,
            ..Makeup::of(2, WriteCache::None)
        });
        let volume = fleet.create(HOME, "volume", 1 << 20);
        let witness = fleet.create(HOME, "witness", 1 << 20);
        // Their maps have their blocks from here on.
        for volume in [volume, witness] {
            fleet.write(HOME, volume, UNIT, &pattern(2, 4096));
        }
        let filler = fleet.create(HOME, "filler", 64 << 20);
        let (mut at, mut length) = (0, 1 << 20);
        let data = pattern(1, 1 << 20);
        while length >= UNIT {
            let part = &data[..usize::try_from(length).expect("short")];
            let with = (Durability::Data, part);
            match fleet.run(HOME, filler, DataOperation::Write, (at, length), with) {
                Ok(_) => at += length,
                Err(IoError::NoSpace) => length /= 2,
                Err(error) => panic!("{error}"),
            }
        }
        let last = (at - UNIT, UNIT);
        let with = (Durability::Data, [].as_slice());
        let freed = fleet.run(HOME, filler, DataOperation::Discard, last, with);
        freed.expect("a block becomes free");
        Self {
            fleet,
            volume,
            witness,
        }
    }

    /// Plays one order. What was seen that must not be.
    fn play(&mut self, order: &[usize], lease: Lease, change: DataOperation) -> Result<(), String> {
        let data = Contents {
            old: pattern(3, 4096),
            new: pattern(4, 4096),
            fresh: pattern(5, 4096),
        };
        let ended = self.perform(order, (lease, change), &data)?;
        self.judge(&ended, &data)?;
        for volume in [self.witness, self.volume] {
            self.finish(HOME, volume, DataOperation::Discard, &[]);
        }
        expect(self.fleet.lent() == 0, "every buffer comes back")
    }

    /// Submits everything and lets it happen in one order.
    fn perform(
        &mut self,
        order: &[usize],
        (lease, change): (Lease, DataOperation),
        data: &Contents,
    ) -> Result<Ended, String> {
        let (volume, unit) = (self.volume, (0, UNIT));
        self.finish(HOME, volume, DataOperation::Write, &data.old);
        let asked = match lease {
            Lease::Held => {
                let found = self.fleet.read(GUEST, volume, 0, UNIT);
                expect(found == data.old, "the guest reads what was written")?;
                None
            }
            Lease::OnItsWay => Some(self.send_lease()),
        };
        let plain = (Durability::None, data.new.as_slice());
        let write = DataOperation::Write;
        let write = self.fleet.submit(GUEST, volume, write, unit, plain);
        let change = self.fleet.submit(HOME, volume, change, unit, NONE);
        let mut later = None;
        let mut changed = None;
        for step in order {
            let (core, device_works) = STEPS[*step];
            self.fleet.media.borrow_mut().is_held = !device_works;
            self.fleet.poll(core);
            changed = changed.or_else(|| self.fleet.outcome(HOME, change));
            if changed.is_some() && later.is_none() {
                later = Some(self.submit_later(&data.fresh));
            }
        }
        self.fleet.media.borrow_mut().is_held = false;
        self.fleet.settle();
        changed = changed.or_else(|| self.fleet.outcome(HOME, change));
        let (witness, read) = later.unwrap_or_else(|| self.submit_later(&data.fresh));
        self.fleet.settle();
        if let Some(asked) = asked {
            let (read, _) = self.outcome(GUEST, asked)?;
            expect(read.is_ok(), "the read that asked for the lease succeeds")?;
        }
        Ok(Ended {
            change: changed.ok_or("the change has not ended")?.0,
            write: self.outcome(GUEST, write)?.0,
            read: self.outcome(GUEST, read)?,
            witness: self.outcome(HOME, witness)?.0,
        })
    }

    /// Compares what was seen, and what is there now, with what may be.
    fn judge(&mut self, ended: &Ended, data: &Contents) -> Result<(), String> {
        let zeros = vec![0; 4096];
        let may_be_there = |found: &[u8]| found == zeros || found == data.new;
        expect(ended.change.is_ok(), "the change succeeds")?;
        let is_fine = ended.write.is_ok() || ended.write == Err(IoError::NoSpace);
        expect(is_fine, "the overwrite succeeds or finds no space")?;
        let (result, read) = &ended.read;
        expect(result.is_ok(), "the later read succeeds")?;
        expect(
            may_be_there(&read[..4096]),
            "no later read sees the old data",
        )?;
        let at_home = self.fleet.read(HOME, self.volume, 0, UNIT);
        let at_guest = self.fleet.read(GUEST, self.volume, 0, UNIT);
        expect(at_home == at_guest, "both cores see the same")?;
        expect(
            may_be_there(&at_home),
            "the change or the overwrite is there",
        )?;
        for core in [HOME, GUEST] {
            let found = self.fleet.read(core, self.witness, 0, UNIT);
            let is_spared = ended.witness.is_err() || found == data.fresh;
            expect(is_spared, "nobody writes to a block that changed hands")?;
        }
        Ok(())
    }

    fn outcome(
        &mut self,
        core: usize,
        token: Token,
    ) -> Result<(Result<Durability, IoError>, Vec<u8>), String> {
        let outcome = self.fleet.outcome(core, token);
        outcome.ok_or_else(|| "a request has not ended".to_owned())
    }

    /// Lets the home answer a read of the guest, which has not seen the answer yet.
    fn send_lease(&mut self) -> Token {
        let unit = (0, UNIT);
        let token = self
            .fleet
            .submit(GUEST, self.volume, DataOperation::Read, unit, NONE);
        self.fleet.poll(GUEST);
        while self.fleet.poll(HOME) > 0 {}
        token
    }

    /// What comes after the change: a write that takes the free block, and a read of the unit.
    fn submit_later(&mut self, fresh: &[u8]) -> (Token, Token) {
        let unit = (0, UNIT);
        let with = (Durability::Data, fresh);
        let write = DataOperation::Write;
        let witness = self.fleet.submit(HOME, self.witness, write, unit, with);
        let read = DataOperation::Read;
        (
            witness,
            self.fleet.submit(GUEST, self.volume, read, unit, NONE),
        )
    }

    fn finish(&mut self, core: usize, volume: VolumeHandle, operation: DataOperation, data: &[u8]) {
        let with = (Durability::Data, data);
        let outcome = self.fleet.run(core, volume, operation, (0, UNIT), with);
        outcome.expect("it succeeds when nothing else is under way");
    }
}

fn expect(is_so: bool, what: &str) -> Result<(), String> {
    is_so.then_some(()).ok_or_else(|| what.to_owned())
}

/// Plays every order of [`DEPTH`] steps. The first that shows what must not be, and how many were
/// played.
fn explore(lease: Lease, change: DataOperation, order: Order) -> (Option<String>, usize) {
    let mut stage = Stage::new(order);
    let count = STEPS.len().pow(DEPTH);
    for number in 0..count {
        let digit = |place| number / STEPS.len().pow(place) % STEPS.len();
        let steps: Vec<_> = (0..DEPTH).map(digit).collect();
        if let Err(seen) = stage.play(&steps, lease, change) {
            return (Some(format!("{seen}, in the order {steps:?}")), number);
        }
    }
    (None, count)
}

const DEPTH: u32 = 5;

#[test]
fn no_order_lets_a_guest_write_to_a_block_that_a_discard_gave_away() {
    let (seen, played) = explore(Lease::Held, DataOperation::Discard, Order::Kept);
    assert_eq!(seen, None, "after {played} orders");
}

#[test]
fn no_order_lets_a_guest_write_to_a_block_that_zeroing_gave_away() {
    let (seen, played) = explore(Lease::Held, DataOperation::WriteZeroes, Order::Kept);
    assert_eq!(seen, None, "after {played} orders");
}

#[test]
fn no_order_lets_a_lease_outlive_the_recall_that_follows_it() {
    let (seen, played) = explore(Lease::OnItsWay, DataOperation::Discard, Order::Kept);
    assert_eq!(seen, None, "after {played} orders");
}

/// The negative control: what the exploration is for is noticed when a port breaks its promise.
#[test]
fn a_lease_that_arrives_behind_its_recall_is_noticed() {
    let (seen, _) = explore(Lease::OnItsWay, DataOperation::Discard, Order::Broken);
    assert!(seen.is_some());
}
