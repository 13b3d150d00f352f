//! `cargo xtask bench`: builds the benchmarks for release and runs them.

use std::process::Command;

use anyhow::Result;

use crate::process;
use crate::workspace::Workspace;

/// The package, and its only binary, that holds all benchmarks.
const PACKAGE: &str = "lode-bench";

/// Builds for release and runs the benchmarks called `names`, or all of them: one line for each
/// figure on standard output. Installs nothing; the benchmarks say what they lack. Blocks.
///
/// # Errors
/// When the build fails, there is no such benchmark or one does not end well.
pub(crate) fn run(workspace: &Workspace, names: &[String], json: bool) -> Result<()> {
    process::run(
        workspace
            .cargo()
            .args(["build", "--release", "--locked", "--package", PACKAGE]),
    )?;
    let program = workspace.target.join("release").join(PACKAGE);
    let mut command = Command::new(program);
    command.current_dir(&workspace.root).args(names);
    if json {
        command.arg("--json");
    }
    process::run(&mut command)
}
