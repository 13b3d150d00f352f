//! `cargo xtask sim`: plays seeds of the deterministic simulation.

use anyhow::Result;

use crate::process;
use crate::workspace::Workspace;

/// The package, and its only binary, that holds the simulation.
const PACKAGE: &str = "lode-sim";

/// Builds for release with debug assertions, and plays `seeds`: the first that finds something is
/// shown with its history and how to play it again. Blocks.
///
/// # Errors
/// When the build fails or a seed finds something.
pub(crate) fn run(workspace: &Workspace, seeds: &str) -> Result<()> {
    process::run(
        workspace
            .cargo()
            .args(["run", "--release", "--locked", "--package", PACKAGE])
            .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
            .args(["--", "--seeds", seeds]),
    )
}
