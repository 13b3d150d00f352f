//! Rules about the text of source files.

use super::tree::{SourceFile, Tree};
use super::{Finding, code_of};
use crate::layers::CRATES;

/// Words that mark unfinished work, wherever they stand. In halves: this file is judged too.
const FORBIDDEN_WORDS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("HA", "CK"),
];

/// Macros of unfinished work.
const FORBIDDEN_CODE: &[&str] = &["dbg!", "todo!", "unimplemented!"];

/// Beginnings of paths that exist on one machine only.
const MACHINE_PATHS: &[&str] = &[
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("/Us", "ers/"),
];

/// Imports of everything that are in order: a module's tests see all of it, and the macros of
/// property tests expand to names that nobody could list.
const GLOBS: &[&str] = &["use super::*;", "use proptest::prelude::*;"];

/// Judges `code` line by line with `judge`, which returns the complaint.
fn by_line(file: &SourceFile, code: &str, judge: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    code.lines()
        .enumerate()
        .filter_map(|(index, line)| {
            judge(line).map(|message| Finding::new(file, index + 1, message))
        })
        .collect()
}

/// Whether `word` stands in `line` as a word of its own.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(start, _)| {
        let is_part = |character: char| character.is_alphanumeric() || character == '_';
        let before = line.get(..start).and_then(|text| text.chars().next_back());
        let after = line
            .get(start + word.len()..)
            .and_then(|text| text.chars().next());
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

pub(super) fn forbidden_words(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| file.extension() != "lock") {
        found.extend(by_line(file, &file.text, |line| {
            let word = FORBIDDEN_WORDS.iter().find(|word| has_word(line, word))?;
            Some(format!("{word}: finish it or leave it out"))
        }));
        if file.is_rust() {
            found.extend(by_line(file, &code_of(&file.text), |line| {
                let code = FORBIDDEN_CODE.iter().find(|code| line.contains(**code))?;
                Some(format!("{code}: finish it or leave it out"))
            }));
        }
    }
    found
}

pub(super) fn machine_paths(tree: &Tree) -> Vec<Finding> {
    let judge = |line: &str| {
        let path = MACHINE_PATHS.iter().find(|path| {
            line.match_indices(**path).any(|(start, _)| {
                let before = line.get(..start).and_then(|text| text.chars().next_back());
                !before.is_some_and(|character| {
                    character.is_alphanumeric() || "._-*}$)".contains(character)
                })
            })
        })?;
        Some(format!("{path} is a path of one machine"))
    };
    tree.files
        .iter()
        .flat_map(|file| by_line(file, &file.text, judge))
        .collect()
}

pub(super) fn unsafe_where_allowed(tree: &Tree) -> Vec<Finding> {
    let may_be_unsafe = |path: &str| {
        CRATES
            .iter()
            .filter(|member| member.may_be_unsafe)
            .any(|member| path.starts_with(&format!("crates/{}/", member.name)))
    };
    tree.rust()
        .filter(|file| !may_be_unsafe(&file.path) && !is_excused(&file.path))
        .flat_map(|file| {
            by_line(file, &code_of(&file.text), |line| {
                has_word(line, "unsafe").then(|| "unsafe outside the crates that may".to_owned())
            })
        })
        .collect()
}

/// Tests and benchmarks that count allocations implement `GlobalAlloc`, an unsafe trait; the
/// kernel's own path, against which the driver is measured, and its way to pass commands on are
/// told addresses.
fn is_excused(path: &str) -> bool {
    const NAMES: &[&str] = &[
        "tests/allocation.rs",
        "tests/allocations.rs",
        "benches/src/counting.rs",
        "tests/vm/src/bench/rival.rs",
        "tests/vm/src/passthrough.rs",
    ];
    NAMES.iter().any(|name| path.ends_with(name))
}

pub(super) fn attributes(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.rust() {
        let code = code_of(&file.text);
        found.extend(by_line(file, &code, |line| {
            let line = line.trim_start();
            let allows = line.starts_with("#[allow(") || line.starts_with("#![allow(");
            allows.then(|| "use expect with a reason instead of allow".to_owned())
        }));
        found.extend(expects_without_reason(file, &code));
        found.extend(by_line(file, &file.text, |line| {
            let line = line.trim_start();
            // What writes a fixture anew is a tool for its author, not a test that is skipped.
            let is_skipped = line.starts_with("#[ignore") && !line.contains("= \"writes ");
            is_skipped.then(|| "an ignored test proves nothing".to_owned())
        }));
    }
    found
}

fn expects_without_reason(file: &SourceFile, code: &str) -> Vec<Finding> {
    ["#[expect(", "#![expect("]
        .iter()
        .flat_map(|opening| code.match_indices(opening))
        .filter(|(start, _)| {
            let attribute = code.get(*start..).and_then(|rest| rest.split(")]").next());
            !attribute.is_some_and(|attribute| attribute.contains("reason ="))
        })
        .map(|(start, _)| {
            let line = 1 + code
                .get(..start)
                .map_or(0, |before| before.matches('\n').count());
            Finding::new(file, line, "an expect attribute needs a reason")
        })
        .collect()
}

pub(super) fn glob_imports(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .flat_map(|file| {
            by_line(file, &code_of(&file.text), |line| {
                let line = line.trim();
                let is_import = line.starts_with("use ") || line.starts_with("pub use ");
                (is_import && line.contains("::*") && !GLOBS.contains(&line))
                    .then(|| "import names, not everything".to_owned())
            })
        })
        .collect()
}

pub(super) fn module_docs(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .filter(|file| !file.text.trim_start().starts_with("//!"))
        .map(|file| Finding::new(file, 1, "begins without a module doc"))
        .collect()
}

pub(super) fn white_space(tree: &Tree) -> Vec<Finding> {
    let is_judged = |file: &&SourceFile| !matches!(file.extension(), "lock" | "snap");
    let mut found = Vec::new();
    for file in tree.files.iter().filter(is_judged) {
        found.extend(by_line(file, &file.text, |line| {
            if line.ends_with([' ', '\t', '\r']) {
                return Some("white space at the end of the line".to_owned());
            }
            (file.is_rust() && line.contains('\t')).then(|| "a tab".to_owned())
        }));
        if !file.text.is_empty() && !file.text.ends_with('\n') {
            found.push(Finding::new(file, 0, "the last line has no end"));
        }
    }
    found
}

#[cfg(test)]
mod tests;
