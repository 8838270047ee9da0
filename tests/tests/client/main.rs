//! The native client: tasks and actors of components, called from async Rust in this process.

mod actors;
mod arguments;
mod example;
mod in_process_peers;
mod jobs;
mod mistakes;
mod objects;
mod remote_actors;
mod remote_streams;
mod streams;

use std::future::Future;
use std::time::Duration;

use sandbar_client::{Client, ClientError, ClientOptions, Job, JobOptions, Program};
use sandbar_tests::{Lab, cache, component, host};

/// Maximum time of an await before a test fails, on a loaded machine too.
const TIME_MAX: Duration = Duration::from_secs(120);

/// Creates a client whose node keeps everything in a test's folder.
fn client(lab: &Lab) -> Client {
    let options = ClientOptions::new()
        .workers(2)
        .cache(cache().join("sandbar"))
        .state(lab.path("state").join("sandbar"))
        .spill(lab.path("tmp"))
        .worker(host().with_file_name("host-worker"));
    Client::start(options).expect("a client starts")
}

async fn load(client: &Client, folder: &str) -> Program {
    client.program(component(folder)).await.unwrap_or_else(|e| panic!("{folder}: {e}"))
}

async fn begin(client: &Client, program: &Program) -> Job {
    client.job(program, JobOptions::named("service")).await.expect("a job begins")
}

/// Runs a test with a job of a program, on a node of its own.
fn with_job<F: Future<Output = Result<(), ClientError>>>(folder: &str, test: impl FnOnce(Client, Job) -> F) {
    let lab = Lab::new();
    run(async {
        let client = client(&lab);
        let program = load(&client, folder).await;
        let job = begin(&client, &program).await;
        test(client, job).await.unwrap_or_else(|e| panic!("{e}"));
    });
    assert_eq!(lab.names(), Vec::<String>::new());
}

/// Runs a test to its end.
fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let result = runtime.block_on(async { tokio::time::timeout(TIME_MAX, test).await });
    result.unwrap_or_else(|_| panic!("the run does not end"))
}
