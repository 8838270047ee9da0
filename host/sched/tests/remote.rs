//! Proxy tasks of other schedulers, and actors on remote nodes.

mod dsl;

use dsl::*;
use sandbar_core::{ActorId, NodeId, Strategy, WorkerId};

/// Local worker 1, and remote node 2 with proxy worker 3.
fn world() -> World {
    let mut world = World::new(1, 1);
    world.remote_node(2, resources(2, 0, 0)).worker(2, 2).peer(3, 2).emits("");
    world
}

/// Like `world`, with proxy task 2 of node 2 in job 1.
fn with_proxy_task() -> World {
    let mut world = world();
    world.proxy_task(2, 1, 3).emits("");
    world
}

#[test]
fn tasks_of_another_scheduler_are_of_the_same_job() {
    let mut world = with_proxy_task();
    world.put(10, 1, DRIVER, &[]).submit(needs(child(11, 2, 3), &[10])).emits("run w1 t11");
    // The proxy worker holds the return for the remote caller.
    world.done(11, 1).emits("finished t11").release(11, 3).emits("drop o11");
}

#[test]
fn they_go_with_the_scheduler() {
    let mut world = with_proxy_task();
    world.submit(child(11, 2, 3)).submit(child(12, 2, 3)).emits("run w1 t11, run w2 t12");
    world.lose_node(2).emits("finished t12, interrupt w1 t11, finished t2");
    // No task waits for these. The job continues.
    world.fails(11, 0, 1, false).emits("finished t11").submit(t(13)).emits("run w1 t13");
}

#[test]
fn they_go_when_it_needs_them_no_more() {
    let mut world = with_proxy_task();
    world.submit(child(11, 2, 3)).emits("run w1 t11");
    world.cancel(2, true).emits("interrupt w3 t2, interrupt w1 t11");
    world.fails(2, 0, 3, false).emits("finished t2").fails(11, 0, 1, false).emits("finished t11");
    // A new proxy task may follow.
    world.proxy_task(12, 1, 3).submit(child(13, 12, 3)).emits("run w1 t13");
}

#[test]
fn a_proxy_task_is_in_a_job_and_in_a_worker_that_stands_for_a_scheduler() {
    let mut world = world();
    world.proxy_task(10, 2, 3).proxy_task(11, 1, 1).proxy_task(12, 1, 77).proxy_task(1, 1, 3).emits("");
    world.proxy_task(13, 1, 3).proxy_task(13, 1, 3).job_ends(1).emits("interrupt w3 t13, interrupt w100 t1");
}

#[test]
fn a_proxy_task_takes_no_resources() {
    let mut world = world();
    let task = Submission { parent: None, returns: 2, ..demanding(call(10, 77), resources(9, 9, 9)) };
    world.step(Event::ProxyTaskStarted { task, worker: WorkerId(3) }).emits("");
    assert_eq!((world.free_cpus(2), world.kept()), (2, vec![1, 10]));
    world.submit(child(11, 10, 3)).emits("run w1 t11");
}

#[test]
fn a_proxy_task_is_nowhere_but_in_its_worker() {
    // Whether the proxy task is reported as started or not.
    with_proxy_task().recalled(3, &[2]).emits("").submit(child(11, 2, 3)).emits("run w1 t11");
    with_proxy_task().lose(3, &[]).emits("finished t2");
    with_proxy_task().lose(3, &[2]).emits("finished t2");
}

#[test]
fn the_first_task_of_a_job_may_come_after_a_proxy_task() {
    let mut world = world();
    world.job(2, LIMITS).proxy_task(10, 2, 3).driver(101, 1, 2).submit(first(11, 2)).emits("run w101 t11");
    world.submit(first(12, 2)).emits("");
}

#[test]
fn a_job_may_be_of_other_schedulers_alone() {
    let mut world = world();
    world.job(2, LIMITS).proxy_task(10, 2, 3).emits("");
    let task = Submission { job: sandbar_core::JobId(2), ..child(11, 10, 3) };
    world.submit(task).emits("run w1 t11").job_ends(2).emits("interrupt w3 t10, interrupt w1 t11");
}

