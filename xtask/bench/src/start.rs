//! Fresh sandboxes: the rate of empty calls, each in a new sandbox.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use sandbar_core::{Limits, TenantId};
use sandbar_worker::{Binding, CallRequest, CallSubmission, CallWork, Caller, Compiler, Payload, Pool, PoolOptions};
use tokio::sync::mpsc;

use crate::failure::Failure;
use crate::paths;
use crate::report::Report;
use crate::sandbox::{Data, LoadedGuest};
use crate::timing::{Effort, fastest, median, seconds};

/// Calls in flight, as in a queue of many small tasks.
const IN_FLIGHT: u64 = 8192;
/// Consecutive rounds of one kind. An idle processor can still be slow in the first.
const ROUNDS_PER_KIND: usize = 4;

pub fn run(report: Report, effort: Effort) -> Result<(), Failure> {
    let component = paths::guest("xtask/bench/guest")?;
    let guest = LoadedGuest::new(&component)?;
    let (function, data) = (guest.function("nothing")?, Data::new(&[0])?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let one = runtime.block_on(Calls::new(&component, function, 1))?;
    let two = runtime.block_on(Calls::new(&component, function, 2))?;
    let in_this_process = || -> Result<(), Failure> {
        for _ in 0..effort.calls {
            let mut sandbox = guest.instantiate(&data)?;
            sandbox.open(function, "{}", 0)?;
            sandbox.process(&[])?;
        }
        Ok(())
    };
    let mut rounds = [const { Vec::new() }; 3];
    // Short alternating rounds, so that other load on the machine affects only some of them.
    for _ in 0..effort.rounds.div_ceil(ROUNDS_PER_KIND) {
        let [alone, of_one, of_two] = &mut rounds;
        for _ in 0..ROUNDS_PER_KIND {
            alone.push(seconds(in_this_process)?);
        }
        for _ in 0..ROUNDS_PER_KIND {
            of_one.push(seconds(|| runtime.block_on(one.run(effort.calls)))?);
        }
        for _ in 0..ROUNDS_PER_KIND {
            of_two.push(seconds(|| runtime.block_on(two.run(effort.calls)))?);
        }
    }
    let rates = |summarize: fn(Vec<f64>) -> f64| rounds.clone().map(|seconds| effort.calls as f64 / summarize(seconds));
    // The fastest round shows the cost without other load, the median round the typical cost.
    for (round, [alone, one, two]) in [("", rates(fastest)), (", middle round", rates(median))] {
        report.value(&format!("start/in this process{round}"), alone, "/s");
        report.compare(&format!("start/1 worker{round}"), one, "/s", "in one process, without a worker", alone);
        report.compare(&format!("start/2 workers{round}"), two, "/s", "1 worker", one);
    }
    Ok(())
}

/// Workers for empty calls.
struct Calls {
    pool: Pool,
    binding: Arc<Binding>,
}

impl Calls {
    async fn new(component: &Path, function: u32, workers: usize) -> Result<Calls, Failure> {
        let (limits, program) =
            (Limits { output_bytes_max: 1 << 20, ..Limits::default() }, paths::program("host-worker")?);
        let compiler = Compiler::new(paths::data()?.join("compiled"), program.clone());
        let compiled = Arc::new(compiler.compile(File::open(component)?, TenantId::DEFAULT).await?);
        let binding = Binding::new(compiled, function, "{}".to_owned(), limits, "bench-guest#nothing".to_owned())?;
        let pool = Pool::start(PoolOptions { workers, limits, program, gpus: None, on_demand: false });
        let calls = Calls { pool, binding };
        for _ in 0..workers {
            calls
                .pool
                .call(CallRequest { binding: calls.binding.clone(), seed: 0, work: Calls::work() })
                .await
                .result?;
        }
        Ok(calls)
    }

    fn work() -> CallWork {
        CallWork::Process(Payload::Inline { header: [].into(), body: [].into() })
    }

    /// Submits `calls` calls and returns when all have finished.
    async fn run(&self, calls: u64) -> Result<(), Failure> {
        let (to, mut results) = mpsc::unbounded_channel();
        let caller = Caller::new(self.binding.clone(), to);
        let call = |token| CallSubmission { token, seed: 0, work: Calls::work() };
        let (mut submitted, mut in_flight) = (0, 0);
        while submitted < calls || in_flight > 0 {
            // One call for each finished one.
            let more = (IN_FLIGHT - in_flight).min(calls - submitted);
            self.pool.submit(&caller, (submitted..submitted + more).map(call))?;
            (submitted, in_flight) = (submitted + more, in_flight + more);
            let finished = results.recv().await.ok_or("the pool of workers has stopped")?;
            in_flight -= finished.len() as u64;
            finished.into_iter().try_for_each(|outcome| outcome.called.result.map(drop))?;
        }
        Ok(())
    }
}
