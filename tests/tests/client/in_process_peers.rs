//! Several in-process nodes that run tasks for each other.

use sandbar_client::{
    Batch, Client, ClientError, ClientOptions, Code, InProcessPeers, Job, JobOptions, ObjectRef, TaskOptions,
};
use sandbar_tests::{Lab, cache, host};
use serde::{Deserialize, Serialize};

use crate::{load, run};

const TASKS: &str = "tests/programs/tasks";
const OBJECTS: &str = "tests/programs/objects";
const PLACEMENT: &str = "tests/programs/placement";

/// The type of the same name in the test program.
#[derive(Serialize, Deserialize)]
struct Shared {
    numbers: ObjectRef<Vec<u64>>,
    name: String,
}

/// Creates a node with one worker and a resource of its own; those after the first have a second resource in common.
fn node(lab: &Lab, number: u16, peers: &InProcessPeers) -> Client {
    let options = ClientOptions::new()
        .workers(1)
        .resource(format!("node{number}"), 8.0)
        .resource("other", if number > 1 { 2.0 } else { 0.0 })
        .cache(cache().join("sandbar"))
        .state(lab.path("state").join("sandbar"))
        .spill(lab.path("tmp"))
        .worker(host().with_file_name("host-worker"))
        .in_process_peers(number, peers);
    Client::start(options).expect("a node starts")
}

/// Returns options that place a task on the node of this number.
pub fn on(number: u16) -> TaskOptions {
    TaskOptions::new().resource(format!("node{number}"), 1.0)
}

/// Runs a test with three nodes and a job of the first.
pub fn with_nodes(program: &str, test: impl AsyncFnOnce(&mut Vec<Client>, Job) -> Result<(), ClientError>) {
    let lab = Lab::new();
    run(async {
        let peers = InProcessPeers::default();
        let mut nodes: Vec<Client> = (1..=3).map(|number| node(&lab, number, &peers)).collect();
        let program = load(&nodes[0], program).await;
        let job = nodes[0].job(&program, JobOptions::named("service")).await.expect("a job begins");
        test(&mut nodes, job).await.unwrap_or_else(|e| panic!("{e}"));
    });
    assert_eq!(lab.names(), Vec::<String>::new());
}

#[test]
fn tasks_run_on_nodes_with_their_resources() {
    with_nodes(TASKS, async |_, job| {
        for number in 1..=3 {
            let sum: ObjectRef<i64> = job.task("add").options(on(number)).submit((number, 2)).await?;
            assert_eq!(sum.get().await?, i64::from(number) + 2);
        }
        // The result of a task on one node is an argument of a task on another.
        let mut sum: ObjectRef<i64> = job.task("add").submit((0, 1)).await?;
        for step in 0..10 {
            sum = job.task("add").options(on(step % 3 + 1)).submit((&sum, 1)).await?;
        }
        assert_eq!(sum.get().await?, 11);
        assert_eq!(job.end().await?.counts.tasks, 14);
        Ok(())
    });
}

#[test]
fn a_tree_of_tasks_grows_over_all_nodes() {
    with_nodes(TASKS, async |_, job| {
        let trees: Vec<ObjectRef<u64>> = {
            let mut trees = Vec::new();
            for number in 1..=3 {
                trees.push(job.task("tree").options(on(number)).submit((3, 10, 1000)).await?);
            }
            trees
        };
        for tree in trees {
            assert_eq!(tree.get().await?, 1000);
        }
        Ok(())
    });
}

#[test]
fn values_are_fetched_from_where_they_are() {
    with_nodes(OBJECTS, async |_, job| {
        for rows in [10_u64, 3_000, 1_000_000] {
            // Objects created on each node, read on each node and by the client.
            for maker in 1..=3 {
                let created: ObjectRef<Batch> = job.task("makes").options(on(maker)).submit((7, rows / 4)).await?;
                for looker in 1..=3 {
                    let right: ObjectRef<u64> =
                        job.task("is_right").options(on(looker)).submit((&created, 7, rows)).await?;
                    assert_eq!(right.get().await?, 1, "{rows} rows made on {maker}, looked at on {looker}");
                }
                assert_eq!(created.get_batch().await?.num_rows() as u64, rows / 4);
            }
        }
        Ok(())
    });
}

