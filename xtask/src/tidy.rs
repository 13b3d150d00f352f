//! `cargo xtask tidy`: the house rules that neither rustfmt nor clippy knows.
//!
//! Each rule is a function from the tree to findings. It reads what git tracks or would track,
//! so build output is never judged. Rules look at code with comments and text blanked out
//! ([`code_of`]), except those about words, which look at everything.

mod code;
mod history;
mod length;
mod links;
mod manifest;
mod names;
mod promises;
mod source;
mod tree;

use std::fmt;

use anyhow::{Result, bail};

use crate::layers;
use crate::workspace::Workspace;
use code::code_of;
use tree::{SourceFile, Tree};

/// One broken rule at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    /// From 1; 0 when it concerns the whole file.
    line: usize,
    message: String,
}

impl Finding {
    fn new(file: &SourceFile, line: usize, message: impl Into<String>) -> Self {
        Self {
            path: file.path.clone(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(formatter, "{}: {}", self.path, self.message),
            line => write!(formatter, "{}:{line}: {}", self.path, self.message),
        }
    }
}

type Rule = fn(&Tree) -> Vec<Finding>;

const RULES: &[Rule] = &[
    length::lines_per_file,
    length::columns_per_line,
    names::forbidden_names,
    source::forbidden_words,
    source::machine_paths,
    source::unsafe_where_allowed,
    source::attributes,
    source::glob_imports,
    source::module_docs,
    source::white_space,
    manifest::shape,
    links::resolve,
    promises::name_real_tests,
];

/// Judges the working tree and the history. Blocks.
///
/// # Errors
/// When a rule is broken (every finding is printed first) or git cannot be asked.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let tree = Tree::load(&workspace.root)?;
    let mut broken: Vec<String> = RULES
        .iter()
        .flat_map(|rule| rule(&tree))
        .map(|finding| finding.to_string())
        .collect();
    broken.extend(history::subjects(&workspace.root)?);
    broken.extend(layers::violations(workspace));
    if broken.is_empty() {
        println!("tidy: ok ({} files)", tree.files.len());
        return Ok(());
    }
    for line in &broken {
        println!("{line}");
    }
    bail!("tidy: {} rules broken", broken.len())
}
