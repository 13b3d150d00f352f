//! The command line against a server in memory: what it prints, how it exits, what it leaves.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use assert_cmd::cargo::CommandCargoExt;
use lode_api::memory_server::{Behaviour, Ignored, MemoryServer};
use serde_json::Value;
use tempfile::TempDir;

struct Site {
    server: MemoryServer,
    folder: TempDir,
}

impl Site {
    fn new(behaviour: Behaviour) -> Self {
        Self {
            server: MemoryServer::start(behaviour),
            folder: TempDir::new().expect("a temporary folder"),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::cargo_bin("lodectl").expect("the program is built");
        command.env("LODESTORE_ADDRESS", self.server.address());
        command
    }

    fn run(&self, line: &str) -> Output {
        let words = line.split(' ');
        self.command().args(words).output().expect("it starts")
    }

    fn json(&self, line: &str) -> Value {
        let output = self.run(&format!("--output json {line}"));
        assert!(output.status.success(), "{line}: {}", stderr(&output));
        serde_json::from_slice(&output.stdout).expect("JSON on standard output")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A sparse image with data at its start, in its middle and at its end.
    fn image(&self, size: u64) -> PathBuf {
        let path = self.path("in.img");
        let file = File::create(&path).expect("a new file");
        file.set_len(size).expect("a sparse file");
        for offset in [0, size / 2, size - 5000] {
            file.write_all_at(&[0x5A; 5000], offset).expect("room");
        }
        path
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
    let mut names: Vec<_> = entries
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn volumes_are_made_listed_resized_and_deleted() {
    let site = Site::new(Behaviour::default());
    let made = site.json("volume create disk --size 1GiB --block-size 512 --durability data");
    assert_eq!(made["size_bytes"], 1_u64 << 30);
    assert_eq!(made["block_size_bytes"], 512);
    assert_eq!(made["durability"], "data");
    let listed = site.json("volume list");
    assert_eq!(listed.as_array().map(Vec::len), Some(1));
    let table = stdout(&site.run("volume list"));
    assert!(
        table.contains("disk") && table.contains("1.0 GiB"),
        "{table}"
    );
    let grown = site.json("volume resize disk --size 2GiB");
    assert_eq!(grown["size_bytes"], 2_u64 << 30);
    assert_eq!(site.json("volume delete disk")["deleted"], "disk");
    assert_eq!(site.json("volume list").as_array().map(Vec::len), Some(0));
}

#[test]
fn an_error_is_one_line_with_code_and_reason_and_exit_code_one() {
    let site = Site::new(Behaviour::default());
    let output = site.run("volume show nothing");
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert_eq!(
        text,
        "lodectl: there is no volume \"nothing\" (NOT_FOUND, VOLUME_NOT_FOUND)\n"
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn a_server_that_is_not_there_is_exit_code_one_and_names_the_address() {
    let mut site = Site::new(Behaviour::default());
    site.server.stop();
    let output = site.run("info");
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains(&site.server.address()), "{text}");
    assert!(text.contains("UNAVAILABLE"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn wrong_usage_is_exit_code_two_and_help_is_zero() {
    let site = Site::new(Behaviour::default());
    for line in [
        "volume",
        "volume create disk",
        "volume create disk --size 1.5G",
        "nonsense",
    ] {
        assert_eq!(site.run(line).status.code(), Some(2), "{line}");
    }
    let help = site.run("--help");
    assert_eq!(help.status.code(), Some(0));
    assert!(stdout(&help).contains("Exit codes"));
    assert_eq!(site.run("completions bash").status.code(), Some(0));
}

#[test]
fn info_and_pools_are_shown_in_both_formats() {
    let site = Site::new(Behaviour::default());
    assert_eq!(site.json("info")["limits"]["io_length_max_bytes"], 1 << 20);
    assert!(stdout(&site.run("info")).contains("1.0 MiB"));
    let made = site.json("pool create second memory:1GiB");
    assert_eq!(made["devices"][0]["name"], "memory:1GiB");
    assert_eq!(site.json("pool list").as_array().map(Vec::len), Some(2));
    assert!(stdout(&site.run("pool status second")).contains("memory:1GiB"));
    assert_eq!(site.json("pool export second")["exported"], "second");
    assert_eq!(site.json("pool status")["name"], "memory");
    let refused = site.run("pool import memory:1GiB");
    assert!(stderr(&refused).contains("NOT_A_POOL"));
}

#[test]
fn an_image_comes_back_the_same_and_its_holes_stay_holes() {
    let site = Site::new(Behaviour::default());
    let size = (16 << 20) + 512;
    let image = site.image(size);
    let line = format!(
        "volume import {} disk --create --block-size 512",
        image.display()
    );
    let imported = site.json(&line);
    assert_eq!(imported["size_bytes"], size);
    assert_eq!(imported["durability"], "data");
    let data = imported["data_bytes"].as_u64().expect("a number");
    assert_eq!(
        data,
        6 * 4096 + 512,
        "only units that are not zero are sent"
    );
    let extents = site.json("volume extents disk");
    assert_eq!(extents.as_array().map(Vec::len), Some(5), "{extents}");

    let out = site.path("out.img");
    let exported = site.json(&format!("volume export disk {}", out.display()));
    assert_eq!(
        exported["hole_bytes"].as_u64().map(|holes| holes + data),
        Some(size)
    );
    assert!(fs::read(&image).expect("the image") == fs::read(&out).expect("the export"));
    let taken = fs::metadata(&out).expect("the export").blocks() * 512;
    assert!(taken < 1 << 20, "the export takes {taken} bytes");
    assert_eq!(names(site.folder.path()), ["in.img", "out.img"]);
}

#[test]
fn an_export_replaces_a_file_only_by_force_and_never_what_is_no_file() {
    let site = Site::new(Behaviour::default());
    site.json("volume create disk --size 8KiB");
    let out = site.path("out.img");
    fs::write(&out, "precious").expect("a new file");
    let refused = site.run(&format!("volume export disk {}", out.display()));
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("--force"), "{}", stderr(&refused));
    assert_eq!(fs::read(&out).expect("the file"), b"precious");
    site.json(&format!("volume export disk {} --force", out.display()));
    assert_eq!(fs::read(&out).expect("the file"), [0; 8192]);
    let refused = site.run(&format!(
        "volume export disk {} --force",
        site.folder.path().display()
    ));
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(names(site.folder.path()), ["out.img"]);
}

#[test]
fn an_import_that_fails_removes_the_volume_it_made_unless_told_to_keep_it() {
    let site = Site::new(Behaviour {
        capacity_bytes: 1 << 20,
        ..Behaviour::default()
    });
    let image = site.path("full.img");
    fs::write(&image, vec![1; 4 << 20]).expect("a new file");
    let output = site.run(&format!("volume import {} disk --create", image.display()));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("NO_SPACE"), "{}", stderr(&output));
    assert_eq!(site.json("volume list").as_array().map(Vec::len), Some(0));
    site.run(&format!(
        "volume import {} disk --create --keep",
        image.display()
    ));
    assert_eq!(site.json("volume list").as_array().map(Vec::len), Some(1));
}

/// Runs a command until `begun`, asks it to stop, and returns how it ended.
fn interrupted(site: &Site, line: &str, begun: impl Fn() -> bool) -> Output {
    let mut child = site
        .command()
        .args(line.split(' '))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    while !begun() {
        let ended = child.try_wait().expect("a child");
        assert!(
            ended.is_none(),
            "it ended before it was interrupted: {ended:?}"
        );
    }
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status();
    assert!(sent.expect("kill is there").success());
    child.wait_with_output().expect("it ends")
}

#[test]
fn an_interrupted_import_removes_its_volume_and_an_interrupted_export_its_file() {
    let site = Site::new(Behaviour {
        ignored: Ignored::Transfers,
        ..Behaviour::default()
    });
    let image = site.image(1 << 20);
    let has_volume = || site.json("volume list").as_array().map(Vec::len) == Some(1);
    let line = format!("volume import {} disk --create", image.display());
    let output = interrupted(&site, &line, has_volume);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), "lodectl: interrupted\n");
    assert!(!has_volume());

    site.json("volume create disk --size 1MiB");
    let has_file = || names(site.folder.path()).len() == 2;
    let line = format!("volume export disk {}", site.path("out.img").display());
    let output = interrupted(&site, &line, has_file);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(names(site.folder.path()), ["in.img"]);
}

#[test]
fn an_import_into_a_volume_overwrites_what_was_there_with_its_zeros_too() {
    let site = Site::new(Behaviour::default());
    site.json("volume create disk --size 32KiB");
    let noise = site.path("noise.img");
    fs::write(&noise, vec![9; 32 << 10]).expect("a new file");
    site.json(&format!("volume import {} disk", noise.display()));
    let image = site.image(16 << 10);
    site.json(&format!("volume import {} disk", image.display()));
    let read = site.run("volume read disk");
    let expected = [fs::read(&image).expect("the image"), vec![9; 16 << 10]].concat();
    assert!(
        read.stdout == expected,
        "the rest of the volume is left alone"
    );

    let large = site.image(64 << 10);
    let refused = site.run(&format!("volume import {} disk", large.display()));
    assert!(
        stderr(&refused).contains("resize it first"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn parts_are_written_from_and_read_into_pipes() {
    let site = Site::new(Behaviour::default());
    site.json("volume create disk --size 1MiB");
    let write = |data: &[u8]| {
        let mut child = site
            .command()
            .args(["volume", "write", "disk", "--offset", "8KiB"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut pipe = child.stdin.take().expect("a pipe");
        pipe.write_all(data).expect("a reader");
        drop(pipe);
        child.wait_with_output().expect("it ends")
    };
    assert!(write(&[0x41; 8192]).status.success());
    let read = site.run("volume read disk --offset 12KiB --length 8KiB");
    assert_eq!(read.stdout, [[0x41; 4096], [0; 4096]].concat());
    let dump = stdout(&site.run("volume read disk --offset 12KiB --length 8KiB --hex"));
    assert!(dump.starts_with("000000003000  41 41 41"), "{dump}");
    assert!(dump.ends_with("000000004000  4096 zero bytes\n"), "{dump}");
    let refused = write(&[0x41; 100]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("block size"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn a_closed_pipe_ends_the_program_quietly() {
    let site = Site::new(Behaviour::default());
    site.json("volume create disk --size 64MiB");
    for line in ["volume export disk -", "volume read disk", "volume list"] {
        let mut child = site
            .command()
            .args(line.split(' '))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{line}");
        assert_eq!(stderr(&output), "", "{line}");
    }
}

#[test]
fn a_measurement_counts_its_requests_and_tells_latencies() {
    let site = Site::new(Behaviour {
        credits: 8,
        ..Behaviour::default()
    });
    site.json("volume create disk --size 1MiB");
    for rw in ["write", "read", "randwrite", "randread"] {
        let line = format!("bench --volume disk --rw {rw} --depth 8 --ops 500 --json");
        let report: Value = serde_json::from_slice(&site.run(&line).stdout).expect("JSON");
        assert_eq!(report["ops"], 500, "{rw}");
        assert_eq!(report["rw"], rw);
        let latency = &report["latency_us"];
        assert!(latency["p50"].as_f64() <= latency["p99_9"].as_f64());
        assert!(latency["min"].as_f64() > Some(0.0));
    }
    let few = site.run("bench --volume disk --depth 16 --ops 1");
    assert!(stderr(&few).contains("grants 8"), "{}", stderr(&few));
    let unaligned = site.run("bench --volume disk --block-size 100 --ops 9 --depth 8");
    assert!(
        stderr(&unaligned).contains("UNALIGNED"),
        "{}",
        stderr(&unaligned)
    );
}

#[test]
fn the_doctor_needs_no_server_and_its_exit_code_says_whether_something_is_missing() {
    let mut command = Command::cargo_bin("lodectl").expect("the program is built");
    let output = command
        .args(["doctor", "--output", "json"])
        .env("LODESTORE_ADDRESS", "unix:/nowhere/at/all")
        .output()
        .expect("it starts");
    let checks: Value = serde_json::from_slice(&output.stdout).expect("JSON on standard output");
    let checks = checks.as_array().expect("a list of checks");
    assert!(!checks.is_empty());
    let mut is_missing = false;
    for check in checks {
        let status = check["status"].as_str().expect("a status");
        assert!(
            ["good", "advice", "unknown", "missing"].contains(&status),
            "{check}"
        );
        assert_eq!(check["remedy"].is_string(), status != "good", "{check}");
        is_missing |= status == "missing";
    }
    assert_eq!(output.status.code(), Some(i32::from(is_missing)));
}

#[test]
fn a_controller_that_is_not_there_can_be_neither_bound_nor_given_back() {
    for verb in ["bind", "unbind"] {
        let mut command = Command::cargo_bin("lodectl").expect("the program is built");
        let output = command
            .args(["device", verb, "ffff:ff:1f.7"])
            .output()
            .expect("it starts");
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(
            stderr(&output),
            "lodectl: there is no PCI function ffff:ff:1f.7\n"
        );
    }
}
