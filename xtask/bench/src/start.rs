//! Fresh sandboxes: how many calls that do nothing run a second, each in its own.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use sandbar_core::Limits;
use sandbar_worker::{Binding, Compiler, Payload, Pool, PoolOptions, Request, Work};
use tokio::sync::mpsc;

use crate::Failure;
use crate::places;
use crate::report::Report;
use crate::sandbox::{Data, Loaded};
use crate::timing::{Effort, least, median};

/// Calls that are asked for and not answered, as a queue of many small tasks has them.
const IN_FLIGHT: u64 = 4096;

pub fn run(report: Report, effort: Effort) -> Result<(), Failure> {
    let component = places::guest("xtask/bench/guest")?;
    let guest = Loaded::new(&component)?;
    let (function, data) = (guest.function("nothing")?, Data::new(&[0])?);
    let alone = least(effort.time, || {
        let mut sandbox = guest.instantiate(&data).expect("there is room");
        sandbox.open(function, "{}", 0).expect("it opens");
        sandbox.process(&[]).expect("it does nothing");
    });
    report.value("start/in this process", 1.0 / alone, "/s");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let [one, two] = runtime.block_on(async {
        let pools = [Calls::new(&component, function, 1).await?, Calls::new(&component, function, 2).await?];
        let mut rates = [Vec::new(), Vec::new()];
        // In turn, so that both see the same machine.
        for _ in 0..effort.rounds {
            for (rates, calls) in rates.iter_mut().zip(&pools) {
                rates.push(calls.per_second(effort.calls).await?);
            }
        }
        Ok::<_, Failure>(rates.map(median))
    })?;
    report.compare("start/1 worker", one, "/s", "in one process, without a worker", 1.0 / alone);
    report.compare("start/2 workers", two, "/s", "1 worker", one);
    Ok(())
}

/// Calls that do nothing, and workers for them.
struct Calls {
    pool: Pool,
    binding: Arc<Binding>,
}

impl Calls {
    async fn new(component: &Path, function: u32, workers: usize) -> Result<Calls, Failure> {
        let (limits, program) =
            (Limits { output_bytes_max: 1 << 20, ..Limits::default() }, places::program("host-worker")?);
        let compiler = Compiler::new(places::data()?.join("compiled"), program.clone());
        let compiled = Arc::new(compiler.compile(File::open(component)?).await?);
        let binding = Binding::new(compiled, function, "{}".to_owned(), limits, "bench-guest#nothing".to_owned())?;
        let calls = Calls { pool: Pool::start(PoolOptions { workers, limits, program }), binding };
        for _ in 0..workers {
            calls.pool.call(calls.request()).await.result?;
        }
        Ok(calls)
    }

    fn request(&self) -> Request {
        let work = Work::Process(Payload::Inline { header: [].into(), body: [].into() });
        Request { binding: self.binding.clone(), seed: 0, work }
    }

    async fn per_second(&self, calls: u64) -> Result<f64, Failure> {
        let started = Instant::now();
        let (to, mut answers) = mpsc::unbounded_channel();
        let to = Arc::new(to);
        (0..IN_FLIGHT).try_for_each(|token| self.pool.submit(self.request(), token, &to))?;
        let mut several = Vec::new();
        for token in IN_FLIGHT..IN_FLIGHT + calls {
            if several.is_empty() {
                several = answers.recv().await.unwrap_or_default();
            }
            several.pop().ok_or("the workers are gone")?.called.result?;
            if token < calls {
                self.pool.submit(self.request(), token, &to)?;
            }
        }
        Ok(calls as f64 / started.elapsed().as_secs_f64())
    }
}
