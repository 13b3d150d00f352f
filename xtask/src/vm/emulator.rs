//! QEMU, new enough for the guests, from Debian.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process;
use crate::tools::{apt_get, find_program};

/// The first major version whose NVMe controller has all that the guests ask of it; Debian 12's
/// own is 7.2 and has not, its backports' is 10.0 and has.
const OLDEST: u32 = 10;

/// Finds QEMU, or installs it from the machine's own suite or that suite's backports, whichever
/// is new enough; `directory` takes the list of packages. Blocks; uses the network to install.
///
/// # Errors
/// When neither suite has one that is new enough, or there are no rights to install.
pub(super) fn find_or_install(directory: &Path) -> Result<PathBuf> {
    if let Some(qemu) = find_program(QEMU)
        && is_new_enough(&qemu)?
    {
        return Ok(qemu);
    }
    process::run(&mut apt_get(&["update", "--quiet"]))?;
    let own = process::output(
        Command::new("apt-cache")
            .env("LC_ALL", "C")
            .args(["policy", PACKAGE]),
    )?;
    let own_serves = candidate(&own).is_some_and(|major| major >= OLDEST);
    // Where other QEMU packages are from the backports the two do not mix.
    if !own_serves || process::run(apt_get(INSTALL).arg(PACKAGE)).is_err() {
        install_from_backports(directory)?;
    }
    let qemu = find_program(QEMU).context("QEMU was installed and is not there")?;
    ensure!(
        is_new_enough(&qemu)?,
        "{} is older than QEMU {OLDEST}",
        qemu.display()
    );
    Ok(qemu)
}

fn install_from_backports(directory: &Path) -> Result<()> {
    let suite = backports_suite()?;
    let list = directory.join("backports.list");
    // A list of our own beside the machine's: nothing of it stays behind.
    fs::write(&list, backports_line(&suite))?;
    let own_list = format!("Dir::Etc::SourceList={}", list.display());
    process::run(apt_get(&["-o", &own_list, "update", "--quiet"]).arg("-qq"))?;
    process::run(
        apt_get(&["-o", &own_list])
            .args(INSTALL)
            .args(["-t", &suite, PACKAGE]),
    )
}

fn is_new_enough(qemu: &Path) -> Result<bool> {
    let answer = process::output(Command::new(qemu).arg("--version"))?;
    Ok(major(&answer).is_some_and(|major| major >= OLDEST))
}

/// The major version in what QEMU says of itself.
fn major(answer: &str) -> Option<u32> {
    let (_, version) = answer.split_once("version ")?;
    version.split_once('.')?.0.parse().ok()
}

/// The major version that apt would install, in what it says of a package.
fn candidate(policy: &str) -> Option<u32> {
    let (_, version) = policy.split_once("Candidate: ")?;
    let (_epoch, upstream) = version.split_once(':')?;
    upstream.split_once('.')?.0.parse().ok()
}

fn backports_suite() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("which system this is")?;
    let name = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .context("a system with a code name")?;
    Ok(format!("{}-backports", name.trim_matches('"')))
}

fn backports_line(suite: &str) -> String {
    format!("deb [signed-by={KEYRING}] http://deb.debian.org/debian {suite} main\n")
}

const QEMU: &str = "qemu-system-x86_64";
const PACKAGE: &str = "qemu-system-x86";
const INSTALL: &[&str] = &["install", "--quiet", "--yes", "--no-install-recommends"];
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_qemu_and_apt_say() {
        let answer = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright";
        assert_eq!(major(answer), Some(7));
        assert_eq!(major("QEMU emulator version 10.0.2\n"), Some(10));
        assert_eq!(major("something else"), None);
        let policy = "qemu-system-x86:\n  Installed: (none)\n  Candidate: 1:7.2+dfsg-7+deb12u15\n";
        assert_eq!(candidate(policy), Some(7));
        assert_eq!(candidate("  Candidate: (none)\n  Version table:\n"), None);
        assert_eq!(candidate(""), None);
    }

    #[test]
    fn the_backports_line_names_suite_and_key() {
        assert_eq!(
            backports_line("bookworm-backports"),
            "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] \
             http://deb.debian.org/debian bookworm-backports main\n"
        );
    }
}