#[test]
fn actors_go_to_remote_nodes_without_local_room() {
    let mut world = world();
    world
        .submit(demanding(actor(10, 0), resources(1, 0, 0)))
        .emits("start-worker n1 for t10")
        .own_worker(4, 1, 10)
        .emits("run w4 t10");
    world.done(10, 4).emits("");
    world.submit(demanding(actor(11, 0), resources(1, 0, 0))).emits("run w3 t11").done(11, 3).emits("");
    assert_eq!(world.free_cpus(2), 1);
    world.submit(call(12, 11)).emits("run w3 t12").done(12, 3).emits("finished t12");
    // The last handle is dropped.
    world.release(11, DRIVER).emits("interrupt w3 t11, drop o11").fails(11, 0, 3, false).emits("finished t11");
    assert_eq!(world.free_cpus(2), 2);
}

#[test]
fn actors_are_where_they_are_to_be() {
    let mut world = world();
    let at_2 = Strategy::Node { node: NodeId(2), soft: false };
    world.submit(on(actor(10, 0), at_2)).emits("run w3 t10").done(10, 3).emits("");
    world.submit(on(actor(11, 0), Strategy::Spread)).emits("start-worker n1").discard_actions();
    world
        .actor_worker(4, 1)
        .emits("run w4 t11")
        .done(11, 4)
        .submit(on(actor(12, 0), Strategy::Spread))
        .discard_actions();
}

#[test]
fn an_actor_that_waits_for_a_local_worker_takes_any_local_one() {
    let mut world = world();
    // Node 1 has two actors, node 2 has one. Node 4, the preferred node for the next one, has no actor worker.
    world.actor_worker(4, 1).submit(actor(10, 0)).submit(actor(11, 0)).done(10, 4).done(11, 4);
    let at_2 = Strategy::Node { node: NodeId(2), soft: false };
    world.submit(on(actor(12, 0), at_2)).done(12, 3).node(4, resources(1, 0, 0)).discard_actions();
    world.submit(on(actor(13, 0), Strategy::Spread)).emits("start-worker n4, run w4 t13");
}

#[test]
fn reports_of_a_remote_actors_end_are_final() {
    let mut world = world();
    let at_2 = Strategy::Node { node: NodeId(2), soft: false };
    world.submit(on(actor(10, 5), at_2)).done(10, 3).submit(retries(call(11, 10), 5)).discard_actions();
    world.fails(11, 0, 3, true).emits("finished t11").submit(call(12, 10)).emits("run w3 t12");
    world.dies(10, 0, 3).emits("finished t10, finished t12");
    world.error_is(12, "main > t12: actor `t10` has died: it trapped [actor-died]");
    // A failed creation is final too.
    world.submit(on(actor(13, 5), at_2)).emits("run w3 t13").fails(13, 0, 3, true).emits("finished t13");
}

#[test]
fn wrong_numbers_of_remote_results_are_final() {
    let mut world = world();
    let at_2 = Strategy::Node { node: NodeId(2), soft: false };
    let two = || Outcome::Succeeded(vec![(97, Vec::new()), (98, Vec::new())]);
    world.submit(on(retries_on(actor(10, 5), 5, RetryOn::All), at_2)).emits("run w3 t10");
    world.finish(10, 0, 3, two(), 0).emits("interrupt w3 t10, drop o10=97, drop o11=98, finished t10");
    world
        .submit(on(actor(20, 5), at_2))
        .done(20, 3)
        .submit(retries_on(call(21, 20), 5, RetryOn::All))
        .discard_actions();
    world.finish(21, 0, 3, two(), 0).emits("drop o21=97, drop o22=98, finished t21");
}

