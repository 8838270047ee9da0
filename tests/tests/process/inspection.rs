//! Inspecting programs while they run and afterwards.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rustix::process::{Pid, Signal, kill_process};
use sandbar_tests::{CommandOutput, Lab, Running, component};
use serde_json::{Value, json};

use crate::lifecycle::until;

/// Returns the arguments that submit a task of the test program.
fn line(task: &str, arguments: &[&str]) -> Vec<String> {
    let program = format!("{}#{task}", component("tests/programs/tasks").display());
    let arguments = arguments.iter().flat_map(|argument| ["--arg".to_owned(), (*argument).to_owned()]);
    ["submit".to_owned(), program].into_iter().chain(arguments).collect()
}

fn start(lab: &Lab, task: &str, arguments: &[&str]) -> Running {
    lab.start(&line(task, arguments).iter().map(String::as_str).collect::<Vec<_>>())
}

fn submit(lab: &Lab, task: &str, arguments: &[&str]) -> CommandOutput {
    start(lab, task, arguments).wait()
}

/// Runs a command and parses its JSON.
#[track_caller]
fn seen(lab: &Lab, arguments: &[&str]) -> Value {
    lab.host(&[arguments, &["--json"]].concat()).expect_code(0).json()
}

fn rows<'a>(listing: &'a Value, list_name: &str) -> &'a Vec<Value> {
    listing[list_name].as_array().unwrap_or_else(|| panic!("no {list_name} in {listing}"))
}

/// Returns a field of each row.
fn each<'a>(rows: &'a [Value], field: &str) -> Vec<&'a Value> {
    rows.iter().map(|row| &row[field]).collect()
}

#[test]
fn a_program_that_runs_is_seen_from_beside() {
    let lab = Lab::new();
    let mut host = start(&lab, "stays", &["bytes=300000", "others=5"]);
    until("its tasks spin", || {
        assert!(!host.has_ended());
        let spinning = lab.host(&["list", "tasks", "--name", "spins", "--json"]);
        // Before the job exists or has started, the list is empty or the command fails.
        spinning.status.success() && spinning.json()["total"] == json!(5)
    });
    let status = seen(&lab, &["jobs", "status"]);
    assert_eq!((&status["state"], &status["process"]), (&json!("running"), &json!(host.process())));
    let tasks = seen(&lab, &["list", "tasks"]);
    let running: Vec<_> = rows(&tasks, "tasks").iter().filter(|task| task["state"] == "running").collect();
    assert!(running.iter().any(|task| task["name"] == "stays" && task["waits_for"] == "objects"), "{tasks}");
    let added = rows(&tasks, "tasks").iter().find(|task| task["name"] == "add").unwrap();
    assert_eq!((&added["state"], &added["attempts"]), (&json!("succeeded"), &json!(1)));
    assert!(added["ended_ns"].as_u64() >= added["begun_ns"].as_u64() && added["memory_bytes"].as_u64() > Some(0));
    let workers = seen(&lab, &["list", "workers"]);
    let roles = each(rows(&workers, "workers"), "role");
    assert_eq!(roles.iter().filter(|role| **role == "driver").count(), 1, "{workers}");
    assert!(rows(&workers, "workers").iter().all(|worker| worker["memory_bytes"].as_u64() > Some(0)), "{workers}");
    let objects = seen(&lab, &["objects"]);
    let largest = &rows(&objects, "objects")[0];
    assert_eq!(
        (&largest["place"], &largest["state"], &largest["task"]),
        (&json!("memory"), &json!("ready"), &json!(null))
    );
    assert!(largest["bytes"].as_u64() >= Some(300_000) && rows(largest, "workers").len() == 1, "{objects}");
    let memory = seen(&lab, &["memory"]);
    assert_eq!(memory["memory_bytes"], largest["bytes"]);
    assert!(rows(&memory, "holders").len() == 1 && rows(&memory, "processes").len() >= 3, "{memory}");
    let summary = seen(&lab, &["summary", "tasks"]);
    let spins = rows(&summary, "names").iter().find(|name| name["name"] == "spins").unwrap();
    assert_eq!(spins["pending"].as_u64().unwrap() + spins["running"].as_u64().unwrap(), 5, "{summary}");
    assert_eq!(rows(&seen(&lab, &["list", "actors"]), "actors").len(), 0);
    lab.host(&["jobs", "logs"])
        .expect_code(0)
        .stdout
        .lines()
        .for_each(|line| assert!(line.ends_with("info: it stays")));
    // The same as tables.
    for (arguments, expected_texts) in [
        (&["jobs", "list"][..], &["JOB", "running", "#stays"][..]),
        (&["jobs", "status"], &["bytes=300000 others=5", "running"]),
        (&["list", "tasks"], &["TASK", "running (waits for objects)", "succeeded"]),
        (&["list", "workers"], &["driver", "spins"]),
        (&["summary", "tasks"], &["PENDING", "spins"]),
        (&["memory"], &["HELD BY", "node"]),
    ] {
        let text = lab.host(arguments).expect_code(0).stdout;
        assert!(expected_texts.iter().all(|word| text.contains(word)), "{text}");
    }
    stops(&lab, host);
}

