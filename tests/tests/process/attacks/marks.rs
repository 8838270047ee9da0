//! Marks that tasks of two tenants leave in memory, on stacks and in values, and search for in each other's.
//!
//! `SANDBAR_MARKS` sets the number of tasks.

use std::time::{Duration, Instant};

use futures::future::join_all;
use sandbar_seeds::number_from_env;
use sandbar_tests::print_line;
use serde_json::{Value, json};

use super::client::Program;
use super::scene::{HOSTILE_PROGRAM, Scene};
use crate::accounts::usage;
use crate::lifecycle::until;

const TASKS: u64 = 4_000;
/// Maximum time for a thousand tasks, on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(60);
/// Less than the values that both tenants hold, so that some are spilled.
const OBJECT_MEMORY: &str = "10MiB";

#[test]
fn no_task_finds_marks_of_others() {
    let tasks = number_from_env("SANDBAR_MARKS").unwrap_or(TASKS);
    let scene = Scene::start(1, &["--workers", "2", "--object-memory", OBJECT_MEMORY]);
    let tenants = [&scene.victim, &scene.attackers[0]];
    let (program, since) = (Program::of(HOSTILE_PROGRAM), Instant::now());
    let each = tasks / tenants.len() as u64;
    let runs = tenants.iter().enumerate().map(|(tenant, account)| {
        let program = &program;
        async move {
            let arguments = [("tenant", &*tenant.to_string()), ("tasks", &*each.to_string())];
            let job = account.submit(program, "leave_marks", &arguments).await.expect("an id");
            let time = TIME_MAX * (each / 1000 + 1) as u32;
            account.ended(&job, time).await.expect("the end of the job")
        }
    });
    let jobs = scene.runtime.block_on(join_all(runs));
    for job in jobs {
        assert_eq!(job["result"], json!({ "marks": 0, "changed_values": 0 }), "{job}");
    }
    print_line(format_args!("{tasks} tasks of 2 tenants found no marks of others, in {:?}", since.elapsed()));
    let spills = |row: &Value| row["spilled_bytes"].as_u64().expect("a number") > 0;
    until("both tenants' values were spilled", || {
        usage(&scene.nodes, &[]).iter().filter(|row| spills(row)).count() > 1
    });
}
