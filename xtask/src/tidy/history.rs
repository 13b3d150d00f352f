//! The subjects of the commits.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::process;

const SUBJECT_LENGTH_MAX: usize = 72;

/// Commits whose subjects were too long when this was first checked, or were published before
/// it was; history is not rewritten.
const KNOWN: &[&str] = &[
    "1c81e7ea7dbc5c0979347ed9f22e451d04267808",
    "68cd823bd0fdc67a1f03b1a1f8db1b5d75e33ae5",
    "cc6a27d20f2f287a7369c551221c3d9873070300",
];

/// Every commit whose subject breaks the rule, one sentence each.
///
/// # Errors
/// When git cannot be asked.
pub(super) fn subjects(root: &Path) -> Result<Vec<String>> {
    let log = process::output(Command::new("git").current_dir(root).args([
        "log",
        "--no-merges",
        "--format=%H %s",
    ]))?;
    Ok(log.lines().filter_map(judge).collect())
}

fn judge(line: &str) -> Option<String> {
    let (commit, subject) = line.split_once(' ')?;
    if KNOWN.contains(&commit) {
        return None;
    }
    let length = subject.chars().count();
    if length > SUBJECT_LENGTH_MAX {
        return Some(format!(
            "commit {commit}: the subject has {length} characters"
        ));
    }
    let has_place = subject
        .split_once(": ")
        .is_some_and(|(place, rest)| is_place(place) && !rest.is_empty());
    if !has_place || subject.ends_with('.') {
        return Some(format!(
            "commit {commit}: the subject is not `crate: imperative`"
        ));
    }
    None
}

/// One crate or folder, or several with commas.
fn is_place(place: &str) -> bool {
    place
        .split(", ")
        .all(|name| !name.is_empty() && !name.contains(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_has_a_place_and_a_limit() {
        assert_eq!(judge("abc lode-bus: map memory"), None);
        assert_eq!(judge("abc lode-bus, lode-block: map memory"), None);
        assert!(judge("abc map memory").is_some());
        assert!(judge("abc in lode-bus: map memory").is_some());
        assert!(judge("abc lode-bus: map memory.").is_some());
        let long = format!("abc lode-bus: {}", "x".repeat(70));
        assert!(judge(&long).is_some());
    }
}
