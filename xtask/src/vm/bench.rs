//! `cargo xtask vm-bench`: the speed of the driver over real VFIO.
//!
//! Owns: [`run`]. Three guests, one after the other: in two of them the driver and the kernel's own
//! driver take turns over controllers whose back end does nothing, with and without translation for
//! the kernel's devices; the clock of the third counts instructions. Figures go to standard output,
//! a line each; everything else to standard error.

use std::fs;

use anyhow::{Result, ensure};
use serde_json::{Map, Value};

use super::guests::{Disk, Emulation, Guest, Plan};
use super::kit::Kit;
use super::machine::Voice;
use super::programs::{Build, Profile};
use super::{carry_out, initramfs, load_modules};
use crate::workspace::Workspace;

/// Builds the guest's program for release and measures. Blocks for minutes.
///
/// # Errors
/// When the program cannot be built, a guest does not run or a measurement fails. Where no guest
/// can run the command says so and succeeds.
pub(crate) fn run(workspace: &Workspace, json: bool) -> Result<()> {
    let directory = workspace.target.join("vm");
    let kit = match Kit::prepare(&directory, None) {
        Ok(kit) => kit,
        Err(error) => {
            eprintln!("vm-bench: SKIPPED: no guest can run here: {error:#}");
            return Ok(());
        }
    };
    let build = Build {
        directory: &directory,
        features: &[],
        profile: Profile::Release,
    };
    let program = build.run(workspace, PROGRAM)?;
    let image = directory.join("bench.cpio");
    initramfs::write(&image, &program, &load_modules(&kit)?)?;
    let voice = Voice {
        tell: |text| eprintln!("{text}"),
        figure: if json { show_json } else { show_text },
    };
    warn_of_other_work();
    for plan in plans() {
        for outcome in carry_out(plan, &kit, &image, voice)? {
            ensure!(outcome.is_pass(), "vm-bench: a measurement failed");
        }
    }
    Ok(())
}

/// The guests with what each measures.
fn plans() -> [Plan; 3] {
    let plan = |guest, scenario, emulation| Plan {
        guest,
        scenarios: vec![scenario],
        emulation,
    };
    [
        plan(&TRANSLATED, "rates", Emulation::Parallel),
        plan(&UNTRANSLATED, "untranslated-rates", Emulation::Parallel),
        plan(&TRANSLATED, "instructions", Emulation::Counted),
    ]
}

/// A driver that polls never gives its processor away, and the emulated device needs another one:
/// on a machine with other work to do, whoever sleeps in between looks the better for it.
fn warn_of_other_work() {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let busy = load.split(' ').next().and_then(|mean| mean.parse().ok());
    if let Some(busy) = busy.filter(|busy: &f64| *busy > BUSY) {
        eprintln!(
            "vm-bench: this machine is busy (load {busy}): without two idle processors the ratios \
             say little"
        );
    }
}

fn show_text(figure: &str) {
    println!("{figure}");
}

fn show_json(figure: &str) {
    println!("{}", Value::Object(object(figure)));
}

/// `NAME key=value …` as an object; values that are no numbers stay text.
fn object(figure: &str) -> Map<String, Value> {
    let (name, values) = figure.split_once(' ').unwrap_or((figure, ""));
    let mut object = Map::new();
    object.insert("id".to_owned(), name.into());
    for (key, value) in values.split(' ').filter_map(|pair| pair.split_once('=')) {
        let value = value
            .parse::<f64>()
            .map_or_else(|_| value.into(), Value::from);
        object.insert(key.to_owned(), value);
    }
    object
}

const PROGRAM: &[(&str, &str)] = &[("init", "lode-vm-guest")];

/// Two controllers for the driver and two of the same kinds for the kernel's, which gets a queue
/// to poll. All accesses of devices are translated; the kernel may put off what follows a use.
const TRANSLATED: Guest = Guest {
    name: "bench",
    disks: &[
        Disk::null("own-plain", CAPACITY_MEBIBYTES),
        Disk::null("own-shadow", CAPACITY_MEBIBYTES),
        Disk::null("kernel-plain", CAPACITY_MEBIBYTES),
        Disk::null("kernel-shadow", CAPACITY_MEBIBYTES),
    ],
    devices: &[
        "nvme,id=c0,serial=c0,addr=0x10,max_ioqpairs=8,dbcs=off",
        "nvme-ns,bus=c0,nsid=1,drive=own-plain,logical_block_size=4096,physical_block_size=4096",
        "nvme,id=c1,serial=c1,addr=0x11,max_ioqpairs=8,dbcs=on",
        "nvme-ns,bus=c1,nsid=1,drive=own-shadow,logical_block_size=4096,physical_block_size=4096",
        "nvme,id=c2,serial=c2,addr=0x12,max_ioqpairs=8,dbcs=off",
        "nvme-ns,bus=c2,nsid=1,drive=kernel-plain,logical_block_size=4096,\
         physical_block_size=4096",
        "nvme,id=c3,serial=c3,addr=0x13,max_ioqpairs=8,dbcs=on",
        "nvme-ns,bus=c3,nsid=1,drive=kernel-shadow,logical_block_size=4096,\
         physical_block_size=4096",
    ],
    kernel: "nvme.poll_queues=1 iommu.strict=0",
    scenarios: &["rates", "instructions"],
};

/// The same, but that the kernel's devices reach memory as it is: what serves the kernel best.
const UNTRANSLATED: Guest = Guest {
    name: "untranslated",
    kernel: "nvme.poll_queues=1 iommu=pt",
    scenarios: &["untranslated-rates"],
    ..TRANSLATED
};

/// The load from which on a machine counts as busy.
const BUSY: f64 = 0.5;
const CAPACITY_MEBIBYTES: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_becomes_an_object_with_its_name_and_numbers() {
        let object = object("vm.read.qd1 ratio=1.25 arm=polled");
        assert_eq!(
            Value::Object(object).to_string(),
            r#"{"arm":"polled","id":"vm.read.qd1","ratio":1.25}"#
        );
    }
}
