//! `cargo xtask check`: everything that judges the source without running it.

use anyhow::Result;

use crate::process;
use crate::tidy;
use crate::tools::Buf;
use crate::workspace::Workspace;

/// Runs every check and stops at the first that fails. Blocks.
///
/// # Errors
/// When a check fails; its own output says why.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    process::run(workspace.cargo().args(["fmt", "--all", "--check"]))?;
    tidy::run(workspace)?;
    process::run(workspace.cargo().args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ]))?;
    // The one optional way to a controller, with everything that passes it through.
    let mut iommufd = workspace.cargo();
    iommufd.args([
        "clippy",
        "--all-targets",
        "--locked",
        "--features",
        "iommufd",
    ]);
    for package in ["lode-vfio", "lodestored", "lodectl", "lode-vm-guest"] {
        iommufd.args(["--package", package]);
    }
    process::run(iommufd.args(["--", "-D", "warnings"]))?;
    process::run(
        workspace
            .cargo()
            .args(["doc", "--workspace", "--no-deps", "--locked"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )?;
    match Buf::install(workspace)? {
        Some(buf) => buf.lint(workspace)?,
        None => println!("check: SKIPPED the protocol lint: npm is not installed, so buf is not"),
    }
    println!("check: ok");
    Ok(())
}
