//! The shape of a crate's manifest: lints and dependency versions come from the workspace.

use super::Finding;
use super::tree::{SourceFile, Tree};

pub(super) fn shape(tree: &Tree) -> Vec<Finding> {
    tree.files
        .iter()
        .filter(|file| file.path.ends_with("/Cargo.toml") && !file.path.starts_with("fuzz/"))
        .flat_map(judge)
        .collect()
}

fn judge(file: &SourceFile) -> Vec<Finding> {
    let mut found = Vec::new();
    if !file.text.contains("[lints]\nworkspace = true\n") {
        found.push(Finding::new(file, 0, "does not take the workspace's lints"));
    }
    let mut is_dependencies = false;
    for (number, line) in file.lines() {
        if line.starts_with('[') {
            is_dependencies = line.ends_with("dependencies]");
        } else if is_dependencies && is_entry(line) && !line.contains("workspace = true") {
            found.push(Finding::new(
                file,
                number,
                "the version belongs in the workspace's table",
            ));
        }
    }
    found
}

/// Whether a line begins an entry of a table; continuation lines of an array do not.
fn is_entry(line: &str) -> bool {
    line.starts_with(|character: char| character.is_ascii_alphabetic()) && line.contains('=')
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[dependencies]\na.workspace = true\n\n[lints]\nworkspace = true\n";

    #[test]
    fn a_version_of_its_own_or_missing_lints_are_found() {
        assert!(shape(&Tree::of(&[("crates/a/Cargo.toml", GOOD)])).is_empty());
        let own = GOOD.replace("a.workspace = true", "a = \"1\"");
        assert_eq!(shape(&Tree::of(&[("crates/a/Cargo.toml", &own)])).len(), 1);
        let lax = GOOD.replace("[lints]", "[other]");
        assert_eq!(shape(&Tree::of(&[("crates/a/Cargo.toml", &lax)])).len(), 1);
    }

    #[test]
    fn a_table_entry_with_features_is_accepted() {
        let text = GOOD.replace(
            "a.workspace = true",
            "a = { workspace = true, features = [\n    \"x\",\n] }",
        );
        assert!(shape(&Tree::of(&[("crates/a/Cargo.toml", &text)])).is_empty());
    }
}