/// Stops the only running job.
fn stops(lab: &Lab, host: Running) {
    let id = seen(lab, &["jobs", "status"])["id"].as_str().unwrap().to_owned();
    let short = &id[id.len() - 6..];
    lab.host(&["jobs", "delete", short]).expect_code(1).expect_stderr(&["is running; stop it first"]);
    lab.host(&["jobs", "stop", short]).expect_code(0).expect_stderr(&[short, "stopped"]);
    host.wait().expect_code(130).expect_stderr(&["stopped by `host jobs stop`"]);
    let status = seen(lab, &["jobs", "status", short]);
    assert_eq!(status["state"], "stopped");
    let counts = &status["counts"];
    assert_eq!((&counts["succeeded"], &counts["stopped"]), (&json!(1), &json!(6)), "{status}");
    let tasks = seen(lab, &["list", "tasks", "--state", "stopped"]);
    assert!(each(rows(&tasks, "tasks"), "name").contains(&&json!("stays")), "{tasks}");
    lab.host(&["objects"]).expect_code(0).expect_stderr(&["has ended and holds no objects"]);
    // The job has ended already.
    lab.host(&["jobs", "stop", short]).expect_code(0).expect_stderr(&["has ended already: stopped"]);
    lab.host(&["jobs", "delete", short]).expect_code(0);
    lab.host(&["jobs", "status"]).expect_code(1).expect_stderr(&["there are no jobs yet"]);
}

/// The program's result and its tasks' results are objects as well. A summary examines at most the latest 200,000.
#[test]
fn hidden_rows_are_counted() {
    for (held, chosen) in [(500, ""), (200_500, ", selected from the newest 200000")] {
        let lab = Lab::new();
        let mut host = start(&lab, "holds", &[&format!("objects={held}")]);
        until("the program holds its objects", || {
            assert!(!host.has_ended());
            let tasks = lab.host(&["list", "tasks", "--name", "spins", "--json"]);
            tasks.status.success() && tasks.json()["total"] == json!(2)
        });
        let total = held + 3;
        let listed = seen(&lab, &["list", "objects", "--limit", "3"]);
        assert_eq!((&listed["total"], rows(&listed, "objects").len()), (&json!(total), 3), "{listed}");
        let looked_at = if chosen.is_empty() { json!(null) } else { json!(200_000) };
        assert_eq!(listed["looked_at"], looked_at);
        assert_eq!(rows(&listed, "objects")[0]["bytes"].as_u64() > Some(5000), chosen.is_empty(), "the largest first");
        for (arguments, shown) in [(&["list", "objects", "--limit", "3"][..], 3), (&["objects"], 100)] {
            let expected_texts = format!(
                "{shown} of {total} objects shown{chosen}; `host list objects --limit N` shows more, up to 100000"
            );
            let ended = lab.host(arguments).expect_code(0).expect_stderr(&[&expected_texts]);
            assert_eq!(ended.stdout.lines().count(), 1 + shown, "{}", ended.stdout);
        }
        let tasks = lab.host(&["list", "tasks", "--limit", "1"]).expect_code(0);
        tasks.expect_stderr(&["1 of 3 tasks shown; `host list tasks --limit N` shows more"]);
        assert_eq!(seen(&lab, &["memory"])["objects"], json!(total));
        assert_eq!(lab.host(&["list", "objects", "--limit", "1000"]).expect_code(0).stderr.is_empty(), held == 500);
        host.interrupt();
        host.wait().expect_code(130);
    }
}

