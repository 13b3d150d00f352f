//! cargo-nextest, which runs the tests.

use anyhow::Result;

use crate::process;
use crate::workspace::Workspace;

/// The version that is built when none is installed.
const VERSION: &str = "0.9.143";

/// Installs cargo-nextest from source unless one is there. Blocks; uses the network.
///
/// # Errors
/// When the build fails.
pub(crate) fn install_nextest(workspace: &Workspace) -> Result<()> {
    if process::succeeds("cargo-nextest", &["--version"]) {
        return Ok(());
    }
    process::run(workspace.cargo().args([
        "install",
        "cargo-nextest",
        "--locked",
        "--version",
        VERSION,
    ]))
}
