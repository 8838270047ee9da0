//! A native program that calls tasks of a component: it estimates pi from the darts that the tasks of `examples/pi`
//! throw.
//!
//! `cargo run --release -p pi-service -- examples/pi`

use std::io::Write;

use sandbar_client::{Client, ClientError, ClientOptions, Job, JobOptions, ObjectRef, TaskOptions, wait};

const TASKS: u64 = 40;
const DARTS: u64 = 250_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "examples/pi".to_owned());
    let client = Client::start(ClientOptions::new())?;
    let program = client.program(path).await?;
    let job = client.job(&program, JobOptions::named("pi-service")).await?;
    let pi = throw_all(&job).await?;
    job.end().await?;
    writeln!(std::io::stdout(), "{pi}")?;
    Ok(())
}

/// Throws all darts, and prints an estimate after each quarter of the tasks.
async fn throw_all(job: &Job) -> Result<f64, ClientError> {
    let throw = job.task("throw").options(TaskOptions::new().max_retries(1));
    let mut rest: Vec<ObjectRef<u64>> = Vec::new();
    for _ in 0..TASKS {
        rest.push(throw.submit((DARTS,)).await?);
    }
    let (mut hits, mut thrown) = (0, 0);
    while !rest.is_empty() {
        let (ready, others) = wait(&rest, TASKS as usize / 4, None).await;
        rest = others;
        for of_task in ready {
            hits += of_task.get().await?;
            thrown += DARTS;
        }
        eprintln!("pi is about {:.4} after {thrown} darts", about(hits, thrown));
    }
    Ok(about(hits, thrown))
}

fn about(hits: u64, thrown: u64) -> f64 {
    4.0 * hits as f64 / thrown as f64
}
