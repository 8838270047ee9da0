//! Lifetime and delivery of objects.

mod dsl;

use dsl::*;
use sandbar_core::ObjectId;

#[test]
fn a_result_is_kept_while_its_submitter_holds_it() {
    let mut world = World::new(1, 1);
    world.submit(t(10)).done(10, 1).discard_actions();
    assert_eq!(world.kept(), [1, 10]);
    world.release(10, DRIVER).emits("drop o10");
    assert_eq!(world.kept(), [1]);
}

#[test]
fn a_result_without_references_is_dropped_on_arrival() {
    let mut world = World::new(1, 1);
    world.submit(t(10)).release(10, DRIVER).emits("run w1 t10");
    world.done(10, 1).emits("finished t10, drop o10");
}

#[test]
fn objects_are_kept_until_their_task_ends() {
    for link in [needs, refs] {
        let mut world = World::new(1, 1);
        world.put(10, 1, DRIVER, &[]).submit(link(t(11), &[10])).release(10, DRIVER).emits("run w1 t11");
        world.fails(11, 0, 1, false).emits("finished t11, drop o10");
    }
}

#[test]
fn contained_objects_live_as_long_as_their_value() {
    let mut world = World::new(1, 1);
    world.put(10, 1, DRIVER, &[]).put(11, 1, DRIVER, &[10]).put(12, 1, DRIVER, &[11, 10]);
    world.release(10, DRIVER).release(11, DRIVER).emits("");
    world.release(12, DRIVER).emits("drop o12, drop o11, drop o10");
}

#[test]
fn a_long_chain_of_values_is_dropped_at_once() {
    let mut world = World::empty();
    let limits = JobLimits { objects_max: 2_000_000, ..LIMITS };
    world.node(1, resources(1, 0, 0)).job(1, limits).driver(DRIVER, 1, 1).submit(first(1, 1));
    world.put(2, 1, DRIVER, &[]);
    (3..1_000_000).for_each(|id| {
        world.put(id, 1, DRIVER, &[id - 1]).release(id - 1, DRIVER);
    });
    world.emits("run w100 t1").release(999_999, DRIVER);
    assert_eq!(world.kept(), [1]);
}

#[test]
fn a_value_that_is_put_is_held_once() {
    let mut world = World::new(1, 1);
    world.put(10, 1, DRIVER, &[]).emits("").release(10, DRIVER).emits("drop o10");
    world.submit(t(11)).put(12, 11, 1, &[]).emits("run w1 t11");
    world.returned(11, 1, &[12]).release(12, 1).emits("finished t11");
    assert_eq!(world.kept(), [1, 11, 12]);
    world.release(11, DRIVER).emits("drop o11, drop o12");
}

#[test]
fn each_request_for_an_object_is_answered_once() {
    let mut world = World::new(2, 2);
    world.submit(t(10)).submit(refs(t(11), &[10])).emits("run w1 t10, run w2 t11");
    world.request(10, DRIVER, 1).request(10, DRIVER, 1).request(10, 2, 11).emits("");
    world.done(10, 1).emits("finished t10, deliver w100 o10, deliver w100 o10, deliver w2 o10");
    world.request(10, 2, 11).emits("deliver w2 o10");
}

#[test]
fn receivers_of_a_value_hold_the_objects_in_it() {
    let mut world = World::new(2, 2);
    world.submit(t(10)).put(20, 10, 1, &[]).returned(10, 1, &[20]).release(20, 1).discard_actions();
    world
        .request(10, DRIVER, 1)
        .request(10, DRIVER, 1)
        .release(10, DRIVER)
        .emits("deliver w100 o10, deliver w100 o10, drop o10");
    world.release(20, DRIVER).emits("").release(20, DRIVER).emits("drop o20");
}

#[test]
fn a_lost_worker_holds_nothing() {
    let mut world = World::new(2, 2);
    world.submit(t(10)).put(20, 10, 1, &[]).submit(child(21, 10, 1)).submit(refs(t(11), &[20])).discard_actions();
    world.lose(1, &[10]).emits_only("drop", "");
    assert_eq!(world.kept(), [1, 10, 11, 20, 21]);
    world.cancel(11, false).emits("finished t11, drop o20");
}

#[test]
fn a_lost_value_is_an_error() {
    let mut world = World::new(1, 1);
    world.put(10, 1, DRIVER, &[]).submit(t(11)).submit(needs(t(12), &[10])).emits("run w1 t11");
    world.lose_object(10).emits("drop o10");
    let error = "the value of object 10 is lost: objects that were put are not reconstructed [object-lost]";
    world.error_is(10, error);
    world.done(11, 1).emits("finished t11, finished t12");
    world.error_is(12, error);
    world.submit(needs(t(13), &[10])).emits("finished t13");
}

#[test]
fn a_promised_value_outlives_its_task() {
    let mut world = World::new(1, 1);
    world.submit(t(10)).promise(20, 10, 1).request(20, 1, 10).emits("run w1 t10");
    world.returned(10, 1, &[20]).release(20, 1).emits("finished t10");
    world.submit(needs(t(11), &[20])).emits("").fulfil(20, true).emits("run w1 t11, deliver w1 o20");
    world.fulfil(20, true).fulfil(7, true).fulfil(7, false).emits("drop o20, drop o7");
    world.done(11, 1).release(10, DRIVER).emits("finished t11, drop o10, drop o20");
}

#[test]
fn a_promise_without_waiters_is_detected() {
    let mut world = World::new(1, 1);
    world.promise(10, 1, DRIVER).promise(11, 1, DRIVER).promise(11, 1, DRIVER).release(10, DRIVER).emits("");
    let is_referenced = |world: &World, id| world.steps.is_promise_referenced(ObjectId(id));
    assert_eq!([10, 11, 12].map(|id| is_referenced(&world, id)), [false, true, false]);
    world.fulfil(10, false).emits("");
    assert_eq!(world.kept(), [1, 11]);
    world.job_ends(1).discard_actions();
    assert!(!is_referenced(&world, 11));
    world.fulfil(11, true).emits("drop o11");
}

#[test]
fn a_failed_promise_fails_its_dependents() {
    let mut world = World::new(1, 1);
    world.promise(10, 1, DRIVER).submit(needs(t(11), &[10])).emits("");
    world.fulfil(10, false).emits("finished t11");
    world.error_is(11, "no file [input]");
    // The return of a task cannot be fulfilled.
    world.submit(t(12)).fulfil(12, true).emits("run w1 t12, drop o12");
}