#[test]
fn ended_jobs_keep_their_records() {
    let lab = Lab::new();
    submit(&lab, "failures", &[]).expect_code(0).expect_stderr(&["job "]);
    let failed = seen(&lab, &["list", "tasks", "--state", "failed"]);
    let codes = each(rows(&failed, "tasks"), "error").into_iter().map(|error| error["code"].as_str().unwrap());
    let mut codes: Vec<_> = codes.collect();
    codes.sort_unstable();
    assert_eq!(codes, ["panic", "refused", "refused", "time-out"], "{failed}");
    assert_eq!(failed["total"], json!(4));
    // One task was still running when the job ended.
    let stopped = seen(&lab, &["list", "tasks", "--state", "stopped"]);
    assert_eq!(each(rows(&stopped, "tasks"), "name"), ["spins"]);
    let chain = json!(["failures", "panics"]);
    assert!(rows(&failed, "tasks").iter().any(|task| task["error"]["chain"] == chain), "{failed}");
    let summary = seen(&lab, &["summary", "tasks"]);
    let spins = rows(&summary, "names").iter().find(|name| name["name"] == "spins").unwrap();
    assert!(
        spins["failed"] == 1 && spins["stopped"] == 1 && spins["took_ns"]["min"].as_u64() >= Some(30_000_000),
        "{summary}"
    );
    let trace: Value = lab.host(&["timeline"]).expect_code(0).json();
    let events = rows(&trace, "traceEvents");
    assert!(events.iter().any(|event| event["ph"] == "X" && event["name"] == "spins"), "{trace}");
    assert!(events.iter().any(|event| event["ph"] == "s"), "{trace}");
    lab.host(&["timeline", "-o", "timeline.json"]).expect_code(0).expect_stderr(&["timeline.json"]);
    let written: Value = serde_json::from_slice(&fs::read(lab.path("timeline.json")).unwrap()).unwrap();
    assert_eq!(written, trace);
    // A job that fails as a whole.
    submit(&lab, "passes_on", &[]).expect_code(1);
    let status = seen(&lab, &["jobs", "status"]);
    assert_eq!((&status["state"], &status["error"]["code"]), (&json!("failed"), &json!("refused")));
    assert_eq!(status["error"]["chain"], json!(["passes_on", "fails"]));
    let jobs = seen(&lab, &["jobs", "list"]);
    assert_eq!(each(rows(&jobs, "jobs"), "state"), ["failed", "succeeded"]);
    assert_eq!(rows(&seen(&lab, &["jobs", "list", "--state", "succeeded"]), "jobs").len(), 1);
    // A job that never started.
    submit(&lab, "none", &[]).expect_code(1);
    let status = seen(&lab, &["jobs", "status"]);
    assert_eq!((&status["state"], &status["begun_ms"]), (&json!("failed"), &json!(null)));
}

#[test]
fn lines_are_shown_folded_and_kept_each() {
    let lab = Lab::new();
    let ended =
        submit(&lab, "repeats", &["tasks=50"]).expect_code(0).expect_stderr(&["times across tasks]", "warn: another"]);
    let shown = ended.stderr.matches("warn: the same").count();
    assert!((2..10).contains(&shown), "{}", ended.stderr);
    let logs = lab.host(&["jobs", "logs"]).expect_code(0).stdout;
    assert_eq!((logs.lines().count(), logs.matches(") warn: the same\n").count()), (51, 50), "{logs}");
    // By name and by id.
    let (_, id) = logs.lines().next().unwrap().split_once("warns ").unwrap();
    let (id, _) = id.split_once(',').unwrap();
    for (task, lines) in [("warns", 51), (id, 1), ("repeats", 0)] {
        let logs = lab.host(&["jobs", "logs", "--task", task]).expect_code(0).stdout;
        assert_eq!(logs.lines().count(), lines, "{task}: {logs}");
    }
}

#[test]
fn lines_that_are_too_many_are_counted() {
    let lab = Lab::new();
    submit(&lab, "talks", &["lines=2000"])
        .expect_code(0)
        .expect_stderr(&["lines more were dropped: `limits.log_bytes_max`"]);
    let logs = lab.host(&["jobs", "logs"]).expect_code(0).stdout;
    let (kept, (_, last)) = (logs.lines().count() - 1, logs.trim_end().rsplit_once("warn: (").unwrap());
    let dropped: usize = last.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(kept + dropped, 2000, "{last}");
}

#[test]
fn logs_are_followed_until_the_job_has_ended() {
    let lab = Lab::new();
    let mut host = start(&lab, "stays", &["bytes=10", "others=1"]);
    until("the program logs", || {
        assert!(!host.has_ended());
        lab.host(&["jobs", "logs"]).stdout.contains("it stays")
    });
    let mut follower = lab.start(&["jobs", "logs", "--follow"]);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(!follower.has_ended());
    host.interrupt();
    host.wait().expect_code(130);
    assert_eq!(follower.wait().expect_code(0).stdout.matches("info: it stays\n").count(), 1);
}

