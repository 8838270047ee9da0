//! No wait is endless and silent: sleeps, cycles of actors, handles of detached actors, and more submissions than fit.

use std::process::Command;
use std::time::Duration;

use sandbar_tests::{Lab, Running, component};
use serde_json::{Value, json};

use crate::lifecycle::until;
use crate::programs::start_of;

const TASKS: &str = "tests/programs/tasks";
const ACTORS: &str = "tests/programs/actors";

/// Runs a task of a program and checks its result. Returns its duration.
#[track_caller]
fn check(program: &str, task: &str, arguments: &[(&str, u64)], expected: impl Into<Value>) -> Duration {
    let lab = Lab::new();
    let ended = start_of(&lab, &component(program), task, arguments).wait().expect_code(0);
    let summary = ended.json();
    assert_eq!(summary["result"], expected.into(), "{task}: {summary}\n{}", ended.stderr);
    assert_eq!(summary["lost_workers"], json!(0), "{task}: {summary}\n{}", ended.stderr);
    ended.duration
}

#[test]
fn other_tasks_run_while_a_task_sleeps() {
    check(TASKS, "sleeps", &[("ms", 10)], 10);
    check(TASKS, "sleeps", &[("ms", 0)], 0);
    // More sleepers than workers: in sequence they would take 200 s.
    let duration = check(TASKS, "sleeps_beside", &[("count", 200), ("ms", 1000)], 200_000);
    assert!(duration < Duration::from_secs(60), "{duration:?}");
    check(TASKS, "takes_in_time", &[("count", 20), ("ms", 5)], 190);
}

#[test]
fn a_sleep_ends_with_its_time_or_when_it_is_cancelled() {
    let expected = r#"Err("get-time-out") [Err("time-out"), Err("cancelled")]"#;
    check(TASKS, "sleeps_for_ever", &[], expected);
}

#[test]
fn a_task_that_sleeps_is_seen_to_wait() {
    let lab = Lab::new();
    let host = start_of(&lab, &component(TASKS), "sleeps", &[("ms", 3_600_000)]);
    let tasks = || {
        let listed = lab.host(&["list", "tasks", "--json"]);
        if listed.stdout.is_empty() { Value::Null } else { listed.json()["tasks"][0].clone() }
    };
    until("the task waits", || tasks()["waits_for"] == json!("a time"));
    host.interrupt();
    host.wait().expect_code(130);
}

#[test]
fn loops_that_wait_for_the_clock_end() {
    check(TASKS, "clocks", &[("ms", 20)], "true true");
}

