//! The guest's programs: those that the other tests run, without their debug information, and the
//! libraries that they are linked to.
//!
//! Not built statically: that would be a second build of every dependency beside the one that the
//! tests have anyway, minutes of each run in CI.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::initramfs::Program;
use crate::process;
use crate::workspace::Workspace;

/// How programs are built.
#[derive(Clone, Copy, Debug)]
pub(super) struct Build<'a> {
    /// Takes the copies for the guest.
    pub(super) directory: &'a Path,
    pub(super) features: &'a [&'a str],
    pub(super) profile: Profile,
}

/// For what they are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Profile {
    /// For tests: as the other tests run them.
    Debug,
    /// For measuring: as they are released.
    Release,
}

impl Build<'_> {
    /// Builds `programs`, each with its place in the guest and its package, and finds what they
    /// need.
    ///
    /// # Errors
    /// When they cannot be built or read.
    pub(super) fn run(
        &self,
        workspace: &Workspace,
        programs: &[(&str, &str)],
    ) -> Result<Vec<Program>> {
        let mut cargo = workspace.cargo();
        cargo.args(["build", "--locked", "--quiet"]);
        for feature in self.features {
            cargo.args(["--features", feature]);
        }
        match (self.profile, self.features) {
            // To the letter what the other tests build, so that nothing is built anew.
            (Profile::Debug, []) => {
                cargo.args(["--workspace", "--bins"]);
            }
            _ => {
                for (_, package) in programs {
                    cargo.args(["--package", package]);
                }
            }
        }
        let built = match self.profile {
            Profile::Debug => workspace.debug_programs(),
            Profile::Release => {
                cargo.arg("--release");
                workspace.target.join("release")
            }
        };
        process::run(&mut cargo)?;
        let mut found = Vec::new();
        let mut libraries = BTreeMap::new();
        for (place, package) in programs {
            let program = built.join(package);
            let linked = process::output(Command::new("ldd").arg(&program))?;
            libraries.extend(linked.lines().filter_map(library));
            let stripped = self.directory.join(package);
            let mut strip = Command::new("strip");
            process::output(strip.arg("-o").args([&stripped, &program]))?;
            found.push(((*place).to_owned(), stripped));
        }
        found.extend(libraries);
        Ok(found)
    }
}

/// The library in a line of `ldd`: its place in the guest, where the loader looks for it, and the
/// file. The kernel's own has no file.
fn library(line: &str) -> Option<Program> {
    let path = line.split_whitespace().find(|word| word.starts_with('/'))?;
    Some((path.trim_start_matches('/').to_owned(), PathBuf::from(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_put_where_the_loader_looks_for_it() {
        let place = |line| library(line).map(|(place, _)| place);
        assert_eq!(place("\tlinux-vdso.so.1 (0x00007ffd5a5f2000)"), None);
        assert_eq!(
            place("\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f644f81e000)").as_deref(),
            Some("lib/x86_64-linux-gnu/libc.so.6")
        );
        assert_eq!(
            place("\t/lib64/ld-linux-x86-64.so.2 (0x00007f6450cce000)").as_deref(),
            Some("lib64/ld-linux-x86-64.so.2")
        );
    }
}
