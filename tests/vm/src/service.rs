//! The daemon inside the guest.

use std::fs::{self, File};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::kernel::{self, WAIT_STEPS};

/// A daemon that serves. Dropping it kills it.
pub(crate) struct Daemon {
    process: Child,
}

impl Daemon {
    /// Where it serves gRPC.
    pub(crate) const ADDRESS: &'static str = "unix:/tmp/lodestored.sock";

    /// Starts it without a pool and waits until it serves.
    pub(crate) fn start() -> Result<Self> {
        // Nobody has brought the loopback interface up; its address can be bound all the same.
        fs::write("/proc/sys/net/ipv4/ip_nonlocal_bind", "1")?;
        fs::write("/tmp/lodestored.toml", CONFIGURATION)?;
        if fs::exists(READY)? {
            fs::remove_file(READY)?;
        }
        let log = File::create(LOG)?;
        let process = Command::new("/bin/lodestored")
            .args(["--config", "/tmp/lodestored.toml", "--ready-file", READY])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting the daemon")?;
        let mut daemon = Self { process };
        for _ in 0..WAIT_STEPS {
            if fs::exists(READY)? {
                return Ok(daemon);
            }
            if let Some(status) = daemon.process.try_wait()? {
                bail!("the daemon ended with {status}: {}", last_words());
            }
            kernel::pause();
        }
        bail!("the daemon does not serve: {}", last_words())
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

fn last_words() -> String {
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
