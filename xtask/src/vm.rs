//! `cargo xtask vm-test` and `vm-bench`: the driver against real VFIO, in guests under software
//! emulation.
//!
//! Owns: [`run`], the tests, and [`mod@bench`], the speed of the driver. Both get QEMU and a guest
//! kernel ([`kit`]), build the guest's programs ([`programs`]: its init, package `lode-vm-guest`;
//! for the tests the daemon and its command line), pack everything ([`initramfs`], [`modules`]),
//! start one guest after the other ([`guests`]) and talk to each over sockets ([`machine`],
//! [`monitor`]) until it has run its scenarios. One line for each scenario or figure. Main thread;
//! blocks; every guest has a time limit and is ended on every way out; what is kept lies below the
//! target directory.
//!
//! Where QEMU or the kernel cannot be had the command says so, runs nothing and succeeds:
//! whoever needs the proof looks for the line `vm-test: ok`.

pub(crate) mod bench;
mod emulator;
mod guests;
mod initramfs;
mod kernel_image;
mod kit;
mod machine;
mod modules;
mod monitor;
mod programs;
mod qemu;

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::Workspace;
use guests::{Emulation, GUESTS, Guest, IOMMUFD, Plan};
use kit::Kit;
use machine::{Machine, Outcome, Voice};
use modules::Module;
use programs::{Build, Profile};

/// Runs every scenario, or those of the guests and scenarios named, on Debian's kernel or on the
/// one in the file `kernel`. Blocks for some minutes.
///
/// # Errors
/// When a scenario fails, a guest does not run, or its programs cannot be built.
pub(crate) fn run(workspace: &Workspace, names: &[String], kernel: Option<&Path>) -> Result<()> {
    let mut chosen = choose(names)?;
    match kernel {
        Some(kernel) => ensure!(kernel.is_file(), "there is no kernel {}", kernel.display()),
        None => chosen.retain(is_for_any_kernel),
    }
    let directory = workspace.target.join("vm");
    let kit = match Kit::prepare(&directory, kernel) {
        Ok(kit) => kit,
        Err(error) => {
            println!("vm-test: SKIPPED: no guest can run here: {error:#}");
            return Ok(());
        }
    };
    let features: &[&str] = if kernel.is_some() { &["iommufd"] } else { &[] };
    let build = Build {
        directory: &directory,
        features,
        profile: Profile::Debug,
    };
    let programs = build.run(workspace, PROGRAMS)?;
    let image = directory.join("initramfs.cpio");
    initramfs::write(&image, &programs, &load_modules(&kit)?)?;
    let mut failed = Vec::new();
    let mut passed = 0;
    for plan in chosen {
        for outcome in carry_out(plan, &kit, &image, TO_PERSON)? {
            if outcome.is_pass() {
                passed += 1;
            } else {
                failed.push(outcome);
            }
        }
    }
    conclude(passed, &failed)
}

/// Whether a guest needs nothing that Debian's kernel lacks; says so when it does.
fn is_for_any_kernel(plan: &Plan) -> bool {
    let is_special = plan.guest.name == IOMMUFD;
    if is_special {
        println!(
            "vm-test: SKIPPED {IOMMUFD}: Debian's kernel has no device nodes of VFIO; give one \
             that has them with --kernel"
        );
    }
    !is_special
}

/// Runs a guest until it has run everything. QEMU's threads race now and then when a device comes,
/// goes or is reset (an assertion of its own about memory sections), and seldom a processor's timer
/// does not fire. Neither says anything about the driver: what it kept from running is run in a new
/// guest, a limited number of times, and each time is told.
fn carry_out(plan: Plan, kit: &Kit, image: &Path, voice: Voice) -> Result<Vec<Outcome>> {
    let name = plan.guest.name;
    let mut outcomes = Vec::new();
    let mut plan = Some(plan);
    for _ in 0..STARTS_MAX {
        let Some(next) = plan.take() else {
            break;
        };
        let machine =
            Machine::start(next, kit, image, voice).with_context(|| format!("guest {name}"))?;
        let report = machine.run();
        outcomes.extend(report.outcomes);
        plan = report.unfinished;
    }
    ensure!(
        plan.is_none(),
        "guest {name}: QEMU failed {STARTS_MAX} times"
    );
    Ok(outcomes)
}

/// The guests and scenarios that `names` stand for: a guest's name for all that it runs, a
/// scenario's for that one, no names for everything.
fn choose(names: &[String]) -> Result<Vec<Plan>> {
    for name in names {
        let is_known = GUESTS
            .iter()
            .any(|guest| guest.name == *name || guest.scenarios.contains(&name.as_str()));
        ensure!(is_known, "there is no guest and no scenario {name}");
    }
    let is_chosen = |guest: &Guest, scenario: &str| {
        names.is_empty()
            || names
                .iter()
                .any(|name| name == guest.name || name == scenario)
    };
    Ok(GUESTS
        .iter()
        .map(|guest| Plan {
            guest,
            scenarios: guest
                .scenarios
                .iter()
                .copied()
                .filter(|scenario| is_chosen(guest, scenario))
                .collect(),
            emulation: Emulation::Parallel,
        })
        .filter(|plan| !plan.scenarios.is_empty())
        .collect())
}

/// What the guest needs of a kernel that does not have everything built in.
fn load_modules(kit: &Kit) -> Result<Vec<Module>> {
    match &kit.modules {
        Some(directory) => modules::load(directory, MODULES),
        None => Ok(Vec::new()),
    }
}

fn conclude(passed: usize, failed: &[Outcome]) -> Result<()> {
    if failed.is_empty() {
        println!("vm-test: ok ({passed} scenarios)");
        return Ok(());
    }
    let names: Vec<_> = failed
        .iter()
        .map(|outcome| outcome.scenario.as_str())
        .collect();
    bail!(
        "vm-test: {} of {} scenarios failed: {}",
        failed.len(),
        failed.len() + passed,
        names.join(", ")
    )
}

/// What a person who runs the tests sees.
const TO_PERSON: Voice = Voice {
    tell: |text| println!("{text}"),
    figure: |text| println!("       {text}"),
};
/// How often a guest is started when QEMU fails.
const STARTS_MAX: usize = 3;
/// Where each program is in the guest, and the package that makes it.
const PROGRAMS: &[(&str, &str)] = &[
    ("init", "lode-vm-guest"),
    ("bin/lodestored", "lodestored"),
    ("bin/lodectl", "lodectl"),
];
/// What the guest kernel does not have built in.
const MODULES: &[&str] = &["vfio_iommu_type1", "vfio_pci"];

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str]) -> Vec<(&'static str, usize)> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let plans = choose(&names).expect("known names");
        plans
            .iter()
            .map(|plan| (plan.guest.name, plan.scenarios.len()))
            .collect()
    }

    #[test]
    fn names_choose_guests_and_scenarios() {
        assert_eq!(chosen(&[]).len(), GUESTS.len());
        assert_eq!(chosen(&["bring-up"]), [("controllers", 1)]);
        let [(name, count)] = chosen(&["removal"])[..] else {
            panic!("one guest");
        };
        assert_eq!(name, "removal");
        assert!(count > 1);
        assert!(choose(&["no-such-thing".to_owned()]).is_err());
    }
}
