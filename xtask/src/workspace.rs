//! The workspace as cargo sees it: where it lies, its packages and what they depend on.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::process;

/// The environment variable that tells a test where the programs under test lie.
pub(crate) const PROGRAMS_VARIABLE: &str = "LODESTORE_PROGRAMS";

/// The parts of `cargo metadata` that the commands use.
#[derive(Debug, Deserialize)]
pub(crate) struct Workspace {
    #[serde(rename = "workspace_root")]
    pub(crate) root: PathBuf,
    #[serde(rename = "target_directory")]
    pub(crate) target: PathBuf,
    pub(crate) packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) kind: DependencyKind,
}

/// What a dependency serves. Cargo writes `null` for a normal one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DependencyKind {
    #[default]
    Normal,
    Development,
    Build,
}

impl<'de> Deserialize<'de> for DependencyKind {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Option::<String>::deserialize(deserializer)?.as_deref() {
            None => Ok(Self::Normal),
            Some("dev") => Ok(Self::Development),
            Some("build") => Ok(Self::Build),
            Some(other) => Err(serde::de::Error::unknown_variant(other, &["dev", "build"])),
        }
    }
}

impl Workspace {
    /// Asks cargo about the workspace that this program was built from.
    ///
    /// # Errors
    /// When cargo cannot read the workspace's manifests.
    pub(crate) fn load() -> Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
        let text = process::output(
            Command::new(cargo_program())
                .args(["metadata", "--format-version", "1", "--no-deps"])
                .arg("--manifest-path")
                .arg(manifest),
        )?;
        serde_json::from_str(&text).context("the output of cargo metadata")
    }

    /// A cargo command that runs at the workspace's root.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new(cargo_program());
        command.current_dir(&self.root);
        command
    }

    /// The package called `name`, when the workspace has one.
    pub(crate) fn package(&self, name: &str) -> Option<&Package> {
        self.packages.iter().find(|package| package.name == name)
    }

    /// Where a debug build puts its programs.
    pub(crate) fn debug_programs(&self) -> PathBuf {
        self.target.join("debug")
    }
}

/// The cargo that started this program, or the first one on the path.
fn cargo_program() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}
