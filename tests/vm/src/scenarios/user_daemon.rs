//! The daemon as a user without any privilege, set up by what the doctor tells that user.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use serde_json::Value;

use super::daemon::{address, device};
use crate::pattern;
use crate::service::{self, Daemon};
use crate::user::{USER, obey};

/// The doctor names two things as missing; root does just what it says; the doctor is content;
/// the daemon serves a pool from the controller, and again after a restart.
pub(super) fn unprivileged_daemon() -> Result<String> {
    let address = address()?.to_string();
    root(&["device", "bind", &address])?;
    let _home = Home::make()?;
    limit_locked_memory(SMALL_BYTES)?;

    let missing = missing(&address)?;
    let [(lock, lock_remedy), (permission, nodes_remedy)] = &missing[..] else {
        bail!("the doctor misses {missing:?}");
    };
    ensure!(
        lock == "memory-lock" && permission == "permission",
        "{missing:?}"
    );
    let figure = kibibytes(lock_remedy)?;
    limit_locked_memory(figure << 10)?;
    let _nodes = obey(nodes_remedy)?;
    ensure!(
        user_doctor(&address)?.status.success(),
        "the doctor is not content"
    );

    let device = device(super::daemon::address()?);
    let daemon = start()?;
    user(&["pool", "create", "tank", &device, "--overwrite"], &[])?;
    let node = nodes_remedy.split(' ').nth(2).context("a node")?;
    let log = service::last_words();
    ensure!(log.contains(node), "the log does not say {node}: {log}");
    user(&["volume", "create", "disk", "--size", "32MiB"], &[])?;
    user(&["volume", "write", "disk"], &content())?;
    verify()?;
    let status = daemon.end(Signal::TERM)?;
    ensure!(status.success(), "the daemon stopped with {status}");

    let daemon = start()?;
    user(&["pool", "import", &device], &[])?;
    verify().context("after the restart")?;
    let status = daemon.end(Signal::TERM)?;
    ensure!(status.success(), "the daemon stopped with {status}");
    Ok(format!(
        "user {USER} with {figure} KiB of locked memory, and: {nodes_remedy}"
    ))
}

/// The user's folder; removed with everything in it.
struct Home;

impl Home {
    fn make() -> Result<Self> {
        fs::create_dir(HOME)?;
        let home = Self;
        fs::set_permissions(HOME, fs::Permissions::from_mode(0o700))?;
        fs::write(CONFIGURATION_FILE, CONFIGURATION)?;
        chown(HOME, Some(USER), Some(USER))?;
        chown(CONFIGURATION_FILE, Some(USER), Some(USER))?;
        Ok(home)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _left = fs::remove_dir_all(HOME).is_err();
    }
}

/// For this process and those that it starts. Root may lock any amount all the same.
fn limit_locked_memory(bytes: u64) -> Result<()> {
    let limit = Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    setrlimit(Resource::Memlock, limit).context("the limit of locked memory")
}

fn user_doctor(address: &str) -> Result<Output> {
    run(
        lodectl()
            .uid(USER)
            .gid(USER)
            .args(["doctor", address, "--json"]),
        &[],
    )
}

/// What the doctor tells the user that is missing: names and remedies.
fn missing(address: &str) -> Result<Vec<(String, String)>> {
    let output = user_doctor(address)?;
    ensure!(!output.status.success(), "nothing is missing");
    let checks: Vec<Value> = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    let text = |check: &Value, key: &str| check[key].as_str().unwrap_or_default().to_owned();
    Ok(checks
        .iter()
        .filter(|check| check["status"] == "missing")
        .map(|check| (text(check, "name"), text(check, "remedy")))
        .collect())
}

/// The figure of `ulimit -l FIGURE (as root), …`.
fn kibibytes(remedy: &str) -> Result<u64> {
    remedy
        .strip_prefix("ulimit -l ")
        .and_then(|rest| rest.split(' ').next()?.parse().ok())
        .with_context(|| format!("no limit to set: {remedy}"))
}

/// The daemon, as the user.
fn start() -> Result<Daemon> {
    let daemon = Daemon::serve(
        Command::new("/bin/lodestored")
            .args(["--config", CONFIGURATION_FILE, "--ready-file", READY])
            .uid(USER)
            .gid(USER),
        READY,
    )?;
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.id()))?;
    let is_users = status
        .lines()
        .any(|line| line.starts_with(&format!("Uid:\t{USER}\t{USER}\t{USER}")));
    ensure!(is_users, "it runs as somebody else: {status}");
    Ok(daemon)
}

fn content() -> Vec<u8> {
    pattern::blocks(0, 256, 51, 4096)
}

fn verify() -> Result<()> {
    let found = user(&["volume", "read", "disk", "--length", "1MiB"], &[])?;
    ensure!(found == content(), "the volume holds something else");
    Ok(())
}

/// Runs `lodectl` as the user against its daemon, to its good end.
fn user(line: &[&str], input: &[u8]) -> Result<Vec<u8>> {
    let mut command = lodectl();
    command.uid(USER).gid(USER).args(["--address", SOCKET]);
    succeeded(line, run(command.args(line), input)?)
}

/// Runs `lodectl` as root, without a daemon.
fn root(line: &[&str]) -> Result<Vec<u8>> {
    succeeded(line, run(lodectl().args(line), &[])?)
}

fn lodectl() -> Command {
    Command::new("/bin/lodectl")
}

fn run(command: &mut Command, input: &[u8]) -> Result<Output> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting lodectl")?;
    let mut stdin = child.stdin.take().context("its input")?;
    stdin.write_all(input)?;
    drop(stdin);
    Ok(child.wait_with_output()?)
}

fn succeeded(line: &[&str], output: Output) -> Result<Vec<u8>> {
    ensure!(
        output.status.success(),
        "lodectl {}: {}{}",
        line.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output.stdout)
}

/// Less than any controller needs.
const SMALL_BYTES: u64 = 1 << 20;
const HOME: &str = "/tmp/user";
const CONFIGURATION_FILE: &str = "/tmp/user/lodestored.toml";
const READY: &str = "/tmp/user/ready";
const SOCKET: &str = "unix:/tmp/user/lodestored.sock";
/// The buffers are those of a real deployment: the doctor's figure is for them.
const CONFIGURATION: &str = r#"
[server]
grpc = []
unix = "/tmp/user/lodestored.sock"
"#;
