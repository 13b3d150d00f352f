//! What this machine lacks for a controller behind VFIO, and the command that mends it.
//!
//! Owns: [`examine`], which looks at the machine and at each controller asked about and returns
//! one [`Check`] for each thing that has to be so. It needs no privilege: what it may not see it
//! says. It changes nothing and opens no device. Reads files; blocks on nothing else.

mod access;
mod controller;
mod machine;
mod memory;

use std::fmt;

use crate::address::PciAddress;
use crate::error::VfioError;
use crate::sysfs::Sysfs;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// As it should be.
    Good,
    /// It works without, worse.
    Advice,
    /// It cannot be seen from here.
    Unknown,
    /// It does not work without.
    Missing,
}

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Good => "good",
            Self::Advice => "advice",
            Self::Unknown => "unknown",
            Self::Missing => "missing",
        })
    }
}

/// One thing that has to be so, and whether it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was looked at, stable for scripts (`iommu`, `group`, …).
    pub name: &'static str,
    /// The controller that it is about; `None` for the whole machine.
    pub subject: Option<PciAddress>,
    /// How it came out.
    pub status: Status,
    /// What was found or what is missing, one sentence.
    pub finding: String,
    /// The command or setting that mends it.
    pub remedy: Option<String>,
}

impl Check {
    fn good(name: &'static str, finding: impl Into<String>) -> Self {
        Self {
            name,
            subject: None,
            status: Status::Good,
            finding: finding.into(),
            remedy: None,
        }
    }

    fn bad(
        name: &'static str,
        status: Status,
        finding: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            name,
            subject: None,
            status,
            finding: finding.into(),
            remedy: Some(remedy.into()),
        }
    }

    fn about(mut self, subject: PciAddress) -> Self {
        self.subject = Some(subject);
        self
    }
}

/// What is to be examined.
#[derive(Clone, Debug)]
pub struct Examination {
    /// The machine.
    pub sysfs: Sysfs,
    /// The controllers in question; all of the machine's when empty.
    pub controllers: Vec<PciAddress>,
    /// How much memory the daemon will want to lock for each controller, in bytes.
    pub needed_locked_bytes: u64,
    /// Who asks.
    pub caller: Caller,
}

/// The process whose rights count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// RLIMIT_MEMLOCK in bytes; `None` for no limit.
    pub memory_lock_limit_bytes: Option<u64>,
    /// Its effective user.
    pub user: u32,
    /// Its effective group and supplementary groups.
    pub groups: Vec<u32>,
}

impl Caller {
    /// This process.
    #[must_use]
    pub fn this_process() -> Self {
        use rustix::process::{Resource, getegid, geteuid, getgroups, getrlimit};
        let mut groups = vec![getegid().as_raw()];
        // The only failure is a kernel without supplementary groups.
        groups.extend(getgroups().unwrap_or_default().iter().map(|id| id.as_raw()));
        Self {
            memory_lock_limit_bytes: getrlimit(Resource::Memlock).current,
            user: geteuid().as_raw(),
            groups,
        }
    }

    const fn is_root(&self) -> bool {
        self.user == 0
    }
}

/// Looks at the machine, then at each controller. The order of the checks is that in which they
/// have to be mended.
///
/// # Errors
/// When sysfs can be listed but not read.
pub fn examine(examination: &Examination) -> Result<Vec<Check>, VfioError> {
    let mut checks = machine::checks(examination)?;
    checks.extend(memory::checks(examination)?);
    checks.extend(controller::checks(examination)?);
    Ok(checks)
}

/// The worst of all outcomes: what a script goes by.
#[must_use]
pub fn worst(checks: &[Check]) -> Status {
    checks
        .iter()
        .map(|check| check.status)
        .max()
        .unwrap_or(Status::Good)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::sysfs::tests::FakeTree;

    pub(crate) fn examination(tree: &FakeTree) -> Examination {
        Examination {
            sysfs: tree.sysfs(),
            controllers: Vec::new(),
            needed_locked_bytes: 64 << 20,
            caller: Caller {
                memory_lock_limit_bytes: Some(8 << 20),
                user: 1000,
                groups: vec![1000],
            },
        }
    }

    /// The one check called `name`.
    pub(crate) fn find<'a>(checks: &'a [Check], name: &str) -> &'a Check {
        let mut found = checks.iter().filter(|check| check.name == name);
        let check = found.next().unwrap_or_else(|| panic!("no check {name}"));
        assert!(found.next().is_none(), "one check {name}");
        check
    }

    #[test]
    fn an_empty_machine_is_examined_without_an_error_and_lacks_everything() {
        let tree = FakeTree::new();
        let checks = examine(&examination(&tree)).expect("checks");
        assert_eq!(worst(&checks), Status::Missing);
        for check in &checks {
            assert_eq!(
                check.status == Status::Good,
                check.remedy.is_none(),
                "{check:?}"
            );
        }
        assert_eq!(find(&checks, "iommu").status, Status::Missing);
        assert_eq!(find(&checks, "controllers").status, Status::Missing);
    }

    #[test]
    fn the_worst_outcome_counts() {
        let good = Check::good("a", "");
        let advice = Check::bad("b", Status::Advice, "", "");
        assert_eq!(worst(&[]), Status::Good);
        assert_eq!(worst(&[advice.clone(), good.clone()]), Status::Advice);
        let missing = Check::bad("c", Status::Missing, "", "");
        assert_eq!(worst(&[good, missing, advice]), Status::Missing);
    }
}
