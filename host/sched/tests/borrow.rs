//! Objects that are another scheduler's, and nodes that are far: what goes where.

mod dsl;

use dsl::*;
use sandbar_sched::Submission;

/// Object 10 is borrowed by the first task of job 1.
fn world() -> World {
    let mut world = World::new(1, 1);
    world.borrow(10, 1, DRIVER).gives("");
    world
}

#[test]
fn an_owner_is_told_when_nobody_refers_to_its_object() {
    let mut world = world();
    world.release(10, DRIVER).gives("returned o10");
    assert_eq!(world.kept(), [1]);
}

#[test]
fn what_refers_to_it_here_keeps_it() {
    for link in [needs, refs] {
        let mut world = world();
        world.arrive(10, &[]).submit(link(t(11), &[10])).release(10, DRIVER).gives("run w1 t11");
        world.fails(11, 0, 1, false).gives("ended t11, returned o10, drop o10");
    }
    let mut world = world();
    world.put(11, 1, DRIVER, &[10]).release(10, DRIVER).gives("");
    world.release(11, DRIVER).gives("drop o11, returned o10");
}

#[test]
fn it_is_held_as_often_as_it_is_borrowed() {
    let mut world = world();
    world.borrow(10, 1, DRIVER).release(10, DRIVER).gives("");
    world.release(10, DRIVER).gives("returned o10");
}

#[test]
fn its_owner_is_asked_once_somebody_wants_it() {
    let mut world = world();
    world.want(10, DRIVER, 1).gives("ask o10").want(10, DRIVER, 1).gives("");
    world.arrive(10, &[]).gives("deliver w100 o10, deliver w100 o10");
    world.want(10, DRIVER, 1).gives("deliver w100 o10");
}

#[test]
fn a_task_that_needs_it_waits_for_it() {
    let mut world = world();
    world.submit(needs(t(11), &[10])).gives("ask o10").submit(needs(t(12), &[10])).gives("");
    world.arrive(10, &[]).gives("run w1 t11").done(11, 1).gives("ended t11, run w1 t12");
}

#[test]
fn what_its_value_contains_is_kept_with_it() {
    let mut world = world();
    world.borrow(11, 1, DRIVER).want(10, DRIVER, 1).arrive(10, &[11]).gives("ask o10, deliver w100 o10");
    // Once by itself, once with the value that was delivered.
    world.release(11, DRIVER).release(11, DRIVER).gives("");
    world.release(10, DRIVER).gives("returned o10, drop o10, returned o11");
}

#[test]
fn why_there_is_none_is_told() {
    let mut world = world();
    world.want(10, DRIVER, 1).arrive_failed(10).gives("ask o10, deliver w100 o10");
    world.error_is(10, "no file [input]");
    // It is known by now.
    world.arrive(10, &[]).gives("drop o10");
}

#[test]
fn its_owner_is_asked_again_for_what_was_lost() {
    let mut world = world();
    world.want(10, DRIVER, 1).arrive(10, &[]).somehow();
    world.lose_object(10).gives("drop o10").want(10, DRIVER, 1).gives("ask o10");
    world.arrive(10, &[]).gives("deliver w100 o10").lose_object_for(10, DRIVER).gives("drop o10, ask o10");
    // Of who was to be told it may be heard later.
    world.arrive(10, &[]).somehow();
    world.lose_object(10).gives("drop o10").lose_object_for(10, DRIVER).gives("ask o10");
}

#[test]
fn all_are_returned_when_their_job_ends() {
    let mut world = world();
    world
        .borrow(11, 1, DRIVER)
        .arrive(11, &[])
        .job_ends(1)
        .gives("interrupt w100 t1, returned o11, drop o11, returned o10");
}

#[test]
fn a_peer_holds_what_the_workers_of_its_node_use() {
    let mut world = World::new(1, 0);
    world.far_node(2, of(1, 0, 0)).worker(2, 2).peer(3, 2).put(10, 1, DRIVER, &[]).submit(refs(t(11), &[10]));
    world.gives("run w2 t11").want(10, 3, 11).gives("deliver w3 o10").hold(10, 3, 11).release(10, DRIVER);
    world.done(11, 2).gives("ended t11").release(10, 3).gives("drop o10");
    // Of tasks that are elsewhere it knows nothing.
    world.want(11, 3, 1).gives_of("refuse", "refuse w3 o11 (object 11 is of another job [bad-request])");
}

