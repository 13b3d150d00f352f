//! What is shipped in `deploy/` is what the tools it is meant for accept.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lode_tests::{Site, http, program};

fn shipped(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy")
        .join(path)
}

fn text_of(path: &str) -> String {
    std::fs::read_to_string(shipped(path)).expect("the file is shipped")
}

fn run(command: &mut Command) -> Output {
    command.output().expect("the program is installed")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The values of `key` in a unit file.
fn values<'text>(unit: &'text str, key: &str) -> Vec<&'text str> {
    unit.lines()
        .filter_map(|line| line.split_once('='))
        .filter(|(name, _)| *name == key)
        .map(|(_, value)| value)
        .collect()
}

#[test]
fn the_daemon_accepts_the_example_configuration_and_not_one_with_a_stray_key() {
    let checked = run(Command::new(program("lodestored"))
        .args(["--check-config", "--config"])
        .arg(shipped("lodestored.toml")));
    assert!(checked.status.success(), "{}", said(&checked));

    let folder = tempfile::tempdir().expect("a temporary folder");
    let stray = folder.path().join("stray.toml");
    let text = text_of("lodestored.toml").replace("[server]", "[server]\nstray_key = 1");
    std::fs::write(&stray, text).expect("the folder takes a file");
    let checked = run(Command::new(program("lodestored"))
        .args(["--check-config", "--config"])
        .arg(&stray));
    assert!(!checked.status.success());
    assert!(said(&checked).contains("stray_key"), "{}", said(&checked));
}

#[test]
fn the_example_configuration_parses_with_its_comments_taken_away() {
    // Each commented key is a real one: `# key = value` becomes `key = value`.
    let text: String = text_of("lodestored.toml")
        .lines()
        .map(|line| {
            let key = line.strip_prefix("# ").filter(|rest| is_setting(rest));
            format!("{}\n", key.unwrap_or(line))
        })
        .collect();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("all.toml");
    std::fs::write(&path, text).expect("the folder takes a file");
    let checked = run(Command::new(program("lodestored"))
        .args(["--check-config", "--config"])
        .arg(&path));
    assert!(checked.status.success(), "{}", said(&checked));
}

#[test]
fn the_example_configuration_shows_every_key_that_has_a_value_by_default() {
    let printed = run(Command::new(program("lodestored"))
        .args(["--print-config", "--config"])
        .arg(shipped("lodestored.toml")));
    assert!(printed.status.success(), "{}", said(&printed));
    let example = text_of("lodestored.toml");
    let all = String::from_utf8_lossy(&printed.stdout);
    let keys: Vec<&str> = all
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .map(|(key, _)| key)
        .collect();
    assert!(keys.len() > 10, "{all}");
    for key in keys {
        let is_shown = example.lines().any(|line| {
            line.trim_start_matches("# ")
                .starts_with(&format!("{key} = "))
        });
        assert!(is_shown, "{key} is missing");
    }
}

const VFIO_ADDITION: &str = "systemd/lodestored.service.d/vfio.conf";

fn is_setting(line: &str) -> bool {
    line.split_once(" = ")
        .is_some_and(|(key, _)| !key.is_empty() && !key.contains(' '))
}

/// What systemd says of the unit as shipped, together with `drop_in` when there is one; `None` on a
/// machine without systemd. It wants the program to exist; everything else is judged as it is.
fn verified(drop_in: Option<&str>) -> Option<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("lodestored.service");
    let built = program("lodestored").display().to_string();
    let unit = text_of("systemd/lodestored.service").replace("/usr/local/bin/lodestored", &built);
    std::fs::write(&path, unit).expect("the folder takes a file");
    if let Some(text) = drop_in {
        let beside = folder.path().join("lodestored.service.d");
        std::fs::create_dir(&beside).expect("the folder takes another");
        std::fs::write(beside.join("vfio.conf"), text).expect("it takes a file");
    }
    let output = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&path)
        .output()
        .ok()?;
    assert!(output.status.success(), "{}", said(&output));
    Some(said(&output))
}

#[test]
fn systemd_accepts_the_unit() {
    match verified(None) {
        Some(complaints) => assert_eq!(complaints, ""),
        // A machine without systemd: the shape is all that can be judged.
        None => assert!(
            values(&text_of("systemd/lodestored.service"), "ExecStart")
                .iter()
                .all(|value| value.starts_with('/'))
        ),
    }
}

