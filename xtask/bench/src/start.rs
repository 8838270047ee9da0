//! Fresh sandboxes: how many calls that do nothing run a second, each in its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbar_core::Limits;
use sandbar_worker::{Binding, Compiler, Payload, Pool, PoolOptions, Request, Work};
use tokio::sync::mpsc;

use crate::Failure;
use crate::places;
use crate::report::Report;
use crate::sandbox::{Data, Loaded};
use crate::timing::{least, median};

const CALLS: u64 = 200_000;
/// Calls that are asked for and not answered, as a queue of many small tasks has them.
const IN_FLIGHT: u64 = 4096;
/// Answers that are taken at once.
const ANSWERS_MAX: usize = 256;
const RUNS: usize = 5;

pub fn run(report: Report) -> Result<(), Failure> {
    let component = places::guest("xtask/bench/guest")?;
    let guest = Loaded::new(&component)?;
    let (function, data) = (guest.function("nothing")?, Data::new(&[0])?);
    let alone = least(Duration::from_secs(1), || {
        let mut sandbox = guest.instantiate(&data).expect("there is room");
        sandbox.open(function, "{}", 0).expect("it opens");
        sandbox.process(&[]).expect("it does nothing");
    });
    report.value("start/in this process", 1.0 / alone, "/s");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let one = runtime.block_on(calls_per_second(&component, function, 1))?;
    report.compare("start/1 worker", one, "/s", "in one process, without a worker", 1.0 / alone);
    let two = runtime.block_on(calls_per_second(&component, function, 2))?;
    report.compare("start/2 workers", two, "/s", "1 worker", one);
    Ok(())
}

async fn calls_per_second(component: &std::path::Path, function: u32, workers: usize) -> Result<f64, Failure> {
    let (limits, program) = (Limits { output_bytes_max: 1 << 20, ..Limits::default() }, places::host()?);
    let compiler = Compiler::new(places::data()?.join("compiled"), program.clone());
    let compiled = Arc::new(compiler.compile(&std::fs::read(component)?).await?);
    let binding = Binding::new(compiled, function, "{}".to_owned(), limits, "bench-guest#nothing".to_owned())?;
    let pool = Pool::start(PoolOptions { workers, limits, program });
    let request = || Request {
        binding: binding.clone(),
        seed: 0,
        work: Work::Process(Payload::Inline { header: Vec::new(), body: Vec::new() }),
        without: Vec::new(),
    };
    for _ in 0..workers {
        pool.call(request()).await.result?;
    }
    let mut rates = Vec::new();
    for _ in 0..RUNS {
        let started = Instant::now();
        let (to, mut answers) = mpsc::unbounded_channel();
        (0..IN_FLIGHT).try_for_each(|token| pool.submit(request(), token, &to))?;
        let mut several = Vec::new();
        for token in IN_FLIGHT..IN_FLIGHT + CALLS {
            if several.is_empty() {
                answers.recv_many(&mut several, ANSWERS_MAX).await;
            }
            several.pop().ok_or("the workers are gone")?.called.result?;
            if token < CALLS {
                pool.submit(request(), token, &to)?;
            }
        }
        rates.push(CALLS as f64 / started.elapsed().as_secs_f64());
    }
    Ok(median(rates))
}