#[test]
fn values_contain_objects_of_other_nodes() {
    with_nodes(TASKS, async |_, job| {
        for count in [10_u64, 300_000] {
            let sum = count * (count - 1) / 2;
            for number in 1..=3 {
                // An object of this node, within an argument.
                let numbers = job.put(&(0..count).collect::<Vec<u64>>()).await?;
                let shared = Shared { numbers: numbers.clone(), name: "four".to_owned() };
                let inside: ObjectRef<u64> = job.task("sums_shared").options(on(number)).submit((shared,)).await?;
                drop(numbers);
                assert_eq!(inside.get().await?, sum + 4);
                // An object of that node, within a result.
                let created: ObjectRef<Shared> = job.task("makes").options(on(number)).submit((count,)).await?;
                let back = created.get().await?;
                drop(created);
                assert_eq!(back.numbers.get().await?.len() as u64, count);
                // Passes it on to another node.
                let other: ObjectRef<u64> = job.task("sums_shared").options(on(number % 3 + 1)).submit((back,)).await?;
                assert_eq!(other.get().await?, sum + 4);
            }
        }
        Ok(())
    });
}

#[test]
fn errors_are_equal_on_all_nodes() {
    with_nodes(TASKS, async |_, job| {
        for (task, code, text) in [("panics", Code::Panic, "on purpose"), ("passes_on", Code::Refused, "on purpose")] {
            let here: ObjectRef<i64> = job.task(task).options(on(1)).submit(()).await?;
            let there: ObjectRef<i64> = job.task(task).options(on(2)).submit(()).await?;
            let (here, there) = (here.get().await.unwrap_err(), there.get().await.unwrap_err());
            assert_eq!((there.fault.code, &there.chain), (code, &here.chain), "{there}");
            assert!(there.fault.message.contains(text), "{there}");
        }
        Ok(())
    });
}

#[test]
fn cancelled_tasks_end_on_other_nodes() {
    with_nodes(TASKS, async |_, job| {
        let spins: ObjectRef<i64> = job.task("spins").options(on(2)).submit(()).await?;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        spins.cancel(true).await;
        assert_eq!(spins.get().await.unwrap_err().fault.code, Code::Cancelled);
        // Resources are free for others.
        let sum: ObjectRef<i64> = job.task("add").options(on(2)).submit((1, 2)).await?;
        assert_eq!(sum.get().await?, 3);
        Ok(())
    });
}

#[test]
fn tasks_of_a_lost_node_run_on_others() {
    with_nodes(TASKS, async |nodes, job| {
        let all: Vec<ObjectRef<u64>> = {
            let mut all = Vec::new();
            for _ in 0..30 {
                all.push(job.task("computes").submit((20_000_000,)).await?);
            }
            all
        };
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        drop(nodes.pop());
        for object in all {
            object.get().await?;
        }
        Ok(())
    });
}

#[test]
fn nothing_is_lost_with_a_node_that_is_to_go() {
    with_nodes(OBJECTS, async |nodes, job| {
        // None of these can be recomputed, and only that node holds them.
        let once = on(3).max_retries(0);
        let mut all: Vec<ObjectRef<Batch>> = Vec::new();
        for number in 0..10 {
            all.push(job.task("makes").options(once.clone()).submit((number, 50_000 + 50_000 * (number % 7))).await?);
        }
        sandbar_client::wait(&all, all.len(), None).await;
        nodes[2].drain().await?;
        drop(nodes.pop());
        for (created, number) in all.iter().zip(0_u64..) {
            let right: ObjectRef<u64> =
                job.task("is_right").options(on(number as u16 % 2 + 1)).submit((created, number, 200_000)).await?;
            assert_eq!(right.get().await?, 1, "object {number}");
        }
        Ok(())
    });
}

