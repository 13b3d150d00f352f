//! Names that say nothing about what a file holds.

use super::Finding;
use super::tree::Tree;

const FORBIDDEN: &[&str] = &[
    "common", "helper", "helpers", "misc", "prelude", "util", "utils", "mod",
];

pub(super) fn forbidden_names(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .filter_map(|file| {
            file.path
                .split('/')
                .map(|part| part.strip_suffix(".rs").unwrap_or(part))
                .find(|part| FORBIDDEN.contains(part))
                .map(|part| Finding::new(file, 0, format!("`{part}` names no concept")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_concept_is_found() {
        for path in ["a/utils.rs", "a/common/b.rs", "a/b/mod.rs", "prelude.rs"] {
            assert_eq!(forbidden_names(&Tree::of(&[(path, "")])).len(), 1, "{path}");
        }
        assert!(forbidden_names(&Tree::of(&[("a/module.rs", "")])).is_empty());
    }
}
