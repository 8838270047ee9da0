//! Borrowed objects, and placement of tasks on remote nodes.

mod dsl;

use dsl::*;
use sandbar_sched::Submission;

/// The root task of job 1 borrows object 10.
fn world() -> World {
    let mut world = World::new(1, 1);
    world.borrow(10, 1, DRIVER).emits("");
    world
}

#[test]
fn an_owner_is_notified_of_the_last_released_reference() {
    let mut world = world();
    world.release(10, DRIVER).emits("release-borrow o10");
    assert_eq!(world.kept(), [1]);
}

#[test]
fn local_references_keep_a_borrowed_object() {
    for link in [needs, refs] {
        let mut world = world();
        world.resolve_borrow(10, &[]).submit(link(t(11), &[10])).release(10, DRIVER).emits("run w1 t11");
        world.fails(11, 0, 1, false).emits("finished t11, release-borrow o10, drop o10");
    }
    let mut world = world();
    world.put(11, 1, DRIVER, &[10]).release(10, DRIVER).emits("");
    world.release(11, DRIVER).emits("drop o11, release-borrow o10");
}

#[test]
fn it_is_held_as_often_as_it_is_borrowed() {
    let mut world = world();
    world.borrow(10, 1, DRIVER).release(10, DRIVER).emits("");
    world.release(10, DRIVER).emits("release-borrow o10");
}

#[test]
fn a_borrowed_value_is_fetched_on_its_first_use() {
    let mut world = world();
    world.request(10, DRIVER, 1).emits("fetch o10").request(10, DRIVER, 1).emits("");
    world.resolve_borrow(10, &[]).emits("deliver w100 o10, deliver w100 o10");
    world.request(10, DRIVER, 1).emits("deliver w100 o10");
}

#[test]
fn a_task_that_needs_it_waits_for_it() {
    let mut world = world();
    world.submit(needs(t(11), &[10])).emits("fetch o10").submit(needs(t(12), &[10])).emits("");
    world.resolve_borrow(10, &[]).emits("run w1 t11").done(11, 1).emits("finished t11, run w1 t12");
}

#[test]
fn contained_objects_are_kept_with_their_container() {
    let mut world = world();
    world.borrow(11, 1, DRIVER).request(10, DRIVER, 1).resolve_borrow(10, &[11]).emits("fetch o10, deliver w100 o10");
    // One reference by the borrow, one by the delivered value.
    world.release(11, DRIVER).release(11, DRIVER).emits("");
    world.release(10, DRIVER).emits("release-borrow o10, drop o10, release-borrow o11");
}

#[test]
fn the_error_of_a_borrowed_object_is_reported() {
    let mut world = world();
    world.request(10, DRIVER, 1).resolve_borrow_failed(10).emits("fetch o10, deliver w100 o10");
    world.error_is(10, "no file [input]");
    // The error is final.
    world.resolve_borrow(10, &[]).emits("drop o10");
}

#[test]
fn a_lost_borrowed_value_is_fetched_again() {
    let mut world = world();
    world.request(10, DRIVER, 1).resolve_borrow(10, &[]).discard_actions();
    world.lose_object(10).emits("drop o10").request(10, DRIVER, 1).emits("fetch o10");
    world.resolve_borrow(10, &[]).emits("deliver w100 o10").lose_object_for(10, DRIVER).emits("drop o10, fetch o10");
    // The missed delivery may be reported in a separate event.
    world.resolve_borrow(10, &[]).discard_actions();
    world.lose_object(10).emits("drop o10").lose_object_for(10, DRIVER).emits("fetch o10");
}

#[test]
fn all_are_returned_when_their_job_ends() {
    let mut world = world();
    world
        .borrow(11, 1, DRIVER)
        .resolve_borrow(11, &[])
        .job_ends(1)
        .emits("interrupt w100 t1, release-borrow o11, drop o11, release-borrow o10");
}

#[test]
fn a_peer_holds_objects_for_its_workers() {
    let mut world = World::new(1, 0);
    world.remote_node(2, resources(1, 0, 0)).worker(2, 2).peer(3, 2).put(10, 1, DRIVER, &[]).submit(refs(t(11), &[10]));
    world.emits("run w2 t11").request(10, 3, 11).emits("deliver w3 o10").add_reference(10, 3, 11).release(10, DRIVER);
    world.done(11, 2).emits("finished t11").release(10, 3).emits("drop o10");
    // The peer does not act for tasks on other nodes.
    world.request(11, 3, 1).emits_only(
        "refuse",
        "refuse w3 o11 (the value of object 11 is lost: its job has ended on the node that stored it [object-lost])",
    );
}

#[test]
fn objects_of_an_ended_job_are_lost_for_other_nodes() {
    let mut world = World::new(1, 0);
    world.remote_node(2, resources(1, 0, 0)).peer(3, 2).put(10, 1, DRIVER, &[]).job_ends(1).discard_actions();
    let error = "the value of object 10 is lost: its job has ended on the node that stored it [object-lost]";
    world.request(10, 3, 11).emits(&format!("refuse w3 o10 ({error})"));
}

