//! The demonstration that `cargo xtask demo` runs: a real file system image goes into a daemon
//! that is killed without warning and comes back unharmed.
//!
//! Everything lies in one temporary folder, which is removed at the end, as is the daemon. Each
//! wait has a deadline. A step that fails panics with what it was about, and the program ends
//! with a failure.

#![expect(
    clippy::print_stdout,
    reason = "a demonstration shows what it does on the terminal"
)]

mod figures;
mod image;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lode_tests::{Daemon, http, program, until};
use lode_units::{Clock, MonotonicClock};

use image::Image;

/// How much of the second import must have arrived before the kill, in bytes.
const ARRIVED_BYTES: u64 = 32 << 20;
/// How long any one step may take.
const LIMIT: Duration = Duration::from_secs(300);

fn main() {
    let folder = tempfile::Builder::new()
        .prefix("lodestore-demo-")
        .tempdir()
        .expect("a temporary folder");
    show(folder.path());
    folder.close().expect("the folder can be removed");
    println!("demo: ok");
}

fn show(folder: &Path) {
    step("making an ext4 image of a real directory tree");
    let image = Image::make(folder);
    println!("{image}");

    step("starting a daemon on the embedded default");
    let daemon = Daemon::start_dev(folder).expect("the daemon starts");
    println!(
        "gRPC on {}, metrics on http://{}",
        daemon.grpc(),
        daemon.http()
    );

    step("importing the image");
    let clock = MonotonicClock::new();
    let started = clock.now();
    run(import(&daemon, &image, "first"));
    println!(
        "took {:.1?}",
        clock.now().saturating_duration_since(started)
    );
    figures::print(&http::get(daemon.http(), "/metrics").body);

    step("killing the daemon in the middle of a second import");
    let mut second = import(&daemon, &image, "second")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("lodectl can be started");
    let arrived = wait_until_arrived(&daemon, &mut second);
    daemon.kill();
    let status = wait(&mut second);
    assert!(
        !status.success(),
        "an import without a daemon cannot succeed"
    );
    println!("kill -9 after {} MiB of the second import", arrived >> 20);

    step("restarting and exporting the first image");
    let daemon = Daemon::start_dev(folder).expect("the daemon recovers");
    let export = folder.join("export.img");
    run(lodectl(&daemon)
        .args(["volume", "export", "first"])
        .arg(&export));
    let sum = image::sha256(&export);
    println!("image   {}\nexport  {sum}", image.sha256);
    assert_eq!(image.sha256, sum, "the export is the image");
    figures::print(&http::get(daemon.http(), "/metrics").body);

    step("checking the exported file system");
    image::check(&export);

    step("stopping");
    let status = daemon.terminate();
    assert!(status.success(), "the daemon ends well: {status}");
}

fn step(what: &str) {
    println!("\n== {what}");
}

fn lodectl(daemon: &Daemon) -> Command {
    let mut command = Command::new(program("lodectl"));
    command.arg("--address").arg(daemon.url());
    command
}

fn import(daemon: &Daemon, image: &Image, volume: &str) -> Command {
    let mut command = lodectl(daemon);
    command
        .args(["volume", "import", "--create"])
        .arg(&image.path)
        .arg(volume);
    command
}

fn run(mut command: impl std::borrow::BorrowMut<Command>) {
    let command = command.borrow_mut();
    let mut child = command.spawn().expect("the program can be started");
    let status = wait(&mut child);
    assert!(status.success(), "{command:?} failed: {status}");
}

/// Waits for a child, which is ended when it takes too long.
fn wait(child: &mut Child) -> std::process::ExitStatus {
    match until(LIMIT, || child.try_wait().transpose()) {
        Ok(status) => status.expect("a child can be waited for"),
        Err(timeout) => {
            child.kill().expect("a running child can be killed");
            child.wait().expect("a killed child ends");
            panic!("{timeout}");
        }
    }
}

/// Waits until enough of the second volume holds data; how much.
fn wait_until_arrived(daemon: &Daemon, import: &mut Child) -> u64 {
    let found = until(LIMIT, || {
        let ended = import.try_wait().expect("a child can be waited for");
        assert!(
            ended.is_none(),
            "the import ended before the kill: {ended:?}"
        );
        let shown = lodectl(daemon)
            .args(["--output", "json", "volume", "show", "second"])
            .output()
            .expect("lodectl can be started");
        let volume: serde_json::Value = serde_json::from_slice(&shown.stdout).ok()?;
        let arrived = volume.get("allocated_bytes")?.as_u64()?;
        (arrived >= ARRIVED_BYTES).then_some(arrived)
    });
    found.unwrap_or_else(|timeout| panic!("the second import does not come on: {timeout}"))
}
