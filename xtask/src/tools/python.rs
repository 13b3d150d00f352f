//! The Python environment of the second, independent client.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::process;
use crate::workspace::{PROGRAMS_VARIABLE, Workspace};

/// A virtual environment with the packages of `tests/python/requirements.txt`.
#[derive(Debug)]
pub(crate) struct Python {
    program: PathBuf,
}

impl Python {
    /// Makes the environment below the target directory unless it is there and current.
    /// Blocks; uses the network.
    ///
    /// # Errors
    /// When Python 3 is missing or a package cannot be installed.
    pub(crate) fn install(workspace: &Workspace) -> Result<Self> {
        let directory = workspace.target.join("python");
        let program = directory.join("bin/python");
        let wanted = workspace.root.join("tests/python/requirements.txt");
        let installed = directory.join("installed-requirements.txt");
        if !program.exists() {
            ensure!(
                process::succeeds("python3", &["--version"]),
                "python3 is missing; on Debian: apt-get install python3 python3-venv"
            );
            process::run(Command::new("python3").args(["-m", "venv"]).arg(&directory))?;
        }
        if !is_same(&wanted, &installed)? {
            process::run(
                Command::new(&program)
                    .args([
                        "-m",
                        "pip",
                        "install",
                        "--quiet",
                        "--disable-pip-version-check",
                    ])
                    .args(["--only-binary", ":all:", "--requirement"])
                    .arg(&wanted),
            )?;
            std::fs::copy(&wanted, &installed)?;
        }
        Ok(Self { program })
    }

    /// Runs every test below `tests/python` against the programs in `programs`. Blocks.
    ///
    /// # Errors
    /// When a test fails.
    pub(crate) fn run_tests(&self, workspace: &Workspace, programs: &Path) -> Result<()> {
        process::run(
            Command::new(&self.program)
                .args([
                    "-m",
                    "unittest",
                    "discover",
                    "--start-directory",
                    "tests/python",
                ])
                .env("PYTHONDONTWRITEBYTECODE", "1")
                .env(PROGRAMS_VARIABLE, programs)
                .current_dir(&workspace.root),
        )
    }
}

fn is_same(wanted: &Path, installed: &Path) -> Result<bool> {
    if !installed.exists() {
        return Ok(false);
    }
    Ok(std::fs::read(wanted)? == std::fs::read(installed)?)
}
