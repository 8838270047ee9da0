//! A worker pool with many calls queued at once.

use std::collections::VecDeque;
use std::fs::{File, Permissions};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::{ArrayRef, Float64Array, RecordBatch};
use sandbar_core::{Code, Fault, Function, Limits, TenantId};
use sandbar_tests::{Lab, component, host};
use sandbar_worker::{
    Binding, CallJob, CallRequest, CallScheduler, CallSubmission, CallWork, Caller, CompiledComponent, Compiler,
    Groups, JobCalls, Lease, Leases, Payload, Pool, PoolOptions, SubmissionResult,
};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Maximum rounds of quick calls until a message carries the answers of many.
const ROUNDS_MAX: usize = 10;

#[test]
fn slow_calls_do_not_delay_other_answers() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let polite = PolitePool::new().await;
        // From here on a message carries as many calls as it can, unless the machine is busy.
        let mut largest = 0;
        for _ in 0..ROUNDS_MAX {
            largest = polite.results("scalar_divides", 600).await.iter().map(Vec::len).max().unwrap_or(0);
            if largest > 100 {
                break;
            }
        }
        assert!(largest > 100, "no message carried the answers of more than {largest} quick calls");
        for results in polite.results("batch_dawdles", 5).await {
            assert_eq!(results.len(), 1, "the answer of a slow call waited for another call");
        }
    });
}

#[test]
fn output_of_functions_is_logged() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let results = PolitePool::new().await.results("batch_prints", 1).await;
        let logged: Vec<_> = results[0][0].called.log.iter().map(|line| (line.level, line.message.as_str())).collect();
        assert_eq!(logged, [("info", "1 rows"), ("warn", "where is None?"), ("info", "no end")]);
    });
}

#[test]
fn a_call_that_no_message_holds_is_refused_and_others_are_not() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let polite = PolitePool::new().await;
        let groups = Groups { count: 200_000, without: (0..200_000).step_by(2).collect(), ..Groups::default() };
        let payload = Payload::Inline { header: [].into(), body: [].into() };
        let called = polite.pool.call(request(&bind(&polite.compiled, 0), CallWork::Fit(payload, groups.into()))).await;
        let fault = called.result.unwrap_err();
        assert!(fault.message.contains("exceeds the limit of"), "{fault}");
        assert_eq!(polite.results("batch_prints", 2).await.iter().flatten().count(), 2);
    });
}

#[test]
fn a_worker_that_dies_before_it_begins_a_call_is_not_replaced_for_ever() {
    // Reads the node's greeting. All but the second report ready (variant 0 of a worker's messages).
    const DOOMED: &str = "#!/bin/sh\nhead -c 1 > /dev/null\nprintf '\\000' >&0\n";
    const NEVER_READY: &str = "#!/bin/sh\nhead -c 1 > /dev/null\nexit 3\n";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let polite = PolitePool::new().await;
        for (script, code, why) in [
            (DOOMED, Code::WorkerLost, "4 workers died while they ran it; the last: exit status: 0"),
            (NEVER_READY, Code::Host, "a worker can't be started: exit status: 3 before it was ready"),
        ] {
            let program = polite.script(script);
            let pool = Pool::start(PoolOptions {
                workers: 1,
                limits: Limits::default(),
                program,
                gpus: None,
                on_demand: false,
            });
            let binding = bind(&polite.compiled, 0);
            for _ in 0..2 {
                let called = pool.call(request(&binding, CallWork::Describe)).await;
                let fault = called.result.unwrap_err();
                assert_eq!(fault.code, code, "{fault}");
                assert!(fault.message.contains(why), "{fault}");
            }
        }
    });
}