#[test]
fn std_offers_no_input_threads_or_waits() {
    check(TASKS, "reads_input", &[], r#"Ok(0) """#);
    check(TASKS, "prints", &[("lines", 5000)], 5000);
    check(TASKS, "spawns", &[], "unsupported");
    check(TASKS, "waits_of_std", &[], "panic panic 1");
}

#[test]
fn functions_and_trainers_sleep_within_their_limit_of_time() {
    let lab = Lab::new();
    lab.write("rows.csv", "k,x,y\na,1,2\na,2,4\nb,3,6\nb,4,8\n");
    let udf = component("tests/hostile/polite");
    let job = |trainer: &str, limit: u64| {
        format!(
            "[input]\npaths = [\"rows.csv\"]\n[[transform]]\nudf = \"{0}#batch_sleeps\"\n[train]\ngroup_by = [\"k\"]\n\
             features = [\"x\"]\ntarget = \"y\"\ntest = 0\nmin_rows = 1\nmodels = [{{ udf = \"{0}#{trainer}\" }}]\n\
             [output]\npath = \"out.parquet\"\n[limits]\ntime_ms_max = {limit}\n",
            udf.display()
        )
    };
    lab.write("sleeps.toml", job("fit_sleeps", 60_000));
    lab.host(&["submit", "sleeps.toml"]).expect_code(0);
    lab.write("late.toml", job("fit_sleeps_long", 300));
    lab.host(&["submit", "late.toml"])
        .expect_code(1)
        .expect_stderr(&["ran longer than 300 ms (time_ms_max)", "[time-out]"]);
}

#[test]
fn actors_sleep() {
    check(ACTORS, "patient", &[("ms", 4000)], "1 2 4000 10");
}

#[test]
fn a_circle_of_calls_is_an_error_that_names_it() {
    let lab = Lab::new();
    let ended = start_of(&lab, &component(ACTORS), "calls_itself", &[]).wait().expect_code(1);
    let ended = ended.expect_stderr(&["calls_itself > Peer.calls > Peer.echo: it would wait for ever", "[deadlock]"]);
    let circle = "`Peer.echo` (";
    assert!(ended.stderr.contains(circle) && ended.stderr.contains("waits for `Peer.calls` ("), "{}", ended.stderr);
    for others in [1, 2, 5] {
        let ended = start_of(&lab, &component(ACTORS), "comes_back", &[("others", others)]).wait().expect_code(1);
        ended.expect_stderr(&["it would wait for ever", "waits for `Peer.passes_on` (", "[deadlock]"]);
    }
    for actors in [2, 3, 5] {
        let after = vec!["5"; actors as usize].join(" ");
        check(ACTORS, "call_in_a_ring", &[("actors", actors)], format!("true true {after}"));
    }
    check(ACTORS, "rings_of_other_kinds", &[], "deadlock true; 1 1; true");
}

#[test]
fn a_detached_actor_is_ready() {
    check(ACTORS, "detached_is_ready", &[], 77);
}

/// Returns the peak resident memory of a running host in MiB.
fn peak_mib(host: &mut Running) -> u64 {
    let mut peak = 0;
    while host.is_running() {
        let status = std::fs::read_to_string(format!("/proc/{}/status", host.process())).unwrap_or_default();
        let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = kib.and_then(|kib| kib.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
        peak = peak.max(kib.unwrap_or(0) / 1024);
        std::thread::sleep(Duration::from_millis(5));
    }
    peak
}

/// Four times the bytes that unfinished calls may hold.
#[test]
fn submissions_beyond_the_limit_wait() {
    let lab = Lab::new();
    let (tasks, bytes) = (12_000, 90_000);
    let mut host = start_of(&lab, &component(TASKS), "submits_much", &[("tasks", tasks), ("bytes", bytes)]);
    let peak = peak_mib(&mut host);
    let summary = host.wait().expect_code(0).json();
    assert_eq!((&summary["result"], &summary["lost_workers"]), (&json!(tasks * bytes), &json!(0)));
    assert!(peak < 600, "the node took {peak} MiB");
}

/// Tasks that wait for their own submissions exceed the limit and still make progress.
#[test]
fn nested_submissions_beyond_the_limit_make_progress() {
    let leaves = 100_000 * 8u64.pow(4);
    check(TASKS, "submits_much_deep", &[("bytes", 100_000), ("depth", 4), ("width", 8)], leaves);
}

/// Arguments in files: more of them than the node may have open.
#[test]
fn arguments_in_more_files_than_may_be_open_wait_their_turn() {
    let lab = Lab::new();
    let program = format!("{}#submits_much", component(TASKS).display());
    let (tasks, bytes) = (9000, 110_000);
    let host_command = lab.command(&["submit", &program, "--json"]);
    let mut command = Command::new("bash");
    command
        .args(["-c", "ulimit -n 5000; exec \"$0\" \"$@\""])
        .arg(host_command.get_program())
        .args(host_command.get_args());
    command.args(["--arg", &format!("tasks={tasks}"), "--arg", &format!("bytes={bytes}")]).current_dir(lab.path(""));
    command.envs(host_command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ended = Running::new(command).wait().expect_code(0);
    let summary = ended.json();
    assert_eq!((&summary["result"], &summary["lost_workers"]), (&json!(tasks * bytes), &json!(0)), "{}", ended.stderr);
}

#[test]
fn oversized_messages_are_rejected_or_sent_otherwise() {
    let expected = r#"1000 Err("bad-output") 400000"#;
    check(TASKS, "large_messages", &[("objects", 300_000), ("bytes", 100_000)], expected);
}
