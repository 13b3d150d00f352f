//! The scenarios. Each drives controllers of the guest through real VFIO and ends with a finding
//! of one line, or with the error that made it fail.
//!
//! The host (`xtask/src/vm`) knows which guest has which controllers; the addresses here are the
//! ones that it gives them.

mod attachment;
mod bring_up;
mod daemon;
mod damage;
mod data;
mod device_node;
mod errors;
mod events;
mod groundwork;
mod hang;
mod health;
mod interrupts;
mod isolation;
mod lifecycle;
mod pools;
mod raw_proof;
mod removal;
mod sleep;
mod standstill;
mod unplug;
mod user_daemon;

use anyhow::{Context, Result, bail};
use lode_vfio::PciAddress;

use crate::bench;

/// One scenario: its name on the kernel's command line and its code.
type Scenario = (&'static str, fn() -> Result<String>);

const SCENARIOS: &[Scenario] = &[
    ("doctor", groundwork::doctor),
    ("in-use", groundwork::in_use),
    ("bring-up", bring_up::bring_up),
    ("two-controllers", bring_up::two_controllers),
    ("namespaces", data::namespaces),
    ("transfer-sizes", data::transfer_sizes),
    ("operations", data::operations),
    ("shadow-doorbells", data::shadow_doorbells),
    ("write-cache", data::write_cache),
    ("raw-proof", raw_proof::raw_proof),
    ("start-stop", lifecycle::start_stop),
    ("killed", lifecycle::killed),
    ("unprivileged", lifecycle::unprivileged),
    ("function-reset", lifecycle::function_reset),
    ("interrupts", interrupts::interrupts),
    ("huge-pages", groundwork::huge_pages),
    ("media-error-read", errors::read),
    ("media-error-write", errors::write),
    ("hung-command", errors::hung),
    ("blocked-dma", isolation::blocked_dma),
    ("no-stray-dma", isolation::no_stray_dma),
    ("removal", removal::removal),
    ("smart-warning", events::smart_warning),
    ("rates", bench::rates),
    ("untranslated-rates", bench::untranslated_rates),
    ("instructions", bench::instructions),
    ("daemon", daemon::daemon),
    ("daemon-removal", daemon::removal),
    ("unprivileged-daemon", user_daemon::unprivileged_daemon),
    ("device-node", device_node::device_node),
    ("daemon-sleep", sleep::sleep),
    ("daemon-start-stop", daemon::start_stop),
    ("daemon-unplug", unplug::unplug),
    ("daemon-health", health::warning),
    ("daemon-namespaces", pools::namespaces),
    ("daemon-write-cache", pools::write_cache),
    ("daemon-media-error", damage::data),
    ("daemon-bad-superblock", damage::superblock),
    ("daemon-bad-journal", damage::journal),
    ("daemon-abort", hang::abort),
    ("daemon-attachment", attachment::attachment),
    ("daemon-hang", standstill::hang),
    ("daemon-reset", hang::reset),
];

/// Code that a scenario starts in a process of its own.
const PARTS: &[Scenario] = &[
    ("write-for-ever", lifecycle::write_for_ever),
    ("read-as-user", lifecycle::read_as_user),
    ("lock-too-much", lifecycle::lock_too_much),
];

/// Runs the scenario called `name`.
pub(crate) fn run(name: &str) -> Result<String> {
    find(SCENARIOS, name)
}

/// Runs a part of a scenario.
pub(crate) fn run_part(name: &str) -> Result<String> {
    find(PARTS, name)
}

fn find(table: &[Scenario], name: &str) -> Result<String> {
    let Some((_, scenario)) = table.iter().find(|(known, _)| *known == name) else {
        bail!("there is no {name}");
    };
    scenario()
}

/// The controller with five namespaces, without shadow doorbells.
fn plain() -> Result<PciAddress> {
    "0000:00:10.0".parse().context("an address")
}

/// The controller with shadow doorbells and one namespace.
fn shadow() -> Result<PciAddress> {
    "0000:00:11.0".parse().context("an address")
}

/// The controller whose namespaces fail.
fn faulty() -> Result<PciAddress> {
    "0000:00:12.0".parse().context("an address")
}
