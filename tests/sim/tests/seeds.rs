//! A thousand seeds of the simulation, in parts that run side by side, and the defects that it
//! must find.

use lode_sim::{Defect, Tally, run};

/// Plays one of the parts.
fn play(part: u64) -> Tally {
    let seeds = part * PART_SEEDS..(part + 1) * PART_SEEDS;
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

/// Ten parts are a thousand seeds.
const PART_SEEDS: u64 = 100;

#[test]
fn the_first_hundred_seeds_find_nothing_and_do_everything() {
    let tally = play(0);
    assert!(tally.crashes > 300, "{tally:?}");
    assert!(tally.crashes_in_recovery > 20, "{tally:?}");
    assert!(tally.crashes_in_recovery_again > 0, "{tally:?}");
    assert!(tally.faults > 100 && tally.failures > 100, "{tally:?}");
    assert!(tally.requests > 20_000, "{tally:?}");
    assert!(tally.blocks_compared > 20_000, "{tally:?}");
}

#[test]
fn the_second_hundred_seeds_find_nothing() {
    assert!(play(1).crashes > 300);
}

#[test]
fn the_third_hundred_seeds_find_nothing() {
    assert!(play(2).crashes > 300);
}

#[test]
fn the_fourth_hundred_seeds_find_nothing() {
    assert!(play(3).crashes > 300);
}

#[test]
fn the_fifth_hundred_seeds_find_nothing() {
    assert!(play(4).crashes > 300);
}

#[test]
fn the_sixth_hundred_seeds_find_nothing() {
    assert!(play(5).crashes > 300);
}

#[test]
fn the_seventh_hundred_seeds_find_nothing() {
    assert!(play(6).crashes > 300);
}

#[test]
fn the_eighth_hundred_seeds_find_nothing() {
    assert!(play(7).crashes > 300);
}

#[test]
fn the_ninth_hundred_seeds_find_nothing() {
    assert!(play(8).crashes > 300);
}

#[test]
fn the_tenth_hundred_seeds_find_nothing() {
    assert!(play(9).crashes > 300);
}

#[test]
fn a_seed_repeats_its_run_to_the_last_event() {
    for seed in 0..3 {
        let first = run(seed, Defect::None).expect("a seed that finds nothing");
        assert_eq!(run(seed, Defect::None).ok(), Some(first));
    }
}

/// Whether a seed finds the defect in such a way: `says` is a part of what it reports.
fn is_found(defect: Defect, says: &str) -> bool {
    let finding = |seed| run(seed, defect).err();
    let mut findings = (0..CONTROL_SEEDS).filter_map(finding);
    findings.any(|finding| finding.what.contains(says))
}

/// Each defect is found within so many seeds.
const CONTROL_SEEDS: u64 = 1000;
/// A block holds what nobody wrote there: nothing that was promised is missing.
const WRONG_CONTENT: &str = "content";

#[test]
fn a_controller_that_lies_about_flush_is_found() {
    assert!(is_found(Defect::LyingController, ""));
}

#[test]
fn a_flush_that_never_reaches_the_device_is_found() {
    assert!(is_found(Defect::FlushIgnored, ""));
}

#[test]
fn a_write_through_sent_as_a_plain_write_is_found() {
    assert!(is_found(Defect::WriteThroughIgnored, ""));
}

#[test]
fn a_write_that_never_reaches_the_device_is_found() {
    assert!(is_found(Defect::WriteLost, ""));
}

#[test]
fn metadata_that_are_on_the_media_before_their_data_are_found() {
    assert!(is_found(Defect::MetadataFirst, WRONG_CONTENT));
}

#[test]
fn a_block_used_again_before_its_release_is_durable_is_found() {
    assert!(is_found(Defect::FreedEarly, WRONG_CONTENT));
}

#[test]
fn a_torn_block_of_metadata_that_is_taken_for_whole_is_found() {
    assert!(is_found(Defect::TearsAccepted, ""));
}

#[test]
fn letters_between_cores_that_overtake_each_other_are_found() {
    assert!(is_found(Defect::LettersDisordered, "holds"));
}