#[test]
fn a_worker_that_can_not_be_started_leaves_its_calls_to_the_others() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let polite = PolitePool::new().await;
        // The first to start is a real worker.
        let (first, worker) = (polite.lab.path("first"), host().with_file_name("host-worker"));
        let script =
            format!("#!/bin/sh\nmkdir {} 2> /dev/null && exec {} \"$@\"\nexit 3\n", first.display(), worker.display());
        let pool = Pool::start(PoolOptions {
            workers: 2,
            limits: Limits::default(),
            program: polite.script(&script),
            gpus: None,
            on_demand: false,
        });
        let binding = polite.bind("scalar_divides");
        let work = || calls_of_a_row(0..1).map(|call| call.work).next().unwrap();
        for call in 0..30 {
            let called = pool.call(request(&binding, work())).await;
            assert!(called.result.is_ok(), "{call}: {called:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // A worker of a pool that starts on demand has a lease while it can't be started, and must return it.
        std::fs::remove_dir(&first).unwrap();
        let program = polite.lab.path("program");
        let (workers, limits, gpus, on_demand) = (2, Limits::default(), None, true);
        let pool = Arc::new(Pool::start(PoolOptions { workers, limits, program, gpus, on_demand }));
        let (run, usage) = Default::default();
        let job = CallJob { name: "job", tenant: TenantId(7), origin: None, run, usage };
        let calls = JobCalls::start(&pool, &SingleLease::default(), job).unwrap();
        for call in 0..30 {
            let called = timeout(Duration::from_secs(60), calls.call(request(&binding, work()))).await;
            assert!(called.as_ref().is_ok_and(|called| called.result.is_ok()), "{call}: {called:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
}

#[test]
fn a_worker_that_does_not_read_is_noticed() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let limits = Limits { time_ms_max: 500, ..Limits::default() };
        let polite = PolitePool::with(limits).await;
        polite.results("scalar_divides", 100).await;
        let raw = File::open(component("tests/hostile/raw")).unwrap();
        let raw = Arc::new(polite.compiler.compile(raw, TenantId::DEFAULT).await.unwrap());
        let functions = polite.pool.call(request(&bind(&raw, 0), CallWork::Describe)).await.result.unwrap();
        let functions = functions.product.into_functions().unwrap();
        let endless = functions.iter().position(|f| f.name == "open-loops").unwrap();
        // While the first call runs, the bindings of the others exceed a socket's buffer.
        let params =
            |i: usize| if i == 0 { "{}".to_owned() } else { format!(r#"{{"{i}": "{}"}}"#, "x".repeat(60_000)) };
        let bindings = (0..200).map(|i| {
            let (compiled, function) = if i == 0 { (&raw, endless) } else { (&polite.compiled, 0) };
            Binding::new(compiled.clone(), function as u32, params(i), limits, "f".to_owned()).unwrap()
        });
        let payload = Payload::Inline { header: [].into(), body: [].into() };
        let calls = bindings.map(|binding| polite.pool.call(request(&binding, CallWork::Process(payload.clone()))));
        let called = futures::future::join_all(calls).await;
        let codes: Vec<_> = called.into_iter().map(|called| called.result.unwrap_err().code).collect();
        assert_eq!(codes[0], Code::TimeOut);
        assert!(codes[1..].iter().all(|code| *code == Code::Refused), "{codes:?}");
    });
}

#[test]
fn each_call_of_many_callers_is_answered_once() {
    const CALLS: [u64; 8] = [1, 700, 3, 0, 2000, 1, 64, 900];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let limits = Limits { time_ms_max: 500, ..Limits::default() };
        let polite = PolitePool::with(limits).await;
        let raw = File::open(component("tests/hostile/raw")).unwrap();
        let raw = Arc::new(polite.compiler.compile(raw, TenantId::DEFAULT).await.unwrap());
        let functions = polite.pool.call(request(&bind(&raw, 0), CallWork::Describe)).await;
        let functions = functions.result.unwrap().product.into_functions().unwrap();
        let endless = functions.iter().position(|f| f.name == "open-loops").unwrap() as u32;
        let endless = Binding::new(raw, endless, "{}".to_owned(), limits, "raw".to_owned()).unwrap();
        let caller = |binding| {
            let (to, from) = mpsc::unbounded_channel();
            (Caller::new(binding, to), from)
        };
        let mut callers = [caller(polite.bind("scalar_divides")), caller(polite.bind("batch_prints"))];
        let (stuck, mut of_stuck) = caller(endless);
        let (dropped, of_dropped) = caller(polite.bind("scalar_divides"));
        drop(of_dropped);
        // Calls of the two functions alternate, with one that takes the worker away from those behind it.
        let mut submitted = [0; 2];
        for (turn, calls) in CALLS.into_iter().enumerate() {
            for ((caller, _), submitted) in callers.iter().zip(&mut submitted) {
                polite.pool.submit(caller, calls_of_a_row(*submitted..*submitted + calls)).unwrap();
                polite.pool.submit(&dropped, calls_of_a_row(0..calls)).unwrap();
                *submitted += calls;
            }
            if turn == CALLS.len() / 2 {
                polite.pool.submit(&stuck, calls_of_a_row(7..8)).unwrap();
            }
        }
        for ((_, results), submitted) in callers.iter_mut().zip(submitted) {
            let mut tokens = Vec::new();
            while (tokens.len() as u64) < submitted {
                for outcome in timeout(Duration::from_secs(60), results.recv()).await.unwrap().unwrap() {
                    assert!(outcome.called.result.is_ok(), "{outcome:?}");
                    tokens.push(outcome.token);
                }
            }
            tokens.sort_unstable();
            assert!(tokens.iter().copied().eq(0..submitted), "{tokens:?}");
        }
        let results = of_stuck.recv().await.unwrap();
        let of_stuck = results.iter().map(|outcome| (outcome.token, outcome.called.result.as_ref().unwrap_err().code));
        assert_eq!(of_stuck.collect::<Vec<_>>(), [(7, Code::TimeOut)]);
        let settled = polite.pool.call(request(&polite.bind("scalar_divides"), CallWork::Describe)).await;
        assert!(settled.result.is_ok(), "{settled:?}");
        callers.iter_mut().for_each(|(_, results)| assert!(results.try_recv().is_err(), "a call was answered twice"));
    });
}