#[test]
fn whatever_ends_a_program_there_is_a_record() {
    let lab = Lab::new();
    // Interrupted while its crate is built.
    lab.write("slow/Cargo.toml", "");
    let cargo = lab.write("cargo", "#!/bin/sh\ntouch runs\nsleep 600\n");
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = lab.command(&["submit", "slow", "--json"]);
    command.env("CARGO", &cargo);
    let host = Running::new(command);
    until("cargo runs", || lab.path("slow/runs").exists());
    let status = seen(&lab, &["jobs", "status"]);
    assert_eq!((&status["state"], &status["program"]), (&json!("pending"), &json!("slow")));
    lab.host(&["list", "tasks"]).expect_code(1).expect_stderr(&["has not started"]);
    host.interrupt();
    host.wait().expect_code(130);
    let status = seen(&lab, &["jobs", "status"]);
    assert_eq!((&status["state"], &status["error"]["message"]), (&json!("stopped"), &json!("interrupted")));
    // Interrupted while it runs, and killed before it could write a record.
    for (signal, state, expected_texts) in [
        (Signal::INT, "stopped", "interrupted"),
        (Signal::TERM, "stopped", "interrupted"),
        (Signal::KILL, "failed", "its node was killed"),
    ] {
        let host = start(&lab, "spins", &[]);
        until("it runs", || seen(&lab, &["jobs", "status"])["state"] == "running");
        kill_process(Pid::from_raw(host.process().cast_signed()).unwrap(), signal).unwrap();
        host.wait();
        let status = seen(&lab, &["jobs", "status"]);
        assert_eq!(
            (&status["state"], &status["error"]["message"]),
            (&json!(state), &json!(expected_texts)),
            "{signal:?}"
        );
        assert!(status["ended_ms"].as_u64() >= status["submitted_ms"].as_u64());
    }
    assert_eq!(rows(&seen(&lab, &["jobs", "list"]), "jobs").len(), 4);
}

/// A program runs without records if they can't be written.
#[test]
fn a_program_runs_where_nothing_can_be_kept() {
    let lab = Lab::new();
    let file = lab.write("file", "");
    let line = line("tree", &["depth=1", "width=3", "steps=1"]);
    let mut command = lab.command(&line.iter().map(String::as_str).collect::<Vec<_>>());
    command.arg("--json").env("XDG_STATE_HOME", &file);
    let ended =
        Running::new(command).wait().expect_code(0).expect_stderr(&["warning: this job is not recorded", "file"]);
    assert_eq!((&ended.json()["job"], &ended.json()["result"]), (&json!(null), &json!(3)));
}

#[test]
fn a_job_has_a_name() {
    let lab = Lab::new();
    let expected_texts = line("tree", &["depth=0", "width=0", "steps=1"]);
    let expected_texts: Vec<_> = expected_texts.iter().map(String::as_str).collect();
    let ended = lab.host(&[&expected_texts[..], &["--json"]].concat()).expect_code(0);
    let name = ended.json()["job"].as_str().unwrap().to_owned();
    let short = &name[name.len() - 6..];
    assert!(ended.stderr.contains(&format!("job {short}\n")), "{}", ended.stderr);
    for id in [short, &name, &short[..3]] {
        assert_eq!(seen(&lab, &["jobs", "status", id])["id"], json!(name));
    }
    assert!(!lab.host(&[&expected_texts[..], &["-q"]].concat()).expect_code(0).stderr.contains("job "));
    for arguments in [["jobs", "status", "nothing"], ["jobs", "stop", "nothing"], ["jobs", "delete", "nothing"]] {
        lab.host(&arguments).expect_code(1).expect_stderr(&["there is no job nothing"]);
    }
    lab.host(&["jobs", "stop"]).expect_code(2);
    lab.host(&["jobs", "delete"]).expect_code(2);
}

#[test]
fn unmet_demands_are_reported_once() {
    let lab = Lab::new();
    // Takes longer than two intervals of the check, on any machine.
    let expected_texts = line("hoards", &["bytes=700000000", "steps=4000000000"]);
    let expected_texts: Vec<_> = expected_texts.iter().map(String::as_str).collect();
    let ended = lab.host(&[&expected_texts[..], &["--memory", "1000000000", "--workers", "2"]].concat()).expect_code(0);
    let warning =
        "(node) warn: a task waits for 700000000 bytes of memory, 300000000 of 1000000000 on the node are free";
    assert_eq!(ended.stderr.matches(warning).count(), 1, "{}", ended.stderr);
}

#[test]
fn help_of_inspection_commands_has_examples() {
    let lab = Lab::new();
    for command in [
        &["jobs"][..],
        &["jobs", "list"],
        &["jobs", "status"],
        &["jobs", "logs"],
        &["jobs", "stop"],
        &["jobs", "delete"],
        &["list"],
        &["list", "tasks"],
        &["list", "actors"],
        &["list", "objects"],
        &["list", "workers"],
        &["list", "placement-groups"],
        &["list", "nodes"],
        &["summary"],
        &["summary", "tasks"],
        &["timeline"],
        &["objects"],
        &["memory"],
    ] {
        let help = lab.host(&[command, &["--help"]].concat()).expect_code(0).stdout;
        assert!(help.contains("Examples:") && help.contains(&format!("host {}", command.join(" "))), "{help}");
    }
}