#[test]
fn tasks_go_far_when_there_is_no_room_nearer() {
    let mut world = World::new(2, 2);
    world.far_node(2, of(2, 0, 0)).worker(8, 2).worker(9, 2);
    for (task, worker) in [(10, 1), (11, 2), (12, 8), (13, 9)] {
        world.submit(t(task)).gives(&format!("run w{worker} t{task}"));
    }
    world.submit(t(14)).gives("").done(12, 8).gives("ended t12, run w8 t14");
    world.submit(t(15)).done(11, 2).gives("ended t11, run w2 t15");
}

#[test]
fn a_far_worker_is_given_more_in_advance() {
    let mut world = World::empty();
    world
        .far_node(1, of(1, 0, 0))
        .worker(1, 1)
        .node(2, of(1, 0, 0))
        .job(1, LIMITS)
        .driver(DRIVER, 2, 1)
        .submit(first(1, 1));
    world.submit_all((10..2000).map(short)).somehow();
    // They take 50 us each: there is room for 10 ms of them.
    let given: Vec<String> = (11..211).map(|task| format!("run w1 t{task}")).collect();
    world.ran(10, 1, 50_000).gives_of("run", &given.join(", "));
}

/// Nodes 1 and 2 with a worker each, objects 1001 and 2001 to 2003.
fn lying() -> World {
    let mut world = World::lying(1, 1);
    world.far_node(2, of(1, 0, 0)).worker(2, 2);
    for object in [1001, 2001, 2002, 2003] {
        world.put(object, 1, DRIVER, &[]).somehow();
    }
    world
}

#[test]
fn tasks_go_to_where_their_objects_are() {
    let mut world = lying();
    world.submit(needs(t(10), &[2001])).gives("run w2 t10").submit(needs(t(11), &[1001])).gives("run w1 t11");
    // They wait for it, though there is room elsewhere, and others do not wait for them.
    world.done(11, 1).gives("ended t11").submit(needs(t(12), &[2002])).gives("");
    world.submit(t(13)).gives("run w1 t13").done(10, 2).gives("ended t10, run w2 t12");
}

#[test]
fn where_most_bytes_are_counts() {
    lying().submit(needs(t(10), &[1001, 2001, 2002])).gives("run w2 t10");
    // As many bytes: the node of the lower number.
    lying().submit(needs(t(10), &[2001, 1001])).gives("run w1 t10");
}

#[test]
fn who_says_where_a_task_runs_is_heard() {
    let at_1 = sandbar_core::Strategy::Node { node: sandbar_core::NodeId(1), soft: false };
    lying().submit(Submission { strategy: at_1, ..needs(t(10), &[2001]) }).gives("run w1 t10");
}

#[test]
fn tasks_do_not_wait_forever_for_where_their_objects_are() {
    let mut world = lying();
    // They take 50 ms each: more than 20 of them are more than a second.
    let all = |from: u64, to: u64| (from..to).map(|task| Submission { name: "near".into(), ..needs(t(task), &[2001]) });
    world.submit_all(all(10, 30)).gives("run w2 t10").done(10, 2).gives("ended t10, run w2 t11");
    world.submit_all(all(30, 33)).gives("run w1 t12");
}

#[test]
fn where_objects_were_is_not_waited_for() {
    let mut world = lying();
    world.submit_all((10..13).map(|task| needs(t(task), &[2001]))).gives("run w2 t10");
    world.lose_node(2).gives("ended t10, run w1 t11");
}

#[test]
fn a_node_that_is_to_go_gets_nothing_more() {
    let mut world = World::new(1, 1);
    world.far_node(2, of(2, 0, 0)).worker(8, 2).worker(9, 2);
    world.submit(t(10)).submit(t(11)).gives("run w1 t10, run w8 t11").drain_node(2).gives("");
    world.submit(t(12)).gives("").done(11, 8).gives("ended t11").done(10, 1).gives("ended t10, run w1 t12");
    world.lose_node(2).gives("");
}

#[test]
fn what_a_node_that_is_to_go_has_not_begun_is_asked_back() {
    let mut world = World::empty();
    world.far_node(1, of(1, 0, 0)).worker(1, 1).node(2, of(1, 0, 0)).worker(2, 2).job(1, LIMITS).driver(DRIVER, 2, 1);
    world.submit(first(1, 1)).submit_all((10..100).map(short)).somehow();
    world.ran(10, 2, 50_000).ran(11, 1, 50_000).somehow();
    world.drain_node(1).gives("recall w1");
}

#[test]
fn objects_of_a_node_that_is_to_go_draw_no_tasks() {
    let mut world = lying();
    world.submit(needs(t(10), &[2001])).gives("run w2 t10").submit(needs(t(11), &[2001])).gives("");
    world.drain_node(2).gives("run w1 t11").done(11, 1).gives("ended t11");
    world.submit(needs(t(12), &[2002])).gives("run w1 t12");
}
