//! Deterministic simulation: the shipped engine on one to three cores, metadata machine and driver
//! over emulated controllers with volatile caches, in virtual time, on one thread.
//!
//! Owns: [`run`], one run from one seed; [`Defect`], what a run must find; [`Tally`], what a run
//! did. Everything that happens in a run is drawn from its seed: what clients ask for, how long
//! commands take, in which order the cores come round, which faults come, when the power is cut,
//! and what of each unflushed write had reached the media: each unit of 4 KiB of a write on its
//! own, of metadata each block of the device. A model of every volume knows what each block may
//! hold.
//!
//! Invariants that are looked for:
//! 1. A read gives what some order of the requests before and beside it allows.
//! 2. After a power cut each block holds what was acknowledged as durable, or something newer.
//! 3. After a power cut the pool can be imported, and its metadata are sound: the invariants of
//!    `docs/format.md` hold for the pool as a whole.
//! 4. Every request ends exactly once, also when its device is gone; no buffer is lost.
//! 5. Without a fault that excuses it, no request fails.

mod client;
mod content;
mod cores;
mod emulator;
mod faults;
mod history;
mod judge;
mod machine;
mod model;
mod offline;
mod oracle;
mod pending;
mod power;
mod tamper;
mod world;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use history::History;
use world::World;

pub use tamper::Defect;
pub use world::Tally;

/// A run that ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// What it did.
    pub tally: Tally,
    /// A digest of all its events: the same for the same seed.
    pub digest: u64,
}

/// A run that found something.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The seed that finds it again.
    pub seed: u64,
    /// What must not be.
    pub what: String,
    /// The last events before it.
    pub history: Vec<String>,
}

/// Plays the run of `seed`. One that finds something is played again for its history. Allocates;
/// takes some milliseconds.
///
/// # Errors
/// What was found.
pub fn run(seed: u64, defect: Defect) -> Result<Report, Box<Finding>> {
    let what = match play(seed, defect, false) {
        (Ok(report), _) => return Ok(report),
        (Err(what), _) => what,
    };
    let (again, history) = play(seed, defect, true);
    let what = match again {
        Err(again) if again == what => what,
        other => format!("{what}; played again it ends otherwise: {other:?}"),
    };
    Err(Box::new(Finding {
        seed,
        what,
        history,
    }))
}

fn play(seed: u64, defect: Defect, keeps: bool) -> (Result<Report, String>, Vec<String>) {
    let history = History::new(keeps);
    let shared = history.clone();
    let mut outcome = None;
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(seed, defect, shared);
        outcome = Some(world.run().map(|()| world.tally));
    }));
    let outcome = match (outcome, ended) {
        // What a run that was broken off drops unfinished says nothing new.
        (Some(Err(what)), _) => Err(what),
        (Some(outcome), Ok(())) => outcome,
        (_, Err(panic)) => Err(format!("panic: {}", text_of(&*panic))),
        (None, Ok(())) => Err("the run did not end".to_owned()),
    };
    let digest = history.digest();
    let report = outcome.map(|tally| Report { tally, digest });
    (report, history.lines())
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_default()
}
