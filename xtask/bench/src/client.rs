//! The native client: empty tasks that a native program submits and awaits, compared with a driver in a sandbox.

use std::path::Path;
use std::time::Instant;

use sandbar_client::{Client, ClientError, ClientOptions, Job, JobOptions, ObjectRef, wait};

use crate::failure::Failure;
use crate::paths;
use crate::programs::{PROGRAM, submit};
use crate::report::Report;
use crate::timing::{Effort, median};

pub fn run(report: Report, effort: Effort) -> Result<(), Failure> {
    let guest = paths::guest(PROGRAM)?;
    let tasks = effort.tasks;
    let mut seconds = Vec::new();
    for _ in 0..effort.runs {
        seconds.push(submit(&guest, "flat", &[("tasks", tasks), ("at_once", tasks.div_ceil(10))], effort)?.seconds);
    }
    let by_driver = tasks as f64 / median(seconds);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let [in_flight, one] = runtime.block_on(client_seconds(&guest, effort))?;
    let rate = tasks as f64 / in_flight;
    report.compare("client/in flight", rate, "/s", "a driver in a sandbox", by_driver);
    report.value("client/one at a time", 1e6 * one / tasks.div_ceil(10) as f64, "µs");
    Ok(())
}

/// Returns the seconds of all tasks with a tenth of them in flight, and of a tenth of them one after another.
async fn client_seconds(guest: &Path, effort: Effort) -> Result<[f64; 2], Failure> {
    let client = Client::start(ClientOptions::new().worker(paths::program("host-worker")?))?;
    let program = client.program(guest).await?;
    let job = client.job(&program, JobOptions::named("bench")).await?;
    // Warms up; the start of the job is not measured.
    flat(&job, effort.tasks.div_ceil(10), 1).await?;
    let (mut in_flight, mut one) = (Vec::new(), Vec::new());
    for _ in 0..effort.runs {
        let start = Instant::now();
        flat(&job, effort.tasks.div_ceil(10), 10).await?;
        in_flight.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        flat(&job, 1, effort.tasks.div_ceil(10)).await?;
        one.push(start.elapsed().as_secs_f64());
    }
    job.end().await?;
    Ok([median(in_flight), median(one)])
}

/// Submits `at_once` tasks and awaits them all, `times` times.
async fn flat(job: &Job, at_once: u64, times: u64) -> Result<(), ClientError> {
    let nothing = job.task("nothing");
    for _ in 0..times {
        let mut refs: Vec<ObjectRef<()>> = Vec::with_capacity(at_once as usize);
        for _ in 0..at_once {
            refs.push(nothing.submit(()).await?);
        }
        let (ready, _) = wait(&refs, refs.len(), None).await;
        for object in &ready {
            object.get().await?;
        }
    }
    Ok(())
}
