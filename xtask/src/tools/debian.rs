//! Programs that come from Debian packages.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;

/// A program that a test calls, the package that brings it, and how to ask whether it is there.
struct Program {
    name: &'static str,
    package: &'static str,
}

const PROGRAMS: &[Program] = &[
    Program {
        name: "mke2fs",
        package: "e2fsprogs",
    },
    Program {
        name: "e2fsck",
        package: "e2fsprogs",
    },
    Program {
        name: "promtool",
        package: "prometheus",
    },
];

/// Where programs are looked for besides the path: an ordinary user's path lacks the second pair.
const DIRECTORIES: &[&str] = &["/usr/bin", "/bin", "/usr/sbin", "/sbin"];

/// Installs the packages whose programs are missing. Blocks; uses the network only then.
///
/// # Errors
/// When apt-get fails or a program is still missing afterwards.
pub(crate) fn install_debian_packages() -> Result<()> {
    let mut packages: Vec<&str> = PROGRAMS
        .iter()
        .filter(|program| find(program.name).is_none())
        .map(|program| program.package)
        .collect();
    packages.dedup();
    // Debian's Python can make no environment without this package.
    if !process::succeeds("python3", &["-c", "import ensurepip"]) {
        packages.push("python3-venv");
    }
    if packages.is_empty() {
        return Ok(());
    }
    process::run(&mut apt_get(&["update", "--quiet"]))?;
    let mut install = apt_get(&["install", "--quiet", "--yes", "--no-install-recommends"]);
    // Services that a package would start are of no use to a test.
    install.env("RUNLEVEL", "1").args(&packages);
    process::run(&mut install)?;
    for program in PROGRAMS {
        find(program.name).with_context(|| {
            format!(
                "{} is missing although package {} was installed",
                program.name, program.package
            )
        })?;
    }
    Ok(())
}

/// An apt-get that waits for another one's lock and asks nothing; through sudo where needed.
pub(crate) fn apt_get(arguments: &[&str]) -> Command {
    let mut command = if is_root() {
        Command::new("apt-get")
    } else {
        let mut command = Command::new("sudo");
        command.args(["--non-interactive", "--preserve-env", "apt-get"]);
        command
    };
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["-o", "DPkg::Lock::Timeout=300"])
        .args(arguments);
    command
}

fn is_root() -> bool {
    process::output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}

/// The path of an installed program.
pub(crate) fn find(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(
            DIRECTORIES
                .iter()
                .map(|directory| Path::new(directory).to_owned()),
        )
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_only_when_it_exists() {
        assert!(find("sh").is_some());
        assert!(find("lodestore-no-such-program").is_none());
    }
}