#[test]
fn running_tasks_of_a_draining_node_finish() {
    with_nodes(TASKS, async |nodes, job| {
        let once = TaskOptions::new().max_retries(0);
        // Values that the lost node stored or returned by reference, and tasks that it submitted.
        let created: ObjectRef<Shared> = job.task("makes").options(on(3).max_retries(0)).submit((300_000_u64,)).await?;
        let created = created.get().await?;
        let tree: ObjectRef<u64> = job.task("tree").options(on(3).max_retries(0)).submit((2, 10, 1_000_000)).await?;
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let mut all: Vec<ObjectRef<u64>> = Vec::new();
        for _ in 0..60 {
            all.push(job.task("computes").options(once.clone()).submit((20_000_000,)).await?);
        }
        nodes[2].drain().await?;
        drop(nodes.pop());
        for object in all {
            object.get().await?;
        }
        assert_eq!(tree.get().await?, 100);
        assert_eq!(created.numbers.get().await?.len(), 300_000);
        Ok(())
    });
}

/// A job's objects travel from its node to another, and back within its submissions.
#[test]
fn objects_return_to_their_owner() {
    with_nodes(TASKS, async |_, job| {
        for count in [10_u64, 300_000] {
            let numbers = job.put(&(0..count).collect::<Vec<u64>>()).await?;
            for (first, then) in [(2, 1), (2, 3), (3, 2), (1, 2)] {
                let shared = Shared { numbers: numbers.clone(), name: "four".to_owned() };
                let sum: ObjectRef<u64> =
                    job.task("sums_on").options(on(first)).submit((shared, format!("node{then}"))).await?;
                assert_eq!(sum.get().await?, count * (count - 1) / 2 + 4, "by {first}, on {then}");
            }
        }
        Ok(())
    });
}

/// A job's tasks and objects on other nodes end with it, and their resources are free.
#[test]
fn a_job_that_ends_leaves_room_on_other_nodes() {
    with_nodes(TASKS, async |nodes, job| {
        let mut all: Vec<ObjectRef<i64>> = Vec::new();
        for number in [2, 2, 3, 3] {
            all.push(job.task("spins").options(on(number)).submit(()).await?);
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        drop(all);
        job.end().await?;
        let program = load(&nodes[0], TASKS).await;
        let job = nodes[0].job(&program, JobOptions::named("service")).await.expect("a job begins");
        for number in [2, 3, 2, 3] {
            let sum: ObjectRef<i64> = job.task("add").options(on(number)).submit((1, 2)).await?;
            assert_eq!(sum.get().await?, 3);
        }
        Ok(())
    });
}

#[test]
fn groups_have_bundles_on_several_nodes() {
    with_nodes(PLACEMENT, async |_, job| {
        // Tasks of each node create groups at once: each waits for resources that others reserve.
        let mut all: Vec<ObjectRef<u64>> = Vec::new();
        for number in 1..=3 {
            all.push(job.task("over_nodes").options(on(number)).submit((4,)).await?);
        }
        for result in all {
            assert_eq!(result.get().await?, 4 * 6);
        }
        Ok(())
    });
}

#[test]
fn groups_go_with_their_job_and_their_nodes() {
    with_nodes(PLACEMENT, async |nodes, job| {
        let result: ObjectRef<u64> = job.task("over_nodes").options(on(1)).submit((1,)).await?;
        assert_eq!(result.get().await?, 6);
        // Two nodes provide too few.
        drop(nodes.pop());
        let fails: ObjectRef<u64> = job.task("over_nodes").options(on(2)).submit((1,)).await?;
        let error = fails.get().await.unwrap_err();
        assert_eq!(error.fault.code, Code::Infeasible, "{error}");
        Ok(())
    });
}
