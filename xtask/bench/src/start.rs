//! Fresh sandboxes: how many calls that do nothing run a second, each in its own.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use sandbar_core::Limits;
use sandbar_worker::{Binding, CallRequest, CallSubmission, CallWork, Caller, Compiler, Payload, Pool, PoolOptions};
use tokio::sync::mpsc;

use crate::Failure;
use crate::places;
use crate::report::Report;
use crate::sandbox::{Data, Loaded};
use crate::timing::{Effort, fastest, median, seconds};

/// Calls that are asked for and not answered, as a queue of many small tasks has them.
const IN_FLIGHT: u64 = 8192;
/// Rounds of one kind that follow each other: in the first of them a processor that was idle before may still be slow.
const ROUNDS_A_TURN: usize = 4;

pub fn run(report: Report, effort: Effort) -> Result<(), Failure> {
    let component = places::guest("xtask/bench/guest")?;
    let guest = Loaded::new(&component)?;
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
    // In turn, and each so short that whoever else is on the machine is there for some of them only.
    for _ in 0..effort.rounds.div_ceil(ROUNDS_A_TURN) {
        let [alone, of_one, of_two] = &mut rounds;
        for _ in 0..ROUNDS_A_TURN {
            alone.push(seconds(in_this_process)?);
        }
        for _ in 0..ROUNDS_A_TURN {
            of_one.push(seconds(|| runtime.block_on(one.answered(effort.calls)))?);
        }
        for _ in 0..ROUNDS_A_TURN {
            of_two.push(seconds(|| runtime.block_on(two.answered(effort.calls)))?);
        }
    }
    let rates = |of: fn(Vec<f64>) -> f64| rounds.clone().map(|seconds| effort.calls as f64 / of(seconds));
    // The best round has what a call takes when nothing else is in the way, the middle one how it was.
    for (round, [alone, one, two]) in [("", rates(fastest)), (", middle round", rates(median))] {
        report.value(&format!("start/in this process{round}"), alone, "/s");
        report.compare(&format!("start/1 worker{round}"), one, "/s", "in one process, without a worker", alone);
        report.compare(&format!("start/2 workers{round}"), two, "/s", "1 worker", one);
    }
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

    /// Asks for so many calls, and returns when all are answered.
    async fn answered(&self, calls: u64) -> Result<(), Failure> {
        let (to, mut answers) = mpsc::unbounded_channel();
        let caller = Caller::new(self.binding.clone(), to);
        let call = |token| CallSubmission { token, seed: 0, work: Calls::work() };
        let (mut asked, mut open) = (0, 0);
        while asked < calls || open > 0 {
            // As many more as were answered.
            let more = (IN_FLIGHT - open).min(calls - asked);
            self.pool.submit(&caller, (asked..asked + more).map(call))?;
            (asked, open) = (asked + more, open + more);
            let several = answers.recv().await.ok_or("the workers are gone")?;
            open -= several.len() as u64;
            several.into_iter().try_for_each(|answer| answer.called.result.map(drop))?;
        }
        Ok(())
    }
}