/// Two workers, and a scheduler that grants one lease at a time: calls run only in turns, which alternate between jobs.
#[test]
fn calls_of_jobs_run_in_turns_by_leases() {
    const CALLS: usize = 12;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let polite = PolitePool::new().await;
        let program = host().with_file_name("host-worker");
        let (limits, gpus, on_demand) = (Limits::default(), None, false);
        let pool = Arc::new(Pool::start(PoolOptions { workers: 2, limits, program, gpus, on_demand }));
        let scheduler = SingleLease::default();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let job = |tenant: u64| {
            let (run, usage) = Default::default();
            let job = CallJob { name: "job", tenant: TenantId(tenant), origin: None, run, usage };
            let calls = JobCalls::start(&pool, &scheduler, job).unwrap();
            let (binding, seen) = (polite.bind("batch_dawdles"), seen.clone());
            async move {
                let all = calls_of_a_row(0..CALLS as u64).map(|call| {
                    let (calls, binding, seen) = (calls.clone(), binding.clone(), seen.clone());
                    async move {
                        let called = calls.call(request(&binding, call.work)).await;
                        assert!(called.result.is_ok(), "{called:?}");
                        seen.lock().unwrap().push((calls.tenant().0, calls.pool().tenants()));
                    }
                });
                futures::future::join_all(all).await;
            }
        };
        tokio::join!(job(7), job(8));
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        let switches = seen.windows(2).filter(|two| two[0].0 != two[1].0).count();
        assert!(switches >= 4, "{seen:?}");
        // The list is read after the call: its worker may serve the other tenant already.
        let is_listed = |tenant: u64| seen.iter().any(|(_, tenants)| tenants.contains(&TenantId(tenant)));
        assert!(is_listed(7) && is_listed(8), "{seen:?}");
        // A worker returns its lease after it has answered.
        let all_returned = async {
            while scheduler.0.lock().unwrap().held > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(30), all_returned).await.expect("leases are returned");
        let state = scheduler.0.lock().unwrap();
        assert_eq!((state.held_max, state.held, state.waiting.len()), (1, 0, 0));
    });
}

/// Grants one lease at a time, in the order of the requests.
#[derive(Debug, Clone, Default)]
struct SingleLease(Arc<Mutex<SingleLeaseState>>);

#[derive(Default)]
struct SingleLeaseState {
    waiting: VecDeque<Box<dyn FnOnce(Lease) + Send>>,
    held: usize,
    held_max: usize,
}

