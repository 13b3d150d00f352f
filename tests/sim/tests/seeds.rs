//! A hundred seeds of the simulation, and the defects that it must find.

use lode_sim::{Defect, Tally, run};

fn play(seeds: std::ops::Range<u64>) -> Tally {
    seeds.fold(Tally::default(), |sum, seed| {
        match run(seed, Defect::None) {
            Ok(report) => sum.and(&report.tally),
            Err(finding) => panic!(
                "seed {seed}: {}\n{}",
                finding.what,
                finding.history.join("\n")
            ),
        }
    })
}

#[test]
fn the_first_half_of_the_seeds_finds_nothing_and_does_everything() {
    let tally = play(0..50);
    assert!(
        tally.crashes > 100 && tally.crashes_in_recovery > 5,
        "{tally:?}"
    );
    assert!(tally.faults > 50 && tally.failures > 50, "{tally:?}");
    assert!(tally.requests > 10_000, "{tally:?}");
    assert!(tally.blocks_compared > 10_000, "{tally:?}");
}

#[test]
fn the_second_half_of_the_seeds_finds_nothing() {
    assert!(play(50..100).crashes > 100);
}

#[test]
fn a_seed_repeats_its_run_to_the_last_event() {
    for seed in 0..3 {
        let first = run(seed, Defect::None).expect("a seed that finds nothing");
        assert_eq!(run(seed, Defect::None).ok(), Some(first));
    }
}

/// Each defect is found within so many seeds.
const CONTROL_SEEDS: u64 = 20;

fn is_found(defect: Defect) -> bool {
    (0..CONTROL_SEEDS).any(|seed| run(seed, defect).is_err())
}

#[test]
fn a_controller_that_lies_about_flush_is_found() {
    assert!(is_found(Defect::LyingController));
}

#[test]
fn a_flush_that_never_reaches_the_device_is_found() {
    assert!(is_found(Defect::FlushIgnored));
}

#[test]
fn a_write_through_sent_as_a_plain_write_is_found() {
    assert!(is_found(Defect::WriteThroughIgnored));
}

#[test]
fn a_write_that_never_reaches_the_device_is_found() {
    assert!(is_found(Defect::WriteLost));
}