#[test]
fn an_actor_of_a_lost_node_restarts_on_another() {
    let mut world = world();
    let soft = Strategy::Node { node: NodeId(2), soft: true };
    world
        .submit(on(actor(10, 1), soft))
        .done(10, 3)
        .submit(retries(call(11, 10), 1))
        .submit(call(12, 10))
        .discard_actions();
    world.lose_node(2).emits("finished t12, start-worker n1").actor_worker(4, 1).emits("run w4 t10#1");
    world.finish(10, 1, 4, Outcome::Succeeded(vec![(99, Vec::new())]), 0).emits("drop o10=99, run w4 t11#1");
}

/// Object 10 is the handle of an actor of node 2.
fn with_borrowed() -> World {
    let mut world = world();
    world.borrow(10, 1, DRIVER).borrow_actor(10, 3).emits("");
    world
}

#[test]
fn calls_of_a_borrowed_actor_go_to_its_owner_in_order() {
    let mut world = with_borrowed();
    world.submit(t(20)).submit(needs(call(11, 10), &[20])).submit(call(12, 10)).emits("run w1 t20");
    world
        .done(20, 1)
        .emits("run w3 t11, run w3 t12, finished t20")
        .done(11, 3)
        .done(12, 3)
        .emits("finished t11, finished t12");
    // Each unfinished call keeps the handle.
    world
        .submit(call(13, 10))
        .release(10, DRIVER)
        .emits("run w3 t13")
        .done(13, 3)
        .emits("finished t13, release-borrow o10");
    assert_eq!(world.steps.actor(ActorId(10)), None);
}

#[test]
fn a_borrowed_actor_is_seen_where_its_owner_is() {
    let mut world = with_borrowed();
    world.actor_is(10, Some(ActorState::Alive));
    assert_eq!(world.steps.actor(ActorId(10)).and_then(|actor| actor.worker), Some(WorkerId(3)));
    world.lose_node(2).actor_is(10, Some(ActorState::Dead));
    assert_eq!(world.steps.actor(ActorId(10)).and_then(|actor| actor.worker), None);
}

#[test]
fn a_borrowed_actor_is_lost_with_its_owner() {
    let mut world = with_borrowed();
    world.submit(t(20)).submit(call(11, 10)).submit(needs(call(12, 10), &[20])).submit(call(13, 10)).discard_actions();
    world.lose_node(2).emits("finished t13, finished t12, finished t11").submit(call(14, 10)).emits("");
    for task in [11, 12, 13, 14] {
        world.error_is(task, &format!("main > t{task}: actor 10: its node was lost [actor-died]"));
    }
    world.release(10, DRIVER).emits("release-borrow o10");
    assert_eq!(world.steps.actor(ActorId(10)), None);
}

#[test]
fn callers_of_a_borrowed_actor_may_end_with_its_owner() {
    let mut world = with_borrowed();
    let at_2 = Strategy::Node { node: NodeId(2), soft: false };
    world.submit(on(t(20), at_2)).emits("run w2 t20");
    let of_20 = |task| Submission { parent: child(0, 20, 2).parent, ..task };
    world.submit(of_20(call(21, 10))).submit(of_20(needs(call(22, 10), &[20]))).emits("run w3 t21");
    world.lose_node(2).emits("finished t20, finished t22, finished t21");
}

#[test]
fn only_a_borrowed_object_is_the_handle_of_a_borrowed_actor() {
    let mut world = world();
    world.put(10, 1, DRIVER, &[]).borrow_actor(10, 3).borrow_actor(11, 3).borrow(12, 1, DRIVER).borrow_actor(12, 1);
    assert_eq!(world.steps.actors().count(), 0);
    for actor in [10, 11, 12] {
        world.submit(call(actor + 10, actor)).emits("");
        assert!(world.error(actor + 10).to_string().contains("does not exist"), "{}", world.error(actor + 10));
    }
}

#[test]
fn calls_of_a_borrowed_actor_that_are_not_wanted_are_taken_back() {
    let mut world = with_borrowed();
    world.submit(call(11, 10)).emits("run w3 t11").cancel(11, true).emits("withdraw w3 t11");
    world.fails(11, 0, 3, false).emits("finished t11").submit(call(12, 10)).job_ends(1).discard_actions();
    assert_eq!(world.steps.jobs().count(), 0);
}
