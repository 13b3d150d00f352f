//! `cargo xtask bench`: the benchmark binaries of the benches crate, one after another.

use anyhow::{Context, Result, ensure};

use crate::process;
use crate::workspace::{Target, Workspace};

/// The package whose binaries are the benchmarks.
const PACKAGE: &str = "lode-benches";

/// Builds for release and runs the benchmarks called `names`, or all of them. Blocks.
///
/// # Errors
/// When there is no such benchmark, the build fails or a benchmark does not end well.
pub(crate) fn run(workspace: &Workspace, names: &[String], json: bool) -> Result<()> {
    let package = workspace
        .package(PACKAGE)
        .with_context(|| format!("the workspace has no package {PACKAGE}"))?;
    let binaries: Vec<&str> = package
        .targets
        .iter()
        .filter(|target| target.is_binary())
        .map(|target: &Target| target.name.as_str())
        .collect();
    for name in names {
        ensure!(
            binaries.contains(&name.as_str()),
            "no benchmark {name}; there are: {}",
            binaries.join(", ")
        );
    }
    process::run(workspace.cargo().args([
        "build",
        "--release",
        "--locked",
        "--package",
        PACKAGE,
        "--bins",
    ]))?;
    for binary in binaries {
        if names.is_empty() || names.iter().any(|name| name == binary) {
            let program = workspace.target.join("release").join(binary);
            let mut command = std::process::Command::new(program);
            command.current_dir(&workspace.root);
            if json {
                command.arg("--json");
            }
            process::run(&mut command)?;
        }
    }
    Ok(())
}
