//! Faults of programs: each gives an error with the reason, and the node, the job and other jobs continue.

use std::fmt::Debug;
use std::time::Duration;

use sandbar_client::{Client, ClientOptions, Code, Job, ObjectRef, TaskError, TaskOptions};
use sandbar_tests::{Lab, cache, host};

use crate::{begin, load, run, with_job};

const TASKS: &str = "tests/programs/tasks";

/// Checks a task's error, and that the job continues.
#[track_caller]
fn check<T: Debug>(result: Result<T, TaskError>, after: Result<i64, TaskError>, code: Code, expected_text: &str) {
    let error = result.expect_err(expected_text);
    assert!(
        error.fault.code == code && error.to_string().contains(expected_text),
        "`{expected_text}` is not in `{error}`"
    );
    assert_eq!(after, Ok(3), "{expected_text}");
}

async fn adds(job: &Job) -> Result<i64, TaskError> {
    let sum: ObjectRef<i64> = job.task("add").submit((1, 2)).await.expect("its arguments are right");
    sum.get().await
}

#[test]
fn errors_of_a_task_are_its_own() {
    with_job(TASKS, async |_, job| {
        let deeper = job.task("deeper").submit::<ObjectRef<u64>>((0,)).await?.get().await;
        check(deeper, adds(&job).await, Code::TaskLimit, "would be nested 1001 deep, its job's limit is 1000");
        let fails = job.task("fails").submit::<ObjectRef<i64>>(("no",)).await?.get().await;
        check(fails, adds(&job).await, Code::Refused, "service > fails: no");
        let panics = job.task("panics").submit::<ObjectRef<i64>>(()).await?.get().await;
        check(panics, adds(&job).await, Code::Panic, "on purpose");
        let options = TaskOptions::new().timeout(Duration::from_millis(30));
        let late = job.task("spins").options(options).submit::<ObjectRef<i64>>(()).await?.get().await;
        check(late, adds(&job).await, Code::TimeOut, "it ran longer than 30 ms");
        let cancelled = job.task("spins").submit::<ObjectRef<i64>>(()).await?;
        cancelled.cancel(false).await;
        check(cancelled.get().await, adds(&job).await, Code::Cancelled, "");
        Ok(())
    });
}

/// References that a job's root task never releases are bounded, and are released with the job.
#[test]
fn references_that_a_driver_leaks_are_bounded_and_freed_at_its_end() {
    const BYTES: usize = 4 << 20;
    let lab = Lab::new();
    run(async {
        // Room for eight values in memory, and for none on disk.
        let options = ClientOptions::new()
            .workers(2)
            .object_memory(8 * BYTES as u64 + (1 << 20))
            .disk_reserve(1 << 50)
            .cache(cache().join("sandbar"))
            .state(lab.path("state").join("sandbar"))
            .spill(lab.path("tmp"))
            .worker(host().with_file_name("host-worker"));
        let client = Client::start(options).expect("a client starts");
        let program = load(&client, TASKS).await;
        for _ in 0..5 {
            let job = begin(&client, &program).await;
            for number in 0..6 {
                let value = job.put(&vec![number; BYTES]).await.unwrap();
                assert_eq!(value.get().await.map(|value| value[BYTES - 1]), Ok(number));
                std::mem::forget(value);
            }
            let leaked = job.put(&vec![0_u8; 3 * BYTES]).await.unwrap();
            let error = leaked.get().await.expect_err("there is no room");
            assert_eq!(error.fault.code, Code::StoreFull, "{error}");
            assert_eq!(adds(&job).await, Ok(3));
            job.end().await.unwrap();
        }
    });
    assert_eq!(lab.names(), Vec::<String>::new());
}