impl std::fmt::Debug for SingleLeaseState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OneLeaseState").field("held", &self.held).finish_non_exhaustive()
    }
}

impl SingleLease {
    fn grant(&self) {
        let granted = {
            let mut state = self.0.lock().unwrap();
            if state.held > 0 {
                return;
            }
            let Some(granted) = state.waiting.pop_front() else { return };
            state.held += 1;
            state.held_max = state.held_max.max(state.held);
            granted
        };
        granted(Lease::new(LeaseGuard(self.clone())));
    }
}

impl CallScheduler for SingleLease {
    fn start(&self, _job: CallJob) -> Result<Box<dyn Leases>, Fault> {
        Ok(Box::new(self.clone()))
    }
}

impl Leases for SingleLease {
    fn request(&self, granted: Box<dyn FnOnce(Lease) + Send>) {
        self.0.lock().unwrap().waiting.push_back(granted);
        self.grant();
    }

    fn is_contended(&self) -> bool {
        !self.0.lock().unwrap().waiting.is_empty()
    }
}

struct LeaseGuard(SingleLease);

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().held -= 1;
        self.0.grant();
    }
}

/// A pool with one worker, and a component to call.
struct PolitePool {
    lab: Lab,
    compiler: Compiler,
    pool: Pool,
    compiled: Arc<CompiledComponent>,
    functions: Vec<Function>,
}

impl PolitePool {
    async fn new() -> PolitePool {
        PolitePool::with(Limits::default()).await
    }

    async fn with(limits: Limits) -> PolitePool {
        let (lab, program) = (Lab::new(), host().with_file_name("host-worker"));
        let compiler = Compiler::new(lab.path("compiled"), program.clone());
        let component = File::open(component("tests/hostile/polite")).unwrap();
        let compiled = Arc::new(compiler.compile(component, TenantId::DEFAULT).await.unwrap());
        let pool = Pool::start(PoolOptions { workers: 1, limits, program, gpus: None, on_demand: false });
        let described = pool.call(request(&bind(&compiled, 0), CallWork::Describe)).await;
        let functions = described.result.unwrap().product.into_functions().unwrap();
        PolitePool { lab, compiler, pool, compiled, functions }
    }

    /// Writes a script to run as a worker.
    fn script(&self, text: &str) -> PathBuf {
        let program = self.lab.path("program");
        std::fs::write(&program, text).unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o700)).unwrap();
        program
    }

    fn bind(&self, function: &str) -> Arc<Binding> {
        bind(&self.compiled, self.functions.iter().position(|f| f.name == function).unwrap() as u32)
    }

    /// Queues calls of a function on one row at once, and returns their answers as they come.
    async fn results(&self, function: &str, calls: usize) -> Vec<Vec<SubmissionResult>> {
        let (to, mut from) = mpsc::unbounded_channel();
        self.pool.submit(&Caller::new(self.bind(function), to), calls_of_a_row(0..calls as u64)).unwrap();
        let (mut all, mut left) = (Vec::new(), calls);
        while left > 0 {
            let results = from.recv().await.unwrap();
            results.iter().for_each(|outcome| assert!(outcome.called.result.is_ok(), "{outcome:?}"));
            left -= results.len();
            all.push(results);
        }
        all
    }
}

fn calls_of_a_row(tokens: Range<u64>) -> impl Iterator<Item = CallSubmission> {
    let x: ArrayRef = Arc::new(Float64Array::from(vec![1.0]));
    let row = sandbar_batch::encode(&RecordBatch::try_from_iter([("x", x)]).unwrap()).unwrap();
    let payload = Payload::Inline { header: row.header.as_slice().into(), body: row.body().into() };
    tokens.map(move |token| CallSubmission { token, seed: 0, work: CallWork::Process(payload.clone()) })
}

fn bind(compiled: &Arc<CompiledComponent>, function: u32) -> Arc<Binding> {
    Binding::new(compiled.clone(), function, "{}".to_owned(), Limits::default(), "polite".to_owned()).unwrap()
}

fn request(binding: &Arc<Binding>, work: CallWork) -> CallRequest {
    CallRequest { binding: binding.clone(), seed: 0, work }
}
