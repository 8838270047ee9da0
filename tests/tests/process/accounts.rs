//! What tenants have used, and budgets.

use std::time::Duration;

use sandbar_tests::{component, print_line};
use serde_json::{Value, json};

use crate::cluster::Nodes;
use crate::lifecycle::until;
use crate::takeover::Tenant;

fn task(name: &str) -> String {
    format!("{}#{name}", component("tests/programs/tasks").display())
}

/// Returns the rows of `host usage` of an operator.
pub fn usage(nodes: &Nodes, more: &[&str]) -> Vec<Value> {
    let line = [&["usage", "--json", "--data", "1"][..], more].concat();
    nodes.lab.host(&line).expect_code(0).json()["rows"].as_array().expect("rows").clone()
}

/// The sum over the records of a job's tasks is the row of the job, exactly, also with attempts that fail.
#[test]
fn usage_is_exact_to_the_task() {
    let mut nodes = Nodes::start(1);
    let address = nodes.address("node-1");
    let [ada, bob] = ["ada", "bob"].map(|name| Tenant::new(&nodes, name));
    let books = task("books");
    let submit = ["submit", &books, "--arg", "tasks=20", "--arg", "steps=200000", "--json"];
    let id = ada.host(&address, &submit).expect_code(0).json()["id"].as_str().expect("an id").to_owned();
    let summary = ada.host(&address, &["summary", "tasks", "--job", &id, "--json"]).expect_code(0).json();
    let sum = |field: &str| -> u64 {
        summary["names"].as_array().expect("names").iter().map(|name| name[field].as_u64().unwrap()).sum()
    };
    let rows = usage(&nodes, &["--tenant", "ada", "--job", &id]);
    let [row] = &rows[..] else { panic!("one row: {rows:?}") };
    print_line(format_args!("{row}"));
    assert_eq!(
        (&row["tenant"], &row["job"], &row["run"], &row["node"]),
        (&json!("ada"), &json!(id), &json!(1), &Value::Null)
    );
    assert_eq!(row["cpu_ns"], json!(sum("computed_ns")));
    assert_eq!(row["gpu_ns"], json!(sum("gpu_ns")));
    assert_eq!(
        row["memory_bytes_max"].as_u64(),
        summary["names"].as_array().unwrap().iter().map(|name| name["memory_bytes_max"].as_u64().unwrap()).max()
    );
    // The root task, 20 that succeed, and one that fails three times.
    assert_eq!((&row["tasks"], sum("attempts")), (&json!(22), 24));
    let attempts = ["attempts_succeeded", "attempts_failed", "attempts_lost"].map(|field| row[field].as_u64().unwrap());
    assert_eq!(attempts, [21, 3, 0]);
    assert_eq!((&row["log_bytes"], &row["network_bytes"]), (&json!(30), &json!(0)));
    assert!(row["object_bytes"].as_u64().unwrap() >= 64 << 10 && row["wall_ns"].as_u64().unwrap() > 0, "{row}");
    // A tenant sees its own, and no nodes.
    let own = ada.host(&address, &["usage", "--json", "--job", &id]).expect_code(0).json();
    assert_eq!(own["rows"], json!(rows));
    assert_eq!(bob.host(&address, &["usage", "--json"]).expect_code(0).json()["rows"], json!([]));
    ada.host(&address, &["usage", "--by", "node"]).expect_code(1).expect_stderr(&["shared with other tenants"]);
    ada.host(&address, &["usage", "--tenant", "bob"]).expect_code(2).expect_stderr(&["for operators"]);
    let table = ada.host(&address, &["usage"]).expect_code(0).stdout;
    assert!(["TENANT", &id, "(uploads)"].iter().all(|text| table.contains(text)), "{table}");
    let of_tenant = usage(&nodes, &["--by", "tenant"]);
    assert_eq!((of_tenant.len(), &of_tenant[0]["cpu_ns"], &of_tenant[0]["job"]), (1, &row["cpu_ns"], &Value::Null));
    assert!(of_tenant[0]["upload_bytes"].as_u64().unwrap() > 1000, "{of_tenant:?}");
    assert_eq!(usage(&nodes, &["--by", "node"])[0]["node"], json!("node-1"));
    nodes.lab.host(&["usage", "--data", "1", "--output", "usage.parquet"]).expect_code(0);
    let parquet = std::fs::read(nodes.lab.path("usage.parquet")).expect("it is written");
    assert!(parquet.starts_with(b"PAR1") && parquet.ends_with(b"PAR1"));
    // It is kept when the node stops, and counts for the budgets of the next one.
    let before = usage(&nodes, &[]);
    nodes.stop(0);
    nodes.lab.host(&["usage", "--data", "1"]).expect_code(1).expect_stderr(&["no node runs"]);
    nodes.add();
    assert_eq!(usage(&nodes, &[]), before);
}

