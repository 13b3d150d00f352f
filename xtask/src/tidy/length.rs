//! How long a file and a line may be.

use super::Finding;
use super::tree::{SourceFile, Tree};

/// Beyond this a file needs a reason in [`LONG_FILES`].
const LINES_ASK: usize = 400;
/// Below this a reason is stale. A file near the limit may cross it either way.
const LINES_WELL_BELOW: usize = 350;
/// Beyond this it is split.
const LINES_MAX: usize = 700;
const COLUMNS_MAX: usize = 100;

/// Files of more than [`LINES_ASK`] lines, and why they read better whole.
const LONG_FILES: &[(&str, &str)] = &[(
    "crates/lode-engine/src/host.rs",
    "what a pool's host owns and the one loop that drives it are read together",
)];

/// What counts: everything up to the file's own tests.
fn lines_of(file: &SourceFile) -> usize {
    let mut previous = "";
    for (number, line) in file.lines() {
        if previous == "#[cfg(test)]" && line.starts_with("mod tests {") {
            return number - 2;
        }
        previous = line;
    }
    file.text.lines().count()
}

pub(super) fn lines_per_file(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.rust() {
        let lines = lines_of(file);
        let is_excused = LONG_FILES.iter().any(|(path, _)| *path == file.path);
        if lines > LINES_MAX {
            found.push(Finding::new(
                file,
                0,
                format!("{lines} lines; split at {LINES_MAX}"),
            ));
        } else if lines > LINES_ASK && !is_excused && !file.is_test() {
            found.push(Finding::new(
                file,
                0,
                format!("{lines} lines; above {LINES_ASK} it needs a reason in LONG_FILES"),
            ));
        } else if lines < LINES_WELL_BELOW && is_excused {
            found.push(Finding::new(
                file,
                0,
                "needs no entry in LONG_FILES any more",
            ));
        }
    }
    found
}

pub(super) fn columns_per_line(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in &tree.files {
        if !matches!(file.extension(), "rs" | "proto" | "py" | "sh") {
            continue;
        }
        for (number, line) in file.lines() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX {
                found.push(Finding::new(file, number, format!("{columns} columns")));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_of(lines: usize) -> String {
        "x\n".repeat(lines)
    }

    #[test]
    fn a_long_file_is_found_and_its_tests_do_not_count() {
        assert!(lines_per_file(&Tree::of(&[("a.rs", &file_of(400))])).is_empty());
        assert_eq!(
            lines_per_file(&Tree::of(&[("a.rs", &file_of(401))])).len(),
            1
        );
        assert_eq!(
            lines_per_file(&Tree::of(&[("tests/a.rs", &file_of(701))])).len(),
            1
        );
        let tested = format!(
            "{}#[cfg(test)]\nmod tests {{\n{}}}\n",
            file_of(399),
            file_of(500)
        );
        assert!(lines_per_file(&Tree::of(&[("a.rs", &tested)])).is_empty());
    }

    #[test]
    fn a_wide_line_is_found_in_characters_not_bytes() {
        let just = "ü".repeat(100);
        assert!(columns_per_line(&Tree::of(&[("a.rs", &just)])).is_empty());
        let wide = "u".repeat(101);
        assert_eq!(columns_per_line(&Tree::of(&[("a.rs", &wide)])).len(), 1);
        assert!(columns_per_line(&Tree::of(&[("a.md", &wide)])).is_empty());
    }
}
