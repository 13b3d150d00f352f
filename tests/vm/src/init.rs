//! Process 1: file systems, kernel modules, the line to the host, one scenario after the other.
//!
//! Every line to the host is one word and its text: `start NAME`, `monitor COMMAND` (answered
//! with one line), `figure TEXT`, `note TEXT`, `pass NAME TEXT`, `fail NAME TEXT`, and `end`. The
//! host ends the machine; what goes wrong before there is a line to it is a panic, which the kernel
//! turns into the end of the machine.

use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::mount::{MountFlags, mount};

use crate::kernel::{self, WAIT_STEPS};
use crate::watch::Watch;

/// Runs the guest and waits for the host to end it. Never returns.
pub(crate) fn run() -> ! {
    let outcome = prepare().and_then(|mut line| serve(&mut line));
    if let Err(error) = outcome {
        panic!("the guest cannot go on: {error:#}");
    }
    loop {
        std::thread::park();
    }
}

/// The virtio serial port to the host, as two handles to one open file.
struct Line {
    from_host: BufReader<File>,
    to_host: File,
}

fn prepare() -> Result<Line> {
    for (kind, target) in [
        ("devtmpfs", "/dev"),
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("tmpfs", "/tmp"),
    ] {
        fs::create_dir_all(target).with_context(|| format!("directory {target}"))?;
        mount(kind, target, kind, MountFlags::empty(), None)
            .with_context(|| format!("mounting {target}"))?;
    }
    for module in fs::read_to_string("/modules/order")
        .context("the list of modules")?
        .lines()
    {
        let file = File::open(Path::new("/modules").join(module)).context("a module")?;
        rustix::system::finit_module(&file, options(module), 0)
            .with_context(|| format!("loading {module}"))?;
    }
    let port = open_port()?;
    Ok(Line {
        from_host: BufReader::new(port.try_clone()?),
        to_host: port,
    })
}

/// The options of a module. An idle function is not put to sleep: bringing it back (D3hot) now and
/// then never ends in the emulated machine, inside the kernel and uninterruptible.
fn options(module: &str) -> &'static CStr {
    if module == "vfio_pci.ko" {
        c"disable_idle_d3=1"
    } else {
        c""
    }
}

fn open_port() -> Result<File> {
    for _ in 0..WAIT_STEPS {
        if let Ok(port) = OpenOptions::new().read(true).write(true).open(PORT) {
            return Ok(port);
        }
        kernel::pause();
    }
    bail!("{PORT} did not appear")
}

fn serve(line: &mut Line) -> Result<()> {
    let command_line = fs::read_to_string("/proc/cmdline")?;
    let names = command_line
        .split_whitespace()
        .find_map(|word| word.strip_prefix("lode.scenarios="))
        .context("no lode.scenarios= on the kernel's command line")?;
    for name in names.split(',') {
        writeln!(line.to_host, "start {name}")?;
        match scenario(line, name) {
            Ok(finding) => writeln!(line.to_host, "pass {name} {finding}")?,
            Err(error) => writeln!(line.to_host, "fail {name} {}", one_line(&error))?,
        }
    }
    writeln!(line.to_host, "end")?;
    Ok(())
}

/// Runs one scenario in a process of its own, so that its end, whatever it is, leaves the next
/// one a clean machine.
fn scenario(line: &mut Line, name: &str) -> Result<String> {
    let errors = File::create("/tmp/errors")?;
    let mut child = Command::new("/proc/self/exe")
        .args(["scenario", name])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .context("starting the scenario")?;
    let output = child.stdout.take().context("the scenario's output")?;
    let mut teller = line.to_host.try_clone()?;
    let watch = Watch::start(move |thread| {
        // A host that no longer listens has given the guest up.
        let _unheard = writeln!(teller, "note {thread}").is_err();
    });
    let finding = relay(line, &mut child, output, &watch)?;
    drop(watch);
    let status = child.wait()?;
    let errors = fs::read_to_string("/tmp/errors").unwrap_or_default();
    if !status.success() {
        bail!("{status}: {}", errors.trim());
    }
    finding.context("it ended without a finding")
}

/// Passes the scenario's lines on until it closes its output; returns its finding.
fn relay(
    line: &mut Line,
    child: &mut Child,
    output: ChildStdout,
    watch: &Watch,
) -> Result<Option<String>> {
    let mut input = child.stdin.take().context("the scenario's input")?;
    let mut finding = None;
    for text in BufReader::new(output).lines() {
        let text = text?;
        watch.note_life();
        if let Some(done) = text.strip_prefix("done ") {
            finding = Some(done.to_owned());
        } else if text.starts_with("figure ") {
            writeln!(line.to_host, "{text}")?;
        } else if text.starts_with("monitor ") {
            writeln!(line.to_host, "{text}")?;
            let mut answer = String::new();
            line.from_host.read_line(&mut answer)?;
            input.write_all(answer.as_bytes())?;
        } else {
            writeln!(line.to_host, "note {text}")?;
        }
    }
    Ok(finding)
}

fn one_line(error: &anyhow::Error) -> String {
    format!("{error:#}").replace('\n', " | ")
}

const PORT: &str = "/dev/vport0p1";
