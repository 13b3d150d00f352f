//! A folder with a configuration and device files, which outlives the daemons started in it.

use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::daemon::{LOG, READY};
use crate::{Daemon, program, until};

/// How long a daemon that must refuse to start may take to do so.
const REFUSAL_LIMIT: Duration = Duration::from_secs(20);

/// The pool that a site has unless it asks for another.
pub(crate) const POOL: &str = "tank";

/// A place to start daemons in.
#[derive(Debug)]
pub struct Site {
    folder: TempDir,
    pools: Vec<(String, String)>,
    creates_pools: bool,
    cores: Option<usize>,
}

impl Site {
    /// A site with the pool `tank` on one file of 256 MiB.
    #[must_use]
    pub fn new() -> Self {
        Self::with_options("size=256MiB&create")
    }

    /// A site with the pool `tank` on one file, opened with `options` (without the `?`).
    ///
    /// # Panics
    /// When no temporary folder can be made.
    #[must_use]
    pub fn with_options(options: &str) -> Self {
        Self::on_device(|folder| format!("file:{}?{options}", folder.join("disk0.img").display()))
    }

    /// A site with the pool `tank` on the device that `device` names, given the site's folder.
    ///
    /// # Panics
    /// When no temporary folder can be made.
    #[must_use]
    pub fn on_device(device: impl FnOnce(&Path) -> String) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("lodestore-test-")
            .tempdir()
            .expect("a temporary folder");
        let device = device(folder.path());
        Self {
            folder,
            pools: vec![(POOL.to_owned(), device)],
            creates_pools: true,
            cores: None,
        }
    }

    /// A site without pools: its daemons make them when they are asked to.
    ///
    /// # Panics
    /// When no temporary folder can be made.
    #[must_use]
    pub fn without_pools() -> Self {
        let mut site = Self::new();
        site.pools.clear();
        site
    }

    /// The same site with another pool, on a device in memory.
    #[must_use]
    pub fn and_pool(mut self, name: &str, device: &str) -> Self {
        self.pools.push((name.to_owned(), device.to_owned()));
        self
    }

    /// The same site with so many cores for each of its daemons, instead of one or what the
    /// environment says.
    #[must_use]
    pub const fn on_cores(mut self, cores: usize) -> Self {
        self.cores = Some(cores);
        self
    }

    /// Replaces the options of the first pool's device: for a restart with another behaviour.
    pub fn set_options(&mut self, options: &str) {
        let device = format!("file:{}?{options}", self.device_file().display());
        if let Some((_, first)) = self.pools.first_mut() {
            *first = device;
        }
    }

    /// From now on the configuration makes no pool where there is none.
    pub fn forbid_creation(&mut self) {
        self.creates_pools = false;
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The file behind the first pool.
    #[must_use]
    pub fn device_file(&self) -> PathBuf {
        self.folder().join("disk0.img")
    }

    /// Starts a daemon and waits until it is ready.
    ///
    /// # Panics
    /// When it does not become ready.
    #[must_use]
    pub fn start(&self) -> Daemon {
        match self.try_start() {
            Ok(daemon) => daemon,
            Err(failure) => panic!("the daemon did not start: {failure}"),
        }
    }

    /// Starts a daemon on so many cores and waits until it is ready.
    ///
    /// # Panics
    /// When it does not become ready.
    #[must_use]
    pub fn start_on_cores(&self, cores: usize) -> Daemon {
        let mut command = self.command(READY, LOG);
        command.args(["--cores", &cores.to_string()]);
        match Daemon::start(command, self.folder()) {
            Ok(daemon) => daemon,
            Err(failure) => panic!("the daemon did not start: {failure}"),
        }
    }

    /// Starts a daemon and waits until it is ready or has ended.
    ///
    /// # Errors
    /// What the daemon printed, when it did not become ready.
    pub fn try_start(&self) -> Result<Daemon, String> {
        Daemon::start(self.command(READY, LOG), self.folder())
    }

    /// Starts a daemon that must refuse, and returns what it printed.
    ///
    /// # Panics
    /// When it goes on, or ends with success.
    #[must_use]
    pub fn start_refused(&self) -> String {
        let mut child = self
            .command("refused.json", "refused.log")
            .spawn()
            .expect("the daemon can be started");
        let ended = until(REFUSAL_LIMIT, || child.try_wait().transpose());
        let log = self.read("refused.log");
        let Ok(status) = ended else {
            child.kill().expect("a running child can be killed");
            child.wait().expect("a killed child ends");
            panic!("the daemon started although it must not: {log}");
        };
        let status = status.expect("a child can be waited for");
        assert!(!status.success(), "the daemon ended well: {log}");
        assert!(!log.contains("panicked"), "a refusal is no panic: {log}");
        log
    }

    /// Starts a daemon and kills it after `delay`, whether it is ready then or not.
    ///
    /// # Panics
    /// When it cannot be started at all.
    #[expect(
        clippy::disallowed_methods,
        reason = "the kill's moment is random on purpose; nothing is waited for"
    )]
    pub fn kill_while_starting(&self, delay: Duration) {
        let mut child = self
            .command("killed.json", "killed.log")
            .spawn()
            .expect("the daemon can be started");
        std::thread::sleep(delay);
        child.kill().expect("an unwaited child can be signalled");
        child.wait().expect("a killed child ends");
    }

    /// A file of the folder as text; empty when it is not there.
    #[must_use]
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder().join(name)).unwrap_or_default()
    }

    fn command(&self, ready_file: &str, log: &str) -> Command {
        let folder = self.folder();
        let configuration = folder.join("lodestored.toml");
        std::fs::write(&configuration, self.configuration()).expect("the folder takes a file");
        let log = File::create(folder.join(log)).expect("the folder takes a file");
        let mut command = Command::new(program("lodestored"));
        if self.cores.is_some() {
            // It would win over the configuration.
            command.env_remove("LODESTORED_CORES");
        }
        command
            .arg("--config")
            .arg(configuration)
            .arg("--ready-file")
            .arg(folder.join(ready_file))
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file's handle can be copied"))
            .stderr(log);
        command
    }

    fn configuration(&self) -> String {
        let create = self.creates_pools;
        let mut text = "[server]\ngrpc = [\"127.0.0.1:0\"]\nhttp = \"127.0.0.1:0\"\n".to_owned();
        if let Some(cores) = self.cores {
            writeln!(text, "\n[core]\ncores = {cores}").expect("a string takes everything");
        }
        for (name, device) in &self.pools {
            write!(
                text,
                "\n[[pool]]\nname = \"{name}\"\ndevices = [\"{device}\"]\ncreate = {create}\n"
            )
            .expect("a string takes everything");
        }
        text
    }
}

impl Default for Site {
    fn default() -> Self {
        Self::new()
    }
}
