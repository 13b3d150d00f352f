//! Pools whose metadata somebody else changed: the input says which bytes, five bytes a change
//! (`lode_tests::foreign_pool`). A panic, or work without end, is a finding.

#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use lode_tests::foreign_pool::{Outcome, import_changed};

fuzz_target!(|input: &[u8]| -> Corpus {
    match import_changed(input) {
        // What is served reaches further than what is refused: worth changing again.
        Outcome::Served => Corpus::Keep,
        Outcome::Refused if input.len() > REFUSED_LENGTH_MAX => Corpus::Reject,
        Outcome::Refused => Corpus::Keep,
    }
});

/// Long inputs that are refused teach nothing that a short one does not.
const REFUSED_LENGTH_MAX: usize = 64;
