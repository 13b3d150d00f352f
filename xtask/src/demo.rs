//! `cargo xtask demo`: installs what the demonstration calls, builds and runs it.

use std::process::Command;

use anyhow::Result;

use crate::process;
use crate::tools;
use crate::workspace::{PROGRAMS_VARIABLE, Workspace};

/// Builds for release and runs the demonstration, which shows its steps and ends with
/// `demo: ok`. Blocks.
///
/// # Errors
/// When a tool cannot be installed, the build fails or the demonstration does.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    tools::install_debian_packages()?;
    let mut build = workspace.cargo();
    build.args(["build", "--release", "--locked", "--bins"]);
    for package in ["lodestored", "lodectl", "lode-tests"] {
        build.args(["--package", package]);
    }
    process::run(&mut build)?;
    let programs = workspace.target.join("release");
    process::run(
        Command::new(programs.join("lodestore-demo"))
            .env(PROGRAMS_VARIABLE, &programs)
            .current_dir(&workspace.root),
    )
}
