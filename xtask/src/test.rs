//! `cargo xtask test`: every test, after installing what they need.
//!
//! nextest runs last, so that its summary is the closing line.

use anyhow::Result;

use crate::process;
use crate::tools::{self, Python};
use crate::vm;
use crate::workspace::{PROGRAMS_VARIABLE, Workspace};

/// Installs the tools and runs the doc tests, the Python client's tests, the guests and the Rust
/// tests. Where no guest can run, that is said and the rest goes on. Blocks.
///
/// # Errors
/// When a tool cannot be installed or a test fails.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    tools::install_nextest(workspace)?;
    tools::install_debian_packages()?;
    let programs = workspace.debug_programs();
    process::run(
        workspace
            .cargo()
            .args(["build", "--workspace", "--bins", "--locked"]),
    )?;
    process::run(
        workspace
            .cargo()
            .args(["test", "--workspace", "--doc", "--locked", "--quiet"]),
    )?;
    if workspace.root.join("tests/python").is_dir() {
        Python::install(workspace)?.run_tests(workspace, &programs)?;
    }
    vm::run(workspace, &[], None)?;
    process::run(
        workspace
            .cargo()
            .args(["nextest", "run", "--workspace", "--locked"])
            .env(PROGRAMS_VARIABLE, &programs),
    )
}