/// Attempts that end with their job or their worker count as well, and so does training.
#[test]
fn what_does_not_succeed_is_booked() {
    let nodes = Nodes::start(1);
    let address = nodes.address("node-1");
    let ada = Tenant::new(&nodes, "ada");
    let id = ada.host(&address, &["submit", &task("spins"), "--no-wait"]).expect_code(0).stdout.trim().to_owned();
    until("it runs", || ada.status(&address, &id)["state"] == "running");
    std::thread::sleep(Duration::from_millis(300));
    ada.host(&address, &["jobs", "stop", &id]).expect_code(0);
    until("its time is booked", || {
        let rows = usage(&nodes, &["--job", &id]);
        rows.first().is_some_and(|row| row["cpu_ns"].as_u64().unwrap() > 100_000_000)
    });
}

/// Tasks fail once a budget is used up, and running ones go on. A budget can be changed and removed.
#[test]
fn budgets_of_a_day_are_enforced() {
    let nodes = Nodes::start(1);
    let address = nodes.address("node-1");
    let [ada, bob] = ["ada", "bob"].map(|name| Tenant::new(&nodes, name));
    let set = |setting: &str, value: &str| {
        nodes.lab.host(&["tenant", "set", "ada", setting, value, "--data", "1"]).expect_code(0);
        std::thread::sleep(Duration::from_secs(2));
    };
    let (books, add) = (task("books"), task("add"));
    let books = ["submit", &books, "--arg", "tasks=2", "--arg", "steps=20000"];
    let add = ["submit", &add, "--arg", "a=1", "--arg", "b=2"];
    set("--cpu-seconds-per-day-max", "0");
    ada.host(&address, &add).expect_code(1).expect_stderr(&[
        "used 0 seconds of CPU time on this node today, the limit is 0 (cpu-seconds-per-day-max)",
        "00:00 UTC",
        "[tenant-limit]",
    ]);
    bob.host(&address, &add).expect_code(0);
    set("--cpu-seconds-per-day-max", "none");
    ada.host(&address, &books).expect_code(0);
    // It has logged 30 bytes.
    set("--log-bytes-per-day-max", "30");
    ada.host(&address, &add).expect_code(1).expect_stderr(&["used 30 bytes of log lines", "(log-bytes-per-day-max)"]);
    set("--log-bytes-per-day-max", "10KiB");
    ada.host(&address, &add).expect_code(0);
    let listed = nodes.lab.host(&["tenant", "list", "ada", "--json", "--data", "1"]).expect_code(0).json();
    assert_eq!(listed["tenants"][0]["settings"]["log_bytes_per_day_max"], json!(10 << 10));
    let refused = nodes.lab.host(&["tenant", "set", "ada", "--job-seconds-max", "0", "--data", "1"]);
    assert!(!refused.status.success() && refused.stderr.contains("job_seconds_max"), "{}", refused.stderr);
    set("--job-seconds-max", "1");
    ada.host(&address, &["submit", &task("spins")])
        .expect_code(1)
        .expect_stderr(&["the limit of its tenant is 1 (job-seconds-max)", "[tenant-limit]"]);
    ada.host(&address, &add).expect_code(0);
}
