//! One running `lodectl emulate`.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::{program, until};

/// How long it may take to begin or to end, on a machine with much else to do.
const LIMIT: Duration = Duration::from_secs(60);

/// A process that serves an emulated controller; killed when dropped.
#[derive(Debug)]
pub struct Emulator {
    child: Child,
}

impl Emulator {
    /// Serves `device` at `socket` and waits until clients can connect. Its output is kept beside
    /// the socket.
    ///
    /// # Panics
    /// When it does not begin to serve.
    #[must_use]
    pub fn start(device: &str, socket: &Path) -> Self {
        let log = socket.with_extension("log");
        let output = File::create(&log).expect("the folder takes a file");
        let child = Command::new(program("lodectl"))
            .args(["emulate", device, "--socket"])
            .arg(socket)
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a file's handle can be copied"))
            .stderr(output)
            .spawn()
            .expect("it can be started");
        let mut emulator = Self { child };
        let said = || std::fs::read_to_string(&log).unwrap_or_default();
        let begun = until(LIMIT, || {
            let has_begun = said().contains("is served at");
            (has_begun || !emulator.is_running()).then_some(has_begun)
        });
        assert!(begun.unwrap_or(false), "it does not serve: {}", said());
        emulator
    }

    /// Whether the process still runs.
    #[must_use]
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends it a signal, by its name.
    ///
    /// # Panics
    /// When that fails.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([format!("-{name}"), self.child.id().to_string()])
            .status()
            .expect("kill can be started");
        assert!(sent.success(), "it can be signalled");
    }

    /// Ends it without a warning.
    ///
    /// # Panics
    /// When it had ended before.
    pub fn kill(mut self) {
        assert!(self.is_running(), "it runs until it is killed");
        self.end();
    }

    /// Asks it to end and waits until it has.
    ///
    /// # Panics
    /// When it does not end in time.
    #[must_use]
    pub fn terminate(mut self) -> ExitStatus {
        self.signal("TERM");
        match until(LIMIT, || self.child.try_wait().transpose()) {
            Ok(status) => status.expect("a child can be waited for"),
            Err(timeout) => panic!("SIGTERM: {timeout}"),
        }
    }

    fn end(&mut self) {
        self.child
            .kill()
            .expect("an unwaited child can be signalled");
        self.child.wait().expect("a killed child ends");
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        if self.is_running() {
            self.end();
        }
    }
}
