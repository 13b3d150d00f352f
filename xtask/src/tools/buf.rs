//! buf, which lints the protocol definition: a package from npm below the target directory.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::process;
use crate::workspace::Workspace;

/// The package and version, as npm writes it.
const PACKAGE: &str = "@bufbuild/buf@1.75.0";

/// An installed buf.
#[derive(Debug)]
pub(crate) struct Buf {
    program: PathBuf,
}

impl Buf {
    /// Installs buf unless it is there. `None` where npm is missing. Blocks; uses the network.
    ///
    /// # Errors
    /// When npm fails.
    pub(crate) fn install(workspace: &Workspace) -> Result<Option<Self>> {
        let prefix = workspace.target.join("buf");
        let program = prefix.join("node_modules/.bin/buf");
        if !program.exists() {
            if !process::succeeds("npm", &["--version"]) {
                return Ok(None);
            }
            process::run(
                Command::new("npm")
                    .args(["install", "--no-audit", "--no-fund", "--silent", "--prefix"])
                    .arg(&prefix)
                    .arg(PACKAGE),
            )?;
        }
        Ok(Some(Self { program }))
    }

    /// Lints everything below `proto/`. Blocks.
    ///
    /// # Errors
    /// When a rule is broken.
    pub(crate) fn lint(&self, workspace: &Workspace) -> Result<()> {
        process::run(
            Command::new(&self.program)
                .args(["lint", "proto"])
                .current_dir(&workspace.root),
        )
    }
}
