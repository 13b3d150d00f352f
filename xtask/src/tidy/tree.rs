//! The files that the rules judge.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;

/// A text file of the tree.
#[derive(Clone, Debug)]
pub(super) struct SourceFile {
    /// Relative to the root, with `/`.
    pub(super) path: String,
    pub(super) text: String,
}

impl SourceFile {
    #[cfg(test)]
    pub(super) fn new(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    pub(super) fn extension(&self) -> &str {
        Path::new(&self.path)
            .extension()
            .and_then(|extension| extension.to_str())
            .unwrap_or_default()
    }

    pub(super) fn is_rust(&self) -> bool {
        self.extension() == "rs"
    }

    /// Whether the whole file is test code: tests and simulations.
    pub(super) fn is_test(&self) -> bool {
        self.path
            .split('/')
            .any(|part| matches!(part, "tests" | "tests.rs" | "sim"))
    }

    /// Its lines, numbered from 1.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line))
    }
}

/// Every text file below the root that git tracks or would track.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) root: PathBuf,
    pub(super) files: Vec<SourceFile>,
}

impl Tree {
    /// Reads the tree. Files that are not UTF-8 (images of disks, pictures) are left out.
    pub(super) fn load(root: &Path) -> Result<Self> {
        let listed = process::output(Command::new("git").current_dir(root).args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]))?;
        // A file with a merge conflict or a deletion is listed twice or does not exist.
        let paths: BTreeSet<&str> = listed.split('\0').filter(|path| !path.is_empty()).collect();
        let mut files = Vec::new();
        for path in paths {
            let full = root.join(path);
            if !full.is_file() {
                continue;
            }
            let bytes = std::fs::read(&full).with_context(|| format!("reading {path}"))?;
            if let Ok(text) = String::from_utf8(bytes) {
                files.push(SourceFile {
                    path: path.to_owned(),
                    text,
                });
            }
        }
        Ok(Self {
            root: root.to_owned(),
            files,
        })
    }

    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        Self {
            root: PathBuf::from("/"),
            files: files
                .iter()
                .map(|(path, text)| SourceFile::new(path, text))
                .collect(),
        }
    }

    pub(super) fn rust(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.iter().filter(|file| file.is_rust())
    }
}
