//! `cargo xtask demo`: installs what the demonstration calls and runs it.

use anyhow::Result;

use crate::process;
use crate::tools;
use crate::workspace::Workspace;

/// Builds for release and runs the demonstration, which shows its steps and ends with
/// `demo: ok`. Blocks.
///
/// # Errors
/// When a tool cannot be installed, the build fails or the demonstration does.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    tools::install_debian_packages()?;
    process::run(workspace.cargo().args([
        "run",
        "--release",
        "--locked",
        "--quiet",
        "--package",
        "lode-tests",
        "--bin",
        "lodestore-demo",
    ]))
}
