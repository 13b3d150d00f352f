//! The first program of a test guest. As process 1 it makes the guest usable and runs the
//! scenarios that the kernel's command line names, each in a process of its own; with a
//! scenario's name it runs that.
//!
//! Owns: [`init`], process 1; [`host`], a scenario's line to the host; [`rig`], a driver over a
//! controller behind VFIO; [`service`], the daemon, with [`lodectl`], [`remote`] and [`metrics`]
//! for its clients; [`user`], one without privileges; [`kernel`], the kernel's own driver and its
//! log; [`passthrough`], commands through that driver; [`network`], the loopback interface;
//! [`watch`], what a scenario hangs in; [`scenarios`]; [`mod@bench`], the driver's speed.
//! Started by `cargo xtask vm-test` and `vm-bench`; of no use outside a guest, and says so.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a scenario's line to the host is its standard output"
)]

mod bench;
mod host;
mod init;
mod kernel;
mod lodectl;
mod metrics;
mod network;
mod passthrough;
mod pattern;
mod remote;
mod rig;
mod scenarios;
mod service;
mod user;
mod watch;

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::process::id() == 1 {
        init::run();
    }
    let mut arguments = std::env::args().skip(1);
    let outcome = match (arguments.next().as_deref(), arguments.next()) {
        (Some("scenario"), Some(name)) => scenarios::run(&name),
        (Some("part"), Some(name)) => scenarios::run_part(&name),
        _ => Err(anyhow::anyhow!(
            "this program is the init of a test guest; run cargo xtask vm-test"
        )),
    };
    match outcome {
        Ok(finding) => {
            host::finish(&finding);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
