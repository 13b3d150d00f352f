//! The daemon inside the guest.

use std::fs::{self, File};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::kernel::{self, WAIT_STEPS};
use crate::network;

/// A daemon that serves. Dropping it kills it.
pub(crate) struct Daemon {
    process: Child,
}

impl Daemon {
    /// Where it serves gRPC.
    pub(crate) const ADDRESS: &'static str = "unix:/tmp/lodestored.sock";

    /// Starts it without a pool and waits until it serves.
    pub(crate) fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// Starts it with more arguments.
    pub(crate) fn start_with(arguments: &[&str]) -> Result<Self> {
        fs::write("/tmp/lodestored.toml", CONFIGURATION)?;
        let mut command = Command::new("/bin/lodestored");
        command.args(["--config", "/tmp/lodestored.toml", "--ready-file", READY]);
        command.args(arguments);
        Self::serve(&mut command, READY)
    }

    /// Starts the daemon that `command` stands for and waits until it has made the file `ready`.
    pub(crate) fn serve(command: &mut Command, ready: &str) -> Result<Self> {
        network::bring_loopback_up()?;
        if fs::exists(ready)? {
            fs::remove_file(ready)?;
        }
        let log = File::create(LOG)?;
        let process = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting the daemon")?;
        let mut daemon = Self { process };
        for _ in 0..WAIT_STEPS {
            if fs::exists(ready)? {
                return Ok(daemon);
            }
            if let Some(status) = daemon.process.try_wait()? {
                bail!("the daemon ended with {status}: {}", last_words());
            }
            kernel::pause();
        }
        bail!("the daemon does not serve: {}", last_words())
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// The processor time that it has used since it started.
    pub(crate) fn processor_time(&self) -> Result<Duration> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        // The name before the last parenthesis may hold anything; after it comes field 3.
        let (_, fields) = text.rsplit_once(')').context("a process's name")?;
        let fields: Vec<_> = fields.split_whitespace().collect();
        let ticks = |number: usize| -> Result<u64> {
            let field = fields.get(number - 3).context("a field")?;
            Ok(field.parse()?)
        };
        let used = ticks(UTIME)? + ticks(STIME)?;
        Ok(Duration::from_secs(used) / clock_ticks_per_second()?)
    }

    /// Sends it a signal and waits for its end.
    pub(crate) fn end(mut self, signal: Signal) -> Result<ExitStatus> {
        kill_process(Pid::from_child(&self.process), signal)?;
        for _ in 0..WAIT_STEPS {
            if let Some(status) = self.process.try_wait()? {
                return Ok(status);
            }
            kernel::pause();
        }
        bail!("the daemon does not end: {}", last_words())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Refused when it has ended already.
        let _refused = self.process.kill().is_err();
        let _waited = self.process.wait().is_ok();
    }
}

fn clock_ticks_per_second() -> Result<u32> {
    Ok(u32::try_from(rustix::param::clock_ticks_per_second())?)
}

/// Fields of a process's `stat`, counted from 1.
const UTIME: usize = 14;
const STIME: usize = 15;

/// Everything that the daemon that was started last has said.
pub(crate) fn last_words() -> String {
    fs::read_to_string(LOG).unwrap_or_default()
}

const READY: &str = "/tmp/ready";
const LOG: &str = "/tmp/lodestored.log";
const CONFIGURATION: &str = r#"
[server]
grpc = []
unix = "/tmp/lodestored.sock"

[memory]
small_buffers = 256
medium_buffers = 32
large_buffers = 8
"#;
