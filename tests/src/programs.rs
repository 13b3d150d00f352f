//! Where the programs under test lie.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Set by `cargo xtask test`, which has built the programs already.
const VARIABLE: &str = "LODESTORE_PROGRAMS";

/// The path of a program of this workspace: `lodestored` or `lodectl`.
///
/// Builds both first unless they were built for this run, so that a test never judges an old one.
///
/// # Panics
/// When the build fails.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER
        .get_or_init(|| std::env::var_os(VARIABLE).map_or_else(build, PathBuf::from))
        .join(name)
}

/// Builds into the target directory that this test lies in.
fn build() -> PathBuf {
    let test = std::env::current_exe().expect("a process knows its program");
    let profile = test
        .ancestors()
        .find(|folder| folder.join("deps").is_dir())
        .expect("a test lies in <target>/<profile>/deps");
    let target = profile.parent().expect("a profile's folder has a parent");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args([
            "build",
            "--quiet",
            "--package",
            "lodestored",
            "--package",
            "lodectl",
        ])
        .arg("--target-dir")
        .arg(target)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")));
    if profile.ends_with("release") {
        command.arg("--release");
    }
    let status = command.status().expect("cargo can be started");
    assert!(status.success(), "building the programs failed: {status}");
    profile.to_owned()
}
