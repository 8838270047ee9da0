//! Files under `deploy` use valid command lines, and give a node the time that it needs to leave.

use std::collections::BTreeMap;

use sandbar_tests::{Lab, workspace};

fn read(path: &str) -> String {
    std::fs::read_to_string(workspace().join("deploy").join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Checks that the host accepts this command line, without running it.
#[track_caller]
fn check_accepted(lab: &Lab, line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [program, arguments @ ..] = &words[..] else { panic!("a line of nothing") };
    assert!(program.ends_with("host"), "{line}");
    // The host checks the other arguments before it prints the help.
    lab.host(&[arguments, &["--help"]].concat()).expect_code(0);
}

/// Parses seconds: `25s` or `40`.
fn seconds(text: &str) -> u64 {
    text.trim_end_matches('s').parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn grace(line: &str) -> u64 {
    seconds(line.split("--grace ").nth(1).expect("it says how long").split(' ').next().expect("a time"))
}

#[test]
fn the_systemd_unit_is_for_this_host() {
    let (lab, unit) = (Lab::new(), read("systemd/sandbar.service"));
    let settings: BTreeMap<&str, &str> =
        unit.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('=')).collect();
    for join in ["", "--join first:7410"] {
        check_accepted(&lab, &settings["ExecStart"].replace("$SANDBAR_JOIN", join));
    }
    assert!(seconds(settings["TimeoutStopSec"]) > grace(settings["ExecStart"]), "{settings:?}");
    // The node hands over its objects first and ends its workers itself.
    assert_eq!((settings["KillSignal"], settings["KillMode"]), ("SIGTERM", "mixed"));
    assert!(settings["ExecStart"].contains("--data /var/lib/sandbar/"), "its state folder");
}

#[test]
fn the_kubernetes_manifest_is_for_this_host() {
    let (lab, manifest) = (Lab::new(), read("kubernetes/sandbar.yaml"));
    let lines: Vec<&str> = manifest.lines().map(str::trim).collect();
    let serves: Vec<String> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("exec "))
        .map(|line| line.replace("\"$HOSTNAME\"", "sandbar-1"))
        .collect();
    assert_eq!(serves.len(), 2, "the founder's and the others'");
    let grace_period =
        lines.iter().find_map(|line| line.strip_prefix("terminationGracePeriodSeconds: ")).expect("a time");
    for line in &serves {
        check_accepted(&lab, line);
        assert!(seconds(grace_period) > grace(line), "{line}");
        assert!(line.contains(":7410") && line.contains("--data /data/node"), "{line}");
    }
    check_accepted(&lab, "host cluster init --data /data/node");
    let probes: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("exec: {command: ")).collect();
    assert_eq!(probes.len(), 3);
    for probe in probes {
        let words: Vec<String> = serde_json::from_str(probe.trim_end_matches('}')).expect("a list");
        check_accepted(&lab, &words.join(" "));
    }
    for ports in ["port: 7410, protocol: UDP", "containerPort: 7410, protocol: UDP"] {
        assert!(manifest.contains(ports), "{ports}");
    }
    // The host rejects a folder that others can read.
    assert!(manifest.contains("mkdir -p -m 700 /data/node"));
}

#[test]
fn the_image_has_all_programs_of_the_host() {
    let file = read("Dockerfile");
    let rust = std::fs::read_to_string(workspace().join("Cargo.toml")).expect("it is there");
    let version = rust.lines().find_map(|line| line.strip_prefix("rust-version = ")).expect("a version");
    assert!(file.contains(&format!("FROM rust:{}-", version.trim_matches('"'))), "{file}");
    assert!(
        ["host ", "host-worker ", "host-gpu "].iter().all(|name| file.contains(&format!("release/{name}"))),
        "{file}"
    );
}
