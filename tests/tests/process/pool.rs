//! A pool of workers that is asked for many calls at once.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch};
use sandbar_core::{Code, Function, Limits};
use sandbar_tests::{Lab, component, host};
use sandbar_worker::{Answer, Binding, Compiled, Compiler, Groups, Payload, Pool, PoolOptions, Request, Work};
use tokio::sync::mpsc;

#[test]
fn nobody_waits_for_the_answers_of_slow_calls() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let polite = Polite::new().await;
        // After these a message takes as many calls as one can.
        let quick = polite.answers("scalar_divides", 600).await;
        assert!(quick.iter().any(|answers| answers.len() > 100), "quick calls are answered many at a time");
        for answers in polite.answers("batch_dawdles", 5).await {
            assert_eq!(answers.len(), 1, "the answer of a slow call waits for that of another");
        }
    });
}

#[test]
fn what_a_function_prints_is_logged() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let answers = Polite::new().await.answers("batch_prints", 1).await;
        let logged: Vec<_> = answers[0][0].called.log.iter().map(|line| (line.level, line.message.as_str())).collect();
        assert_eq!(logged, [("info", "1 rows"), ("warn", "where is None?"), ("info", "no end")]);
    });
}

#[test]
fn a_call_that_no_message_holds_is_refused_and_others_are_not() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let polite = Polite::new().await;
        let groups = Groups { count: 200_000, without: (0..200_000).step_by(2).collect(), ..Groups::default() };
        let payload = Payload::Inline { header: [].into(), body: [].into() };
        let called = polite.pool.call(request(&bind(&polite.compiled, 0), Work::Fit(payload, groups.into()))).await;
        let fault = called.result.unwrap_err();
        assert!(fault.message.contains("over the bound"), "{fault}");
        assert_eq!(polite.answers("batch_prints", 2).await.iter().flatten().count(), 2);
    });
}

#[test]
fn a_worker_that_dies_before_it_begins_a_call_is_not_replaced_for_ever() {
    // Reads the node's hello; all but the second say that they are ready (which is variant 0 of what workers say).
    const DOOMED: &str = "#!/bin/sh\nhead -c 1 > /dev/null\nprintf '\\000' >&0\n";
    const NEVER_READY: &str = "#!/bin/sh\nhead -c 1 > /dev/null\nexit 3\n";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let polite = Polite::new().await;
        for (script, code, why) in [
            (DOOMED, Code::WorkerLost, "4 workers died while they ran it; the last: exit status: 0"),
            (NEVER_READY, Code::Host, "a worker can't be started: exit status: 3 before it was ready"),
        ] {
            let program = polite.lab.path("doomed");
            std::fs::write(&program, script).unwrap();
            std::fs::set_permissions(&program, Permissions::from_mode(0o700)).unwrap();
            let pool = Pool::start(PoolOptions { workers: 1, limits: Limits::default(), program });
            let binding = bind(&polite.compiled, 0);
            for _ in 0..2 {
                let called = pool.call(request(&binding, Work::Describe)).await;
                let fault = called.result.unwrap_err();
                assert_eq!(fault.code, code, "{fault}");
                assert!(fault.message.contains(why), "{fault}");
            }
        }
    });
}

/// One worker, and a component to call.
struct Polite {
    lab: Lab,
    pool: Pool,
    compiled: Arc<Compiled>,
    functions: Vec<Function>,
}

impl Polite {
    async fn new() -> Polite {
        let (lab, program) = (Lab::new(), host().with_file_name("host-worker"));
        let compiler = Compiler::new(lab.path("compiled"), program.clone());
        let component = File::open(component("tests/hostile/polite")).unwrap();
        let compiled = Arc::new(compiler.compile(component).await.unwrap());
        let pool = Pool::start(PoolOptions { workers: 1, limits: Limits::default(), program });
        let described = pool.call(request(&bind(&compiled, 0), Work::Describe)).await;
        let functions = described.result.unwrap().product.into_functions().unwrap();
        Polite { lab, pool, compiled, functions }
    }

    /// What comes of calls of a function on one row that are asked for at once, as it comes.
    async fn answers(&self, function: &str, calls: usize) -> Vec<Vec<Answer>> {
        let function = self.functions.iter().position(|f| f.name == function).unwrap();
        let binding = bind(&self.compiled, function as u32);
        let x: ArrayRef = Arc::new(Float64Array::from(vec![1.0]));
        let row = sandbar_batch::encode(&RecordBatch::try_from_iter([("x", x)]).unwrap()).unwrap();
        let payload = Payload::Inline { header: row.header.as_slice().into(), body: row.body().into() };
        let (to, mut from) = mpsc::unbounded_channel();
        let to = Arc::new(to);
        for token in 0..calls {
            let request = request(&binding, Work::Process(payload.clone()));
            self.pool.submit(request, token as u64, &to).unwrap();
        }
        let (mut all, mut left) = (Vec::new(), calls);
        while left > 0 {
            let answers = from.recv().await.unwrap();
            answers.iter().for_each(|answer| assert!(answer.called.result.is_ok(), "{answer:?}"));
            left -= answers.len();
            all.push(answers);
        }
        all
    }
}

fn bind(compiled: &Arc<Compiled>, function: u32) -> Arc<Binding> {
    Binding::new(compiled.clone(), function, "{}".to_owned(), Limits::default(), "polite".to_owned()).unwrap()
}

fn request(binding: &Arc<Binding>, work: Work) -> Request {
    Request { binding: binding.clone(), seed: 0, work }
}
