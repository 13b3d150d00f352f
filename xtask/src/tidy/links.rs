//! Links in the documents: a relative one must lead to a file, and its anchor to a heading.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use super::Finding;
use super::tree::{SourceFile, Tree};

pub(super) fn resolve(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| file.extension() == "md") {
        for (number, target) in targets(file) {
            if let Some(message) = judge(tree, file, &target) {
                found.push(Finding::new(file, number, message));
            }
        }
    }
    found
}

/// The relative link targets outside code blocks, with their lines.
fn targets(file: &SourceFile) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_code = false;
    for (number, line) in file.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        for (start, opening) in line.match_indices("](") {
            let rest = line.get(start + opening.len()..).unwrap_or_default();
            let target = rest.split([')', ' ']).next().unwrap_or_default();
            let is_relative = !target.contains("://") && !target.starts_with("mailto:");
            if is_relative && !target.is_empty() {
                found.push((number, target.to_owned()));
            }
        }
    }
    found
}

fn judge(tree: &Tree, file: &SourceFile, target: &str) -> Option<String> {
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (target, None),
    };
    let full = if path.is_empty() {
        file.path.clone()
    } else {
        normal(&Path::new(&file.path).parent()?.join(path))
    };
    let exists = tree.files.iter().any(|other| other.path == full)
        || tree
            .files
            .iter()
            .any(|other| other.path.starts_with(&format!("{full}/")))
        || tree.root.join(&full).is_file();
    if !exists {
        return Some(format!("link to {target}: there is no {full}"));
    }
    let anchor = anchor?;
    let linked = tree.files.iter().find(|other| other.path == full)?;
    (linked.extension() == "md" && !headings(linked).contains(anchor))
        .then(|| format!("link to {target}: no such heading"))
}

/// `a/b/../c` as `a/c`.
fn normal(path: &Path) -> String {
    let mut parts: Vec<String> = Vec::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                parts.pop();
            }
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    parts.join("/")
}

/// The anchors of a document's headings, as the usual renderers make them.
fn headings(file: &SourceFile) -> BTreeSet<String> {
    file.lines()
        .filter(|(_, line)| line.starts_with('#'))
        .map(|(_, line)| {
            line.trim_start_matches('#')
                .trim()
                .to_lowercase()
                .chars()
                .filter(|character| character.is_alphanumeric() || " -_".contains(*character))
                .map(|character| if character == ' ' { '-' } else { character })
                .collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_in(text: &str) -> usize {
        resolve(&Tree::of(&[
            ("docs/a.md", text),
            ("docs/b.md", "# Two Words, here\n"),
            ("src/c.rs", ""),
        ]))
        .len()
    }

    #[test]
    fn a_link_that_leads_somewhere_is_accepted() {
        assert_eq!(found_in("[x](b.md) [x](../src/c.rs) [x](../src)\n"), 0);
        assert_eq!(
            found_in("[x](b.md#two-words-here) [x](https://example.org/y)\n"),
            0
        );
        assert_eq!(found_in("```\n[x](gone.md)\n```\n"), 0);
    }

    #[test]
    fn a_link_to_nothing_is_found() {
        assert_eq!(found_in("[x](gone.md) [x](b.md#three)\n"), 2);
        assert_eq!(found_in("[x](#no-heading-here)\n"), 1);
    }
}
