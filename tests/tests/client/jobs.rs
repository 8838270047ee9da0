//! Jobs of a client: several at once, many tasks, all kinds of ends, and their inspection.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sandbar_client::{ClientError, Code, Job, JobOptions, ObjectRef, ProgramError, TaskOptions, wait};
use sandbar_tests::{Lab, processor_time};
use serde_json::{Value, json};

use crate::{begin, client, load, run, with_job};

const TASKS: &str = "tests/programs/tasks";

async fn add(job: &Job, a: i64, b: i64) -> ObjectRef<i64> {
    job.task("add").submit((a, b)).await.unwrap()
}

#[test]
fn two_jobs_share_a_node() {
    with_job(TASKS, async |client, job| {
        let other = begin(&client, &load(&client, "tests/programs/actors").await).await;
        let tree: ObjectRef<u64> = job.task("tree").submit((3, 10, 1000)).await?;
        let counts: ObjectRef<u64> = other.task("counts").submit((1000,)).await?;
        let (tree, counts) = tokio::join!(tree.get(), counts.get());
        assert_eq!((tree?, counts?), (1000, 1000));
        // A job's submissions and failures do not affect another job.
        let failed: ObjectRef<i64> = job.task("panics").submit(()).await?;
        failed.get().await.unwrap_err();
        let (one, two) = (job.end().await?, other.end().await?);
        assert_eq!((one.counts.tasks, one.counts.failed, two.counts.tasks), (1112, 1, 1003));
        Ok(())
    });
}

#[test]
fn ten_thousand_tasks_are_under_way_at_once() {
    with_job(TASKS, async |_, job| {
        const COUNT: usize = 10_000;
        for _ in 0..3 {
            let started = Instant::now();
            let mut all = Vec::with_capacity(COUNT);
            for _ in 0..COUNT {
                all.push(job.task("add").submit::<ObjectRef<i64>>((1, 2)).await?);
            }
            let submitted = started.elapsed();
            let (ready, rest) = wait(&all, COUNT, None).await;
            assert_eq!((ready.len(), rest.len()), (COUNT, 0));
            for object in ready {
                assert_eq!(object.get().await?, 3);
            }
            let rate = COUNT as f64 / started.elapsed().as_secs_f64();
            eprintln!("{COUNT} tasks: {rate:.0} per second, submitted in {submitted:?}");
        }
        const ALONE: u32 = 500;
        let started = Instant::now();
        for _ in 0..ALONE {
            assert_eq!(add(&job, 1, 2).await.get().await?, 3);
        }
        eprintln!("one at a time: {:?}", started.elapsed() / ALONE);
        Ok(())
    });
}

#[test]
fn tasks_outlive_their_workers() {
    let lab = Lab::new();
    run(async {
        let client = client(&lab);
        let job = begin(&client, &load(&client, TASKS).await).await;
        let computes = job.task("computes").options(TaskOptions::new().max_retries(1000));
        let mut all = Vec::new();
        for _ in 0..300 {
            all.push(computes.submit::<ObjectRef<u64>>((6_000_000,)).await.unwrap());
        }
        let mut killed = 0;
        while !wait(&all, all.len(), Some(Duration::from_millis(200))).await.1.is_empty() {
            killed += u32::from(tokio::task::block_in_place(|| kill_one(&lab)));
        }
        let first = all[0].get().await.unwrap();
        for object in &all {
            assert_eq!(object.get().await, Ok(first));
        }
        let summary = job.end().await.unwrap();
        eprintln!("{killed} workers killed, {} of them while they ran something", summary.counts.lost_workers);
        assert_eq!(summary.counts.tasks, 300);
        assert!(killed > 1 && summary.counts.lost_workers > 0, "{killed} {summary:?}");
    });
}

/// Kills a worker of a lab's node that runs tasks and has computed for a while, so that work completes between two
/// kills on a machine of any speed. Spares other tests' workers in this process. Returns whether it killed one.
pub(crate) fn kill_one(lab: &Lab) -> bool {
    let listed = lab.host(&["list", "workers", "--json"]).expect_code(0).json();
    let process = |worker: &Value| worker["process"].as_u64().and_then(|process| u32::try_from(process).ok()).unwrap();
    let is_due = |worker: &&Value| {
        let tasks = worker["given"].as_u64().unwrap_or(0) + worker["waiting"].as_u64().unwrap_or(0);
        worker["role"] == "tasks" && tasks > 0 && processor_time(process(worker)) >= Duration::from_millis(50)
    };
    let due = listed["workers"].as_array().unwrap().iter().find(is_due);
    // The process may have ended since.
    due.is_some_and(|due| kill_process(Pid::from_raw(process(due).cast_signed()).unwrap(), Signal::KILL).is_ok())
}