#[test]
fn tasks_go_to_remote_nodes_without_local_room() {
    let mut world = World::new(2, 2);
    world.remote_node(2, resources(2, 0, 0)).worker(8, 2).worker(9, 2);
    for (task, worker) in [(10, 1), (11, 2), (12, 8), (13, 9)] {
        world.submit(t(task)).emits(&format!("run w{worker} t{task}"));
    }
    world.submit(t(14)).emits("").done(12, 8).emits("finished t12, run w8 t14");
    world.submit(t(15)).done(11, 2).emits("finished t11, run w2 t15");
}

#[test]
fn a_remote_worker_has_a_longer_queue() {
    let mut world = World::empty();
    world
        .remote_node(1, resources(1, 0, 0))
        .worker(1, 1)
        .node(2, resources(1, 0, 0))
        .job(1, LIMITS)
        .driver(DRIVER, 2, 1)
        .submit(first(1, 1));
    world.submit_all((10..2000).map(short)).discard_actions();
    // 50 µs per task: the window of 10 ms holds 200.
    let assigned: Vec<String> = (11..211).map(|task| format!("run w1 t{task}")).collect();
    world.finish_after(10, 1, 50_000).emits_only("run", &assigned.join(", "));
}

/// Nodes 1 and 2 with one worker each; objects 1001 and 2001 to 2003.
fn with_locations() -> World {
    let mut world = World::with_locations(1, 1);
    world.remote_node(2, resources(1, 0, 0)).worker(2, 2);
    for object in [1001, 2001, 2002, 2003] {
        world.put(object, 1, DRIVER, &[]).discard_actions();
    }
    world
}

#[test]
fn tasks_go_to_where_their_objects_are() {
    let mut world = with_locations();
    world.submit(needs(t(10), &[2001])).emits("run w2 t10").submit(needs(t(11), &[1001])).emits("run w1 t11");
    // Task 12 waits for node 2 although node 1 is free; task 13 does not wait.
    world.done(11, 1).emits("finished t11").submit(needs(t(12), &[2002])).emits("");
    world.submit(t(13)).emits("run w1 t13").done(10, 2).emits("finished t10, run w2 t12");
}

#[test]
fn where_most_bytes_are_counts() {
    with_locations().submit(needs(t(10), &[1001, 2001, 2002])).emits("run w2 t10");
    // With equal bytes, the lower node id wins.
    with_locations().submit(needs(t(10), &[2001, 1001])).emits("run w1 t10");
}

#[test]
fn explicit_placement_is_respected() {
    let at_1 = sandbar_core::Strategy::Node { node: sandbar_core::NodeId(1), soft: false };
    with_locations().submit(Submission { strategy: at_1, ..needs(t(10), &[2001]) }).emits("run w1 t10");
}

#[test]
fn tasks_do_not_wait_forever_for_where_their_objects_are() {
    let mut world = with_locations();
    // 50 ms per task: a queue of more than 20 exceeds the wait of one second.
    let all = |from: u64, to: u64| (from..to).map(|task| Submission { name: "near".into(), ..needs(t(task), &[2001]) });
    world.submit_all(all(10, 30)).emits("run w2 t10").done(10, 2).emits("finished t10, run w2 t11");
    world.submit_all(all(30, 33)).emits("run w1 t12");
}

#[test]
fn where_objects_were_is_not_waited_for() {
    let mut world = with_locations();
    world.submit_all((10..13).map(|task| needs(t(task), &[2001]))).emits("run w2 t10");
    world.lose_node(2).emits("finished t10, run w1 t11");
}

#[test]
fn a_node_that_is_to_go_gets_nothing_more() {
    let mut world = World::new(1, 1);
    world.remote_node(2, resources(2, 0, 0)).worker(8, 2).worker(9, 2);
    world.submit(t(10)).submit(t(11)).emits("run w1 t10, run w8 t11").drain_node(2).emits("");
    world.submit(t(12)).emits("").done(11, 8).emits("finished t11").done(10, 1).emits("finished t10, run w1 t12");
    world.lose_node(2).emits("");
}

#[test]
fn queued_tasks_of_a_draining_node_are_recalled() {
    let mut world = World::empty();
    world
        .remote_node(1, resources(1, 0, 0))
        .worker(1, 1)
        .node(2, resources(1, 0, 0))
        .worker(2, 2)
        .job(1, LIMITS)
        .driver(DRIVER, 2, 1);
    world.submit(first(1, 1)).submit_all((10..100).map(short)).discard_actions();
    world.finish_after(10, 2, 50_000).finish_after(11, 1, 50_000).discard_actions();
    world.drain_node(1).emits("recall w1");
}

#[test]
fn objects_of_a_node_that_is_to_go_draw_no_tasks() {
    let mut world = with_locations();
    world.submit(needs(t(10), &[2001])).emits("run w2 t10").submit(needs(t(11), &[2001])).emits("");
    world.drain_node(2).emits("run w1 t11").done(11, 1).emits("finished t11");
    world.submit(needs(t(12), &[2002])).emits("run w1 t12");
}
