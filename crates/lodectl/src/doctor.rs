//! `lodectl doctor`: what this machine lacks for a real controller.

use anyhow::{Result, bail};
use lode_vfio::doctor::{self, Caller, Check, Examination, Status};
use lode_vfio::sysfs::Sysfs;
use serde::Serialize;

use crate::cli::DoctorArguments;
use crate::output::Output;

#[derive(Serialize)]
struct CheckView {
    name: &'static str,
    /// The controller; `null` for the whole machine.
    controller: Option<String>,
    status: String,
    finding: String,
    remedy: Option<String>,
}

/// Shows every check. Reads files of the machine; asks no server.
///
/// # Errors
/// When something is missing, so that a script can go by the exit code.
pub(crate) fn run(output: &Output, arguments: DoctorArguments) -> Result<()> {
    let checks = doctor::examine(&Examination {
        sysfs: Sysfs::of_this_machine(),
        controllers: arguments.controllers,
        needed_locked_bytes: arguments.memory.0,
        caller: Caller::this_process(),
    })?;
    let missing = checks
        .iter()
        .filter(|check| check.status == Status::Missing)
        .count();
    let views: Vec<_> = checks.into_iter().map(CheckView::from).collect();
    output.show(&views, |views| text(views, missing))?;
    match missing {
        0 => Ok(()),
        1 => bail!("one thing is missing for a real controller"),
        count => bail!("{count} things are missing for a real controller"),
    }
}

fn text(views: &[CheckView], missing: usize) -> String {
    let mut text: String = views.iter().map(CheckView::lines).collect();
    if missing > 0 {
        text.push_str("\nfile:, memory: and vfio-user: devices need none of this and work here.\n");
    }
    text
}

impl From<Check> for CheckView {
    fn from(check: Check) -> Self {
        Self {
            name: check.name,
            controller: check.subject.map(|address| address.to_string()),
            status: check.status.to_string(),
            finding: check.finding,
            remedy: check.remedy,
        }
    }
}

impl CheckView {
    fn lines(&self) -> String {
        let subject = self.controller.as_deref();
        let subject = subject.map_or(String::new(), |address| format!("{address} "));
        let Self {
            name,
            status,
            finding,
            ..
        } = self;
        let mut lines = format!("{status:8} {subject}{name}: {finding}\n");
        if let Some(remedy) = &self.remedy {
            lines.push_str(&format!("{:8} → {remedy}\n", ""));
        }
        lines
    }
}