#[test]
fn a_dropped_job_lets_go_of_everything() {
    with_job(TASKS, async |client, job| {
        let mut endless = Vec::new();
        for _ in 0..4 {
            endless.push(job.task("endless").submit::<ObjectRef<i64>>((2, 3)).await?);
        }
        let big = job.put(&vec![0_u8; 16 << 20]).await?;
        big.get().await?;
        drop(job);
        for object in &endless {
            assert_eq!(object.get().await.unwrap_err().fault.code, Code::Cancelled);
        }
        // Tasks that need the whole node can run.
        let other = begin(&client, &load(&client, TASKS).await).await;
        let all = TaskOptions::new().cpus(2.0);
        for _ in 0..3 {
            let whole: ObjectRef<i64> = other.task("add").options(all.clone()).submit((1, 2)).await?;
            assert_eq!(whole.get_timeout(Duration::from_secs(20)).await?, 3);
        }
        Ok(())
    });
}

#[test]
fn a_dropped_client_ends_its_jobs() {
    let lab = Lab::new();
    run(async {
        let client = client(&lab);
        let job = begin(&client, &load(&client, TASKS).await).await;
        let endless: ObjectRef<i64> = job.task("spins").submit(()).await.unwrap();
        let waits = tokio::spawn(async move { endless.get().await });
        add(&job, 1, 2).await.get().await.unwrap();
        drop(client);
        assert_eq!(waits.await.unwrap().unwrap_err().fault.code, Code::Cancelled);
        assert!(job.has_ended());
        let refused = job.task("spins").submit::<ObjectRef<i64>>(()).await.unwrap_err();
        assert!(refused.to_string().contains("its job has ended"), "{refused}");
        assert!(matches!(job.end().await, Err(ClientError::Program(ProgramError::Dropped))));
    });
    let listed = lab.host(&["jobs", "list", "--json"]).expect_code(0).json();
    assert_eq!(listed["jobs"][0]["state"], json!("stopped"), "{listed}");
}

#[test]
fn jobs_are_seen_from_beside() {
    let lab = Lab::new();
    let seen = |arguments: &[&str]| lab.host(arguments).expect_code(0);
    run(async {
        let client = client(&lab);
        let program = load(&client, TASKS).await;
        let lines = Arc::new(Mutex::new(Vec::new()));
        let received = lines.clone();
        let options = JobOptions::named("service").on_log(move |line| received.lock().unwrap().push(line.line.clone()));
        let job = client.job(&program, options).await.unwrap();
        let name = job.name().unwrap().to_owned();
        let warned: ObjectRef<()> = job.task("warns").submit(("a line",)).await.unwrap();
        warned.get().await.unwrap();
        let status = tokio::task::block_in_place(|| seen(&["jobs", "status", &name, "--json"]).json());
        assert_eq!((&status["state"], &status["process"]), (&json!("running"), &json!(std::process::id())));
        assert!(status["program"].as_str().unwrap().ends_with("#service"), "{status}");
        let workers = tokio::task::block_in_place(|| seen(&["list", "workers", "--json"]).json());
        let roles: Vec<_> = workers["workers"].as_array().unwrap().iter().map(|worker| &worker["role"]).collect();
        assert!(roles.contains(&&json!("client")) && roles.contains(&&json!("tasks")), "{workers}");
        job.end().await.unwrap();
        assert_eq!(*lines.lock().unwrap(), ["a line"]);
        let status = tokio::task::block_in_place(|| seen(&["jobs", "status", &name, "--json"]).json());
        assert_eq!((&status["state"], &status["counts"]["tasks"]), (&json!("succeeded"), &json!(1)), "{status}");
        let logs = tokio::task::block_in_place(|| seen(&["jobs", "logs", &name]).stdout);
        assert!(logs.contains("warn: a line"), "{logs}");

        let stopped = begin(&client, &program).await;
        let endless: ObjectRef<i64> = stopped.task("spins").submit(()).await.unwrap();
        let name = stopped.name().unwrap().to_owned();
        tokio::task::block_in_place(|| seen(&["jobs", "stop", &name]));
        assert_eq!(endless.get().await.unwrap_err().fault.code, Code::Cancelled);
        assert!(matches!(stopped.end().await, Err(ClientError::Program(ProgramError::Stopped))));
    });
}