#[test]
fn systemd_accepts_the_unit_with_its_addition_for_vfio() {
    let addition = text_of(VFIO_ADDITION);
    if let Some(complaints) = verified(Some(&addition)) {
        assert_eq!(complaints, "");
        let stray = verified(Some(&format!("{addition}Stray=1\n")));
        assert!(stray.is_some_and(|complaints| complaints.contains("Stray")));
    }
}

#[test]
fn with_the_addition_the_daemon_may_open_the_nodes_of_vfio_and_no_other() {
    let (unit, addition) = (
        text_of("systemd/lodestored.service"),
        text_of(VFIO_ADDITION),
    );
    // Hidden by the unit itself: that is what the addition is for.
    assert_eq!(values(&unit, "PrivateDevices"), ["yes"]);
    assert_eq!(values(&addition, "PrivateDevices"), ["no"]);
    assert_eq!(values(&addition, "DevicePolicy"), ["closed"]);
    assert_eq!(
        values(&addition, "DeviceAllow"),
        [
            "/dev/vfio/vfio rw",
            "char-vfio rw",
            "/dev/iommu rw",
            "char-vfio-dev rw"
        ]
    );
}

#[test]
fn the_nodes_of_vfio_belong_to_the_group_that_the_daemon_is_put_into() {
    let addition = text_of(VFIO_ADDITION);
    let [group] = values(&addition, "SupplementaryGroups")[..] else {
        panic!("one group in\n{addition}");
    };
    assert!(text_of("systemd/lodestore-vfio.conf").contains(&format!("\ng {group} -\n")));
    let rules = text_of("udev/70-lodestore-vfio.rules");
    let rules: Vec<&str> = rules
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    for node in [
        r#"SUBSYSTEM=="vfio""#,
        r#"SUBSYSTEM=="vfio-dev""#,
        r#"SUBSYSTEM=="misc", KERNEL=="iommu""#,
    ] {
        let rule = format!(r#"{node}, GROUP="{group}", MODE="0660""#);
        assert!(rules.contains(&rule.as_str()), "{rule}");
    }
    assert_eq!(rules.len(), 3, "{rules:?}");
}

#[test]
fn the_unit_waits_for_readiness_watches_the_daemon_and_lets_it_lock_memory() {
    let unit = text_of("systemd/lodestored.service");
    assert_eq!(values(&unit, "Type"), ["notify"]);
    assert_eq!(values(&unit, "LimitMEMLOCK"), ["infinity"]);
    assert_eq!(values(&unit, "WatchdogSec").len(), 1);
    assert_eq!(values(&unit, "NoNewPrivileges"), ["yes"]);
    // The unit's state folder is where the example configuration puts the pool.
    assert_eq!(values(&unit, "StateDirectory"), ["lodestore"]);
    assert!(text_of("lodestored.toml").contains("file:/var/lib/lodestore/"));
}

#[test]
fn prometheus_accepts_the_scrape_configuration_and_the_rules() {
    let checked = run(Command::new("promtool")
        .args(["check", "config"])
        .arg(shipped("prometheus/prometheus.yml")));
    assert!(checked.status.success(), "{}", said(&checked));
    let checked = run(Command::new("promtool")
        .args(["check", "rules"])
        .arg(shipped("prometheus/rules.yml")));
    assert!(checked.status.success(), "{}", said(&checked));
}

#[test]
fn the_scrape_configuration_asks_where_the_example_configuration_serves() {
    let address = "127.0.0.1:9464";
    assert!(text_of("prometheus/prometheus.yml").contains(address));
    assert!(text_of("lodestored.toml").contains(&format!("http = \"{address}\"")));
}

#[test]
fn the_rules_name_series_that_the_daemon_serves() {
    let rules = text_of("prometheus/rules.yml");
    let is_name =
        |character: char| character.is_ascii_lowercase() || "_0123456789".contains(character);
    let named: Vec<&str> = rules
        .match_indices("lodestore_")
        .filter_map(|(start, _)| {
            rules
                .get(start..)?
                .split(|character| !is_name(character))
                .next()
        })
        .collect();
    assert!(named.len() >= 5, "{named:?}");
    let daemon = Site::new().start();
    let served = http::get(daemon.http(), "/metrics").body;
    for name in named {
        let line = format!("\n{name}{{");
        assert!(served.contains(&line), "no series {name} in\n{served}");
    }
}
